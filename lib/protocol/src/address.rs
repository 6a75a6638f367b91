//! Where a service listens or is found: a TCP host and port, or a Unix socket.

use std::{fmt, path::PathBuf, str::FromStr};

mod listen;
mod socket;
mod tcp;
mod unix;

pub use listen::{BindError, Listener};
pub(crate) use socket::{Incoming, Socket};
pub use tcp::listen;
pub(crate) use unix::Local;

use crate::tls::Served;

/// Where a service listens or is found. Written `http://host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// Name or IP address, an IPv6 one without its brackets.
        host: String,
        /// Port; 0 when listening means any free one.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Whom somebody dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Where it is found.
    pub address: Address,
    /// What its certificate has to say over TLS that it serves; none: anything. An address can have
    /// become another service's by the time it is dialled.
    pub serves: Option<Served>,
}

impl From<Address> for Callee {
    /// Whoever is found there.
    fn from(address: Address) -> Self {
        Self {
            address,
            serves: None,
        }
    }
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: {problem}; write http://HOST:PORT or unix:/PATH")]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl Address {
    /// A port of this machine that nobody else can reach; 0: any free one.
    pub fn loopback(port: u16) -> Self {
        Self::Tcp {
            host: "127.0.0.1".into(),
            port,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// `http://` may be left out; a trailing slash is ignored.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |problem| AddressError {
            text: text.into(),
            problem,
        };
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///path` is how URLs spell it, and how gRPC documents it too.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(fail("the socket has no path"));
            }
            return Ok(Self::Unix(path.into()));
        }
        if text.starts_with("https://") {
            return Err(fail(
                "TLS is a matter of certificates (tls), not of the address",
            ));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| fail("the port is missing"))?;
        let port = port
            .parse()
            .map_err(|_| fail("the port is not a number up to 65535"))?;
        let host = match host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
        {
            Some(inner) => inner,
            None if host.contains(':') => return Err(fail("an IPv6 address needs brackets")),
            None => host,
        };
        if host.is_empty() {
            return Err(fail("the host is missing"));
        }
        if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@[]\\".contains(c)) {
            return Err(fail("the host has characters that no host name has"));
        }
        Ok(Self::Tcp {
            host: host.into(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "http://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "http://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
