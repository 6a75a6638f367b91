//! Services that show each other certificates, over real sockets.

mod authority;
mod generate;
mod links;

use std::path::PathBuf;

use foretoken_protocol::tls::{Role, Tls, TlsFiles};
use tempfile::TempDir;

use authority::Authority;

/// Somewhere certificates lie, and whose they are.
struct Place {
    folder: TempDir,
    authority: Authority,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: TempDir::new().expect("a folder"),
            authority: Authority::new("ca"),
        }
    }

    /// The folder of a service, whose name may have other files before and after.
    fn folder(&self, role: Role, namespace: &str) -> PathBuf {
        self.folder.path().join(format!("{role}-{namespace}"))
    }

    /// What the service `story` with this role and namespace has.
    fn tls(&self, role: Role, namespace: &str) -> Tls {
        let name = format!("spiffe://foretoken/ns/{namespace}/{role}/story");
        let folder = self.folder(role, namespace);
        let [certificate, key, ca] = self.authority.write(&folder, &name);
        let files = TlsFiles {
            certificate,
            key,
            ca,
        };
        Tls::open(&files, role).expect("its files are good")
    }
}
