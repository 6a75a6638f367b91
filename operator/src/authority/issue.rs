//! Keys and certificates.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::{CA_LIFE, Ca, LEAF_LIFE};

/// How much clocks may differ: certificates are valid from so long before they were made.
const SKEW: SignedDuration = SignedDuration::from_mins(10);

/// Why no certificate came to be.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate: {0}")]
pub struct IssueError(#[from] rcgen::Error);

/// A new CA, made `now`.
pub fn ca(now: Timestamp) -> Result<Ca, IssueError> {
    let key = KeyPair::generate()?;
    let certificate = ca_params(now).self_signed(&key)?.pem();
    Ok(Ca {
        made: now,
        certificate,
        key: key.serialize_pem(),
    })
}

/// Certificate and key of the service whose URI is `name`, both in PEM.
pub fn leaf(name: &str, ca: &Ca, now: Timestamp) -> Result<[String; 2], IssueError> {
    let issuer = Issuer::new(ca_params(ca.made), KeyPair::from_pem(&ca.key)?);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    valid(&mut params, now, LEAF_LIFE);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok([certificate, key.serialize_pem()])
}

/// What is in the certificate of a CA made then.
fn ca_params(made: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Two CAs have two names, so that verifiers see at once whose a certificate is.
    let name = format!("foretoken {}", made.as_second());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid(&mut params, made, CA_LIFE);
    params
}

fn valid(params: &mut CertificateParams, from: Timestamp, life: SignedDuration) {
    let time = |at: Timestamp| std::time::SystemTime::from(at).into();
    params.not_before = time(from - SKEW);
    params.not_after = time(from + life);
}
