//! Certificates and keys as files have them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};

use super::{
    TlsFiles,
    name::{Role, ServiceName},
    verify::{IsService, name_in},
};
use crate::files::Version;

/// Why a service's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file has none of what it is for.
    #[error("{} has no {what} in PEM", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What it is for.
        what: &'static str,
    },
    /// Something in a file is broken.
    #[error("{} is not valid: {cause}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The certificate is nobody's.
    #[error(
        "the certificate {} names no service: it needs the URI \
         spiffe://foretoken/ns/NAMESPACE/ROLE/NAME among its alternative names ({cause})",
        path.display()
    )]
    NoName {
        /// The certificate.
        path: PathBuf,
        /// What was found.
        cause: String,
    },
    /// The certificate is of a service of another kind.
    #[error(
        "the certificate {} is for {name}; this service is a {role}: give it one for a {role}",
        path.display()
    )]
    Role {
        /// The certificate.
        path: PathBuf,
        /// Whose it is.
        name: ServiceName,
        /// What this service is.
        role: Role,
    },
    /// Certificate and key do not go together.
    #[error(
        "{} is not the key of {}, or not of a kind that is supported: {cause}",
        key.display(), certificate.display()
    )]
    Key {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// What tells one version of the files from another without reading them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp([Version; 3]);

impl Stamp {
    /// None while one of them is away.
    pub(super) fn of(files: &TlsFiles) -> Option<Self> {
        let TlsFiles {
            certificate,
            key,
            ca,
        } = files;
        let [certificate, key, ca] = [certificate, key, ca].map(|path| Version::of(path));
        Some(Self([certificate?, key?, ca?]))
    }
}

/// What connections begin with.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    /// Whose the certificate is.
    pub(super) name: ServiceName,
}

impl Ready {
    /// Reads the files.
    pub(super) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles {
            certificate,
            key,
            ca,
        } = files;
        let chain = certificates(certificate, "certificate")?;
        let roots = roots(ca)?;
        let bytes = read(key)?;
        let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| TlsError::Empty {
            path: key.clone(),
            what: "private key",
        })?;
        let name = name_in(&chain[0]).map_err(|cause| TlsError::NoName {
            path: certificate.clone(),
            cause: cause.to_string(),
        })?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mismatch = |error: rustls::Error| TlsError::Key {
            certificate: certificate.clone(),
            key: key.clone(),
            cause: error.to_string(),
        };
        let server = server(&provider, &roots, ca)?
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(mismatch)?;
        let client = client(provider, roots, ca)?
            .with_client_auth_cert(chain, private)
            .map_err(mismatch)?;
        Ok(Self {
            server: Arc::new(without_tickets(server)),
            client: Arc::new(anonymous(client)),
            name,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        path: path.into(),
        source,
    })
}

/// The certificates of a file, at least one.
fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| TlsError::Invalid {
        path: path.into(),
        cause: error.to_string(),
    })?;
    if found.is_empty() {
        let path = path.into();
        return Err(TlsError::Empty { path, what });
    }
    Ok(found)
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path, "certificate of an authority")? {
        roots.add(authority).map_err(|error| TlsError::Invalid {
            path: path.into(),
            cause: error.to_string(),
        })?;
    }
    Ok(Arc::new(roots))
}

type Builder<Side> = rustls::ConfigBuilder<Side, <Side as Chosen>::Next>;

/// What is left to choose once it is known whose certificates are accepted.
trait Chosen: rustls::ConfigSide {
    type Next;
}

impl Chosen for ServerConfig {
    type Next = rustls::server::WantsServerCert;
}

impl Chosen for ClientConfig {
    type Next = rustls::client::WantsClientCert;
}

fn invalid(ca: &Path) -> impl Fn(String) -> TlsError {
    move |cause| TlsError::Invalid {
        path: ca.into(),
        cause,
    }
}

fn server(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    ca: &Path,
) -> Result<Builder<ServerConfig>, TlsError> {
    let invalid = invalid(ca);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
            .build()
            .map_err(|error| invalid(error.to_string()))?;
    Ok(ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| invalid(error.to_string()))?
        .with_client_cert_verifier(verifier))
}

fn client(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    ca: &Path,
) -> Result<Builder<ClientConfig>, TlsError> {
    let invalid = invalid(ca);
    let verifier = Arc::new(IsService::new(roots, Arc::clone(&provider)));
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| invalid(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier))
}

/// Every connection shows its certificate.
fn without_tickets(mut config: ServerConfig) -> ServerConfig {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// Neither resumes nor says whom it expects: names of hosts play no part.
fn anonymous(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config
}
