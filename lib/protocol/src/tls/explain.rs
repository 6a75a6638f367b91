//! What went wrong between two ends, in words that say what to do.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// First bytes of a TLS record: an alert or a handshake, and the version's first byte. HTTP/2 begins
/// with `PRI` or with a frame shorter than that many bytes.
const ALERT: [u8; 2] = [0x15, 0x03];
const HANDSHAKE: [u8; 2] = [0x16, 0x03];

/// What is wrong if the first bytes that arrive in clear text are TLS.
pub(crate) fn cleartext(first: &[u8]) -> Result<(), io::Error> {
    let problem = match first.get(..2) {
        Some(start) if start == HANDSHAKE => {
            "the peer dials with TLS and this port is plain text: give both ends certificates, or \
             neither"
        }
        Some(start) if start == ALERT => {
            "the port asks for TLS and this side speaks plain text: give this service a \
             certificate (tls: {certificate, key, ca})"
        }
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, problem))
}

/// The same error in words that say what to do.
pub(super) fn explain(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner.map(words) {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}

/// The same for the beginning of a connection.
pub(super) fn explain_handshake(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        let text = "the peer ended the connection before the handshake was done: perhaps it speaks \
                    plain text";
        return io::Error::new(error.kind(), text);
    }
    explain(error)
}

fn words(error: &Error) -> String {
    let text = match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the peer speaks plain text and this side TLS: give both ends certificates, or neither"
        }
        Error::NoCertificatesPresented => {
            "the peer has no certificate: give it one of an authority in ca"
        }
        Error::InvalidCertificate(problem) => return certificate(problem),
        Error::AlertReceived(alert) => return received(*alert),
        other => return format!("TLS failed: {other}"),
    };
    text.to_owned()
}

/// What is wrong with the peer's certificate.
fn certificate(problem: &CertificateError) -> String {
    let text = match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the peer's certificate has expired: renew it (and check the clocks)"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet: check the clocks"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the peer's certificate is of an authority that this side does not accept: add the \
             authority to ca, or give the peer a certificate of one that is there"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the peer's certificate is not for this end of a connection: it needs the extended \
             usages serverAuth and clientAuth"
        }
        other => return format!("the peer's certificate is not valid: {other}"),
    };
    text.to_owned()
}

/// What the peer says is wrong with ours.
fn received(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateRequired => {
            "the peer asks for a certificate, and none was shown"
        }
        AlertDescription::CertificateExpired => {
            "the peer says that this side's certificate has expired or is not valid yet: renew it \
             (and check the clocks)"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the peer does not accept the authority of this side's certificate: add it to the \
             peer's ca"
        }
        AlertDescription::UnsupportedCertificate => {
            "the peer says that this side's certificate is not for this end of a connection: it \
             needs the extended usages serverAuth and clientAuth"
        }
        other => return format!("the peer refused the connection: {other:?}"),
    };
    text.to_owned()
}
