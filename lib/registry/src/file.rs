//! The static backend: a YAML or JSON file.

use std::{
    error::Error as _,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::{
    Directory, DirectoryError, Health, Registry,
    publication::{Publication, Publisher},
    resolution::Resolution,
};

/// How often the file is looked at. A look is one `stat`.
const POLL: Duration = Duration::from_millis(200);
/// How often names of pools are resolved.
const RESOLVE: Duration = Duration::from_secs(1);

/// Why a directory file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no directory; the message has the line.
    #[error("{} is not a directory of targets and endpoints: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// The file contradicts itself.
    #[error("{} cannot be used", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// How.
        source: DirectoryError,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A directory in a file that is read again when it changes. A broken edit changes nothing: the
/// last good directory stays, and the log says what is wrong with the file.
#[derive(Debug)]
pub struct StaticRegistry {
    publication: Publication,
    poll: JoinHandle<()>,
}

impl StaticRegistry {
    /// Reads `path` (YAML, of which JSON is a part) and watches it, on the current tokio runtime.
    /// The first read has to succeed. What pools stand for comes a moment later, since names take
    /// time to resolve.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, RegistryError> {
        let path = path.into();
        let stamp = Stamp::of(&path);
        let file = read_directory(&path)?;
        let first = Resolution::default().expand(&file);
        let source = path.display().to_string();
        let (publisher, publication) = Publisher::new(source, first, Health::Current);
        let poll = tokio::spawn(poll(path, stamp, file, publisher));
        Ok(Self { publication, poll })
    }
}

impl Registry for StaticRegistry {
    fn watch(&self) -> watch::Receiver<Arc<Directory>> {
        self.publication.watch()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.publication.health()
    }
}

impl Drop for StaticRegistry {
    fn drop(&mut self) {
        self.poll.abort();
    }
}

/// What tells one version of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    len: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self {
            modified: file.modified().ok()?,
            len: file.len(),
            // An atomic replacement within the clock's resolution still changes the inode.
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&file),
        })
    }
}

async fn poll(path: PathBuf, mut known: Option<Stamp>, mut file: Directory, publisher: Publisher) {
    let mut resolution = Resolution::default();
    let mut resolved: Option<Instant> = None;
    let mut timer = tokio::time::interval(POLL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let stamp = Stamp::of(&path);
        let is_new = stamp != known;
        if is_new {
            known = stamp;
            match read_directory(&path) {
                Ok(directory) => {
                    file = directory;
                    publisher.current();
                }
                Err(error) => publisher.stale(in_full(&error)),
            }
        }
        let is_due = resolved.is_none_or(|at| at.elapsed() >= RESOLVE);
        if !file.pools.is_empty() && (is_new || is_due) {
            resolution.refresh(&file.pools).await;
            resolved = Some(Instant::now());
        } else if !is_new {
            continue;
        }
        publisher.publish(resolution.expand(&file));
    }
}

/// What went wrong, with its causes.
fn in_full(error: &RegistryError) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn read_directory(path: &Path) -> Result<Directory, RegistryError> {
    let text = fs::read_to_string(path).map_err(|source| RegistryError::Read {
        path: path.into(),
        source,
    })?;
    let directory: Directory =
        serde_saphyr::from_str(&text).map_err(|error| RegistryError::Parse {
            path: path.into(),
            message: error.to_string(),
        })?;
    directory
        .check()
        .map_err(|source| RegistryError::Inconsistent {
            path: path.into(),
            source,
        })?;
    Ok(directory)
}

/// Writes `directory` to `path` so that a reader sees the old file or the new one, never half.
pub fn write_directory(path: &Path, directory: &Directory) -> Result<(), RegistryError> {
    directory
        .check()
        .map_err(|source| RegistryError::Inconsistent {
            path: path.into(),
            source,
        })?;
    let fail = |source| RegistryError::Write {
        path: path.into(),
        source,
    };
    let json = serde_json::to_vec_pretty(directory).map_err(|error| fail(error.into()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let staged = path.with_file_name(name);
    let written = fs::File::create(&staged)
        .and_then(|mut file| file.write_all(&json).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&staged, path));
    written.map_err(|source| {
        // The failure to report is the first one.
        let _ = fs::remove_file(&staged);
        fail(source)
    })
}

#[cfg(test)]
mod tests;
