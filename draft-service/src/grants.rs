//! Which namespaces may use the endpoint, from a file that may change.

use std::{fs, io, path::PathBuf, time::Duration};

use foretoken_protocol::link::Grants;
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// How often the file is read. It is small, and a change need not show in its metadata.
const LOOK: Duration = Duration::from_millis(500);

/// Why a file says nothing of grants.
#[derive(Debug, thiserror::Error)]
pub enum GrantsError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "{} is not valid: {message}; it must be \"all\" or {{\"only\": [\"NAMESPACE\"]}}",
        path.display()
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
}

/// A file of grants. A broken edit changes nothing.
#[derive(Debug)]
pub(crate) struct GrantsFile {
    path: PathBuf,
    grants: watch::Sender<Grants>,
}

impl GrantsFile {
    /// Reads the file, which has to succeed the first time.
    pub(crate) fn open(path: PathBuf) -> Result<Self, GrantsError> {
        let grants = watch::Sender::new(read(&path)?);
        Ok(Self { path, grants })
    }

    /// What it says, now and later.
    pub(crate) fn watch(&self) -> watch::Receiver<Grants> {
        self.grants.subscribe()
    }

    /// Looks at the file until `end`.
    pub(crate) async fn follow(self, end: CancellationToken) -> io::Result<()> {
        let Self { path, grants } = self;
        let mut timer = tokio::time::interval(LOOK);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_broken = false;
        loop {
            tokio::select! {
                () = end.cancelled() => return Ok(()),
                _ = timer.tick() => {}
            }
            match read(&path) {
                Ok(new) => {
                    is_broken = false;
                    let is_news = grants.send_if_modified(|known| {
                        let is_news = *known != new;
                        known.clone_from(&new);
                        is_news
                    });
                    if is_news {
                        tracing::info!(grants = ?new, "who may use this endpoint has changed");
                    }
                }
                Err(error) if !is_broken => {
                    is_broken = true;
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "keeping the last good grants");
                }
                Err(_) => {}
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<Grants, GrantsError> {
    let text = fs::read(path).map_err(|source| GrantsError::Read {
        path: path.clone(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|error| GrantsError::Parse {
        path: path.clone(),
        message: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_told_and_a_broken_file_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grants.json");
        let only = |name: &str| Grants::Only([name.to_owned()].into());
        assert!(GrantsFile::open(path.clone()).is_err(), "not there");
        fs::write(&path, r#"{"only": ["chat"]}"#).expect("a file");
        let file = GrantsFile::open(path.clone()).expect("good");
        let mut grants = file.watch();
        let end = CancellationToken::new();
        let following = tokio::spawn(file.follow(end.clone()));
        assert_eq!(*grants.borrow_and_update(), only("chat"));
        fs::write(&path, "everybody").expect("a file");
        let silence = tokio::time::timeout(3 * LOOK, grants.changed()).await;
        assert!(silence.is_err(), "the last good ones stay");
        fs::write(&path, "\"all\"").expect("a file");
        grants.changed().await.expect("it is followed");
        assert_eq!(*grants.borrow_and_update(), Grants::All);
        end.cancel();
        following.await.expect("no panic").expect("no error");
    }
}
