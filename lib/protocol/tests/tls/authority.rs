//! Authorities and certificates for tests, as files of a folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

/// Whom certificates are believed.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// What is to be in a certificate.
pub(crate) struct Wanted<'a> {
    /// Name of the service, if there is one.
    pub(crate) name: Option<&'a str>,
    /// Year in which it ends.
    pub(crate) until: i32,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// Certificate and key of a service, both in PEM.
    pub(crate) fn issue(&self, wanted: &Wanted<'_>) -> [String; 2] {
        let mut params = CertificateParams::default();
        if let Some(name) = wanted.name {
            let name = name.try_into().expect("ASCII");
            params.subject_alt_names.push(SanType::URI(name));
        }
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(wanted.until, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        [certificate.pem(), key.serialize_pem()]
    }

    /// Writes the files of the service of this name, which believes this authority.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> [PathBuf; 3] {
        let wanted = Wanted {
            name: Some(name),
            until: 2999,
        };
        write(folder, &self.issue(&wanted), &self.pem)
    }
}

/// Writes certificate, key and authorities of a service, each at once, as a mounted Secret changes.
pub(crate) fn write(folder: &Path, [certificate, key]: &[String; 2], ca: &str) -> [PathBuf; 3] {
    fs::create_dir_all(folder).expect("a folder");
    [
        ("tls.crt", certificate.as_str()),
        ("tls.key", key),
        ("ca.crt", ca),
    ]
    .map(|(name, text)| {
        let (path, new) = (folder.join(name), folder.join(format!("{name}.new")));
        fs::write(&new, text).expect("a file");
        fs::rename(&new, &path).expect("a name");
        path
    })
}
