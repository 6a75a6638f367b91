//! The static backend: a YAML or JSON file.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use foretoken_protocol::files::Version;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Interval, MissedTickBehavior},
};

use crate::{
    Directory, DirectoryError, Health, Interest, Registry,
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
        Self::open_for(path, Interest::All)
    }

    /// The same, without what is not of `interest`.
    pub fn open_for(path: impl Into<PathBuf>, interest: Interest) -> Result<Self, RegistryError> {
        let (file, listed) = File::open(path.into(), interest)?;
        let first = Resolution::default().expand(&listed);
        let source = file.path.display().to_string();
        let (publisher, publication) = Publisher::new(source, first, Health::Current);
        let poll = tokio::spawn(poll(file, listed, publisher));
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

/// A file that is read when it changes.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    interest: Interest,
    known: Option<Version>,
}

impl File {
    /// Opens `path` and reads what it says of who is of `interest`.
    pub(crate) fn open(
        path: PathBuf,
        interest: Interest,
    ) -> Result<(Self, Directory), RegistryError> {
        let known = Version::of(&path);
        let directory = interest.of(read_directory(&path)?);
        let file = Self {
            path,
            interest,
            known,
        };
        Ok((file, directory))
    }

    /// What it says, if it has changed since it was read last, or could not be read then.
    pub(crate) fn look(&mut self) -> Option<Result<Directory, RegistryError>> {
        let version = Version::of(&self.path);
        if version == self.known {
            return None;
        }
        let read = read_directory(&self.path);
        let is_unreadable = matches!(&read, Err(RegistryError::Read { source, .. })
            if source.kind() != io::ErrorKind::InvalidData);
        // Why it could not be read may pass without a change of the file.
        self.known = if is_unreadable { None } else { version };
        Some(read.map(|directory| self.interest.of(directory)))
    }
}

async fn poll(mut file: File, mut listed: Directory, publisher: Publisher) {
    let mut resolution = Resolution::default();
    let mut looks = looks();
    // The first is at once.
    let mut resolutions = tokio::time::interval(RESOLVE);
    resolutions.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => match file.look() {
                Some(Ok(directory)) => {
                    resolution.carry_over(&listed.pools, &directory.pools);
                    listed = directory;
                    publisher.current();
                    resolution.refresh(&listed.pools);
                }
                Some(Err(error)) => {
                    publisher.stale(crate::in_full(&error));
                    continue;
                }
                None => continue,
            },
            _ = resolutions.tick() => resolution.refresh(&listed.pools),
            () = resolution.next() => {}
        }
        publisher.publish(resolution.expand(&listed));
    }
}

/// When a file is looked at.
pub(crate) fn looks() -> Interval {
    let mut timer = tokio::time::interval(POLL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
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
