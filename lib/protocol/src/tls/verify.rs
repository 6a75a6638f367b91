//! Whose a certificate is.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use webpki::EndEntityCert;

use super::name::{NameError, ServiceName};

/// Why a certificate is nobody's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoService {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate has no name of a service")]
    None,
    #[error("the certificate has {0} names; a service has one")]
    Several(usize),
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Whose the certificate is. Says nothing about who made it.
pub(super) fn name_in(certificate: &CertificateDer<'_>) -> Result<ServiceName, NoService> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|_| NoService::Unreadable)?;
    let names: Vec<&str> = parsed.valid_uri_names().collect();
    match names[..] {
        [] => Err(NoService::None),
        [name] => Ok(name.parse()?),
        _ => Err(NoService::Several(names.len())),
    }
}

/// Accepts servers with a certificate of one of the authorities, whatever their host is called.
#[derive(Debug)]
pub(super) struct IsService {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl IsService {
    pub(super) fn new(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Self {
        Self { roots, provider }
    }
}

impl ServerCertVerifier for IsService {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
