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
    let certificate = ca_params(&key, now).self_signed(&key)?.pem();
    Ok(Ca {
        made: now,
        certificate,
        key: key.serialize_pem(),
    })
}

/// Certificate and key of the service whose URI is `name`, both in PEM.
pub fn leaf(name: &str, ca: &Ca, now: Timestamp) -> Result<[String; 2], IssueError> {
    let key = KeyPair::from_pem(&ca.key)?;
    let issuer = Issuer::new(ca_params(&key, ca.made), key);
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

/// What is in the certificate of a CA with this key, made then.
fn ca_params(key: &KeyPair, made: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Two CAs have two names, so that verifiers see at once whose a certificate is; and one has the same
    // whatever is said of when it was made, so that its leaves are always its own.
    let digest = blake3::hash(key.public_key_raw()).to_hex();
    let name = format!("foretoken {}", &digest[..16]);
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

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    /// The bytes of a certificate in PEM.
    fn der(pem: &str) -> Vec<u8> {
        let text: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
        let bytes: ByteString = serde_json::from_value(json!(text)).expect("base64");
        bytes.0
    }

    #[test]
    fn a_leaf_is_of_its_ca_whatever_is_said_of_when_that_was_made() {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let [first, second] = [ca(now), ca(now)].map(|ca| ca.expect("made"));
        let aged = Ca {
            made: now - SignedDuration::from_hours(25),
            ..first.clone()
        };
        let [leaf, _] = leaf("spiffe://foretoken/ns/a/target/b", &aged, now).expect("issued");
        let name = |ca: &Ca| {
            let key = KeyPair::from_pem(&ca.key).expect("a key");
            format!(
                "foretoken {}",
                &blake3::hash(key.public_key_raw()).to_hex()[..16]
            )
        };
        let says = |pem: &str, name: &str| {
            der(pem)
                .windows(name.len())
                .any(|part| part == name.as_bytes())
        };
        assert!(says(&first.certificate, &name(&first)));
        assert!(says(&leaf, &name(&first)), "its issuer is the CA");
        assert!(!says(&leaf, &name(&second)));
    }
}
