//! Where etcd is, and how it lets us in: what `etcdctl` is told, by the same names.

use std::{fmt, fs, io, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Where etcd is, what is ours there, and how it lets us in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Its members, `http://host:port` or `https://host:port`; one is used at a time.
    pub endpoints: Vec<String>,
    /// What our keys begin with. Default `foretoken/`.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// Whom we call ourselves. Default nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with the password of `user`; a line end after it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// The password itself, where it does not come from a file; in no file of configurations.
    #[serde(skip)]
    pub password: Option<Secret>,
    /// Certificates (PEM) of the authorities that members' certificates are checked by. Default:
    /// those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cacert: Option<PathBuf>,
    /// Our certificate (PEM), for members that ask for one; `key` comes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The key of `cert` (PEM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: default_prefix(),
            user: None,
            password_file: None,
            password: None,
            cacert: None,
            cert: None,
            key: None,
        }
    }
}

/// A text that is not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

fn default_prefix() -> String {
    "foretoken/".to_owned()
}

/// Why etcd cannot be asked as configured.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConfigError {
    /// No member is named.
    #[error("etcd has no endpoints; name at least one, such as http://127.0.0.1:2379")]
    NoEndpoints,
    /// A member's address is none.
    #[error("{0:?} is not an endpoint of etcd; write http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    /// TLS is configured for a member that is spoken to without it.
    #[error("cacert, cert and key need TLS, and {0:?} has none; write https://")]
    NoTls(String),
    /// One of two that only make sense together.
    #[error("{0} is missing: {1} is given")]
    Missing(&'static str, &'static str),
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Certificates or keys that are none.
    #[error("the certificates for etcd cannot be used: {0}")]
    Tls(String),
}

impl EtcdConfig {
    /// Members and prefix of `etcd://HOST:PORT[,HOST:PORT]/PREFIX` (`etcds://` with TLS).
    pub(crate) fn parse(rest: &str, scheme: &str) -> Result<Self, EtcdConfigError> {
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let members = members.split(',').filter(|member| !member.is_empty());
        let prefix = match prefix {
            "" => default_prefix(),
            prefix => prefix.to_owned(),
        };
        let config = Self {
            endpoints: members.map(|m| format!("{scheme}://{m}")).collect(),
            prefix,
            ..Self::default()
        };
        config.endpoints()?;
        Ok(config)
    }

    /// Checks what the types cannot say, and that files can be read.
    pub fn check(&self) -> Result<(), EtcdConfigError> {
        self.endpoints()?;
        for endpoint in &self.endpoints {
            self.endpoint(endpoint)?;
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => return Err(EtcdConfigError::Missing("key", "cert")),
            (None, Some(_)) => return Err(EtcdConfigError::Missing("cert", "key")),
            (Some(_), Some(_)) | (None, None) => {}
        }
        let with_password = self.password.is_some() || self.password_file.is_some();
        match (self.user.is_some(), with_password) {
            (true, false) => Err(EtcdConfigError::Missing("a password", "user")),
            (false, true) => Err(EtcdConfigError::Missing("user", "a password")),
            (true, true) | (false, false) => self.credentials().map(|_| ()),
        }
    }

    fn endpoints(&self) -> Result<(), EtcdConfigError> {
        if self.endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoints);
        }
        let is_good = |text: &str| {
            let rest = ["http://", "https://"]
                .iter()
                .find_map(|scheme| text.strip_prefix(scheme));
            let authority =
                rest.and_then(|rest| tonic::codegen::http::uri::Authority::from_str(rest).ok());
            authority.is_some_and(|it| it.port().is_some() && !it.host().is_empty())
        };
        match self.endpoints.iter().find(|text| !is_good(text)) {
            Some(bad) => Err(EtcdConfigError::Endpoint(bad.clone())),
            None => Ok(()),
        }
    }

    /// How a member is dialled. Files are read anew, since certificates are replaced now and then.
    pub(super) fn endpoint(&self, text: &str) -> Result<Endpoint, EtcdConfigError> {
        let bad = || EtcdConfigError::Endpoint(text.to_owned());
        let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|_| bad())?;
        if !text.starts_with("https://") {
            let files = [&self.cacert, &self.cert, &self.key];
            if files.iter().any(|file| file.is_some()) {
                return Err(EtcdConfigError::NoTls(text.to_owned()));
            }
            return Ok(endpoint);
        }
        let mut tls = match &self.cacert {
            Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        endpoint
            .tls_config(tls)
            .map_err(|error| EtcdConfigError::Tls(crate::in_full(&error)))
    }

    /// Name and password, if we have any.
    pub(super) fn credentials(&self) -> Result<Option<(String, String)>, EtcdConfigError> {
        let Some(user) = self.user.clone() else {
            return Ok(None);
        };
        let password = match (&self.password, &self.password_file) {
            (Some(Secret(password)), _) => password.clone(),
            (None, Some(path)) => read(path)?.trim_end_matches(['\r', '\n']).to_owned(),
            (None, None) => String::new(),
        };
        Ok(Some((user, password)))
    }
}

fn read(path: &PathBuf) -> Result<String, EtcdConfigError> {
    fs::read_to_string(path).map_err(|source| EtcdConfigError::File {
        path: path.clone(),
        source,
    })
}

impl fmt::Display for EtcdConfig {
    /// As it is written where only members and prefix matter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_tls = self.endpoints.iter().any(|text| text.starts_with("https:"));
        let members = self.endpoints.iter();
        let members = members.map(|text| text.split_once("://").map_or(text.as_str(), |it| it.1));
        let members: Vec<&str> = members.collect();
        let scheme = if with_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", members.join(","), self.prefix)
    }
}
