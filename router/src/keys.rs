//! API keys: who may ask.
//!
//! Keys come from the configuration, and from a file or a folder of files (a mounted Secret) that is
//! read again when it changes. Only their digests are kept, and digests are compared in a time that
//! tells nothing about them.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use blake3::Hash;

/// How often the files are read, at most, and only if somebody asks. They are small.
const LOOK: Duration = Duration::from_millis(500);

/// Longest file that is taken for keys.
const LONGEST: u64 = 1 << 20;

/// Why keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file or folder cannot be read.
    #[error("cannot read API keys from {}: {source}", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no key: everybody would be let in, or nobody.
    #[error("{} has no API keys: put one on each line, or do not name it", .0.display())]
    None(PathBuf),
    /// Something is no key.
    #[error("a line of {} is no API key: keys are printable and have no spaces", .0.display())]
    NoKey(PathBuf),
}

/// The keys that are good now.
#[derive(Debug)]
pub(crate) struct Keys {
    fixed: Vec<Hash>,
    from: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    looked: Instant,
    read: Arc<BTreeSet<[u8; 32]>>,
    is_broken: bool,
}

impl Keys {
    /// The keys `fixed`, and those in the file or folder `from`.
    pub(crate) fn open(fixed: &[String], from: Option<&Path>) -> Result<Self, KeysError> {
        let read = from.map(read).transpose()?.unwrap_or_default();
        Ok(Self {
            fixed: fixed.iter().map(|key| digest(key)).collect(),
            from: from.map(Path::to_owned),
            state: Mutex::new(State {
                looked: Instant::now(),
                read: Arc::new(read),
                is_broken: false,
            }),
        })
    }

    /// Whether whoever brings `given` may ask.
    pub(crate) fn allow(&self, given: Option<&str>) -> bool {
        if self.fixed.is_empty() && self.from.is_none() {
            return true;
        }
        let Some(given) = given else { return false };
        let given = digest(given);
        // No early end: the time says nothing about which key it was.
        let read = self.current();
        let read = read.iter().copied().map(Hash::from_bytes);
        let all = self.fixed.iter().copied().chain(read);
        all.map(|key| usize::from(key == given)).sum::<usize>() > 0
    }

    /// What the files say. If they cannot be used, what they said last: a mistake lets nobody in, and
    /// keeps nobody out.
    fn current(&self) -> Arc<BTreeSet<[u8; 32]>> {
        let Some(from) = &self.from else {
            return Arc::default();
        };
        // Nothing in the section can leave the state half changed.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() < LOOK {
            return Arc::clone(&state.read);
        }
        state.looked = Instant::now();
        match read(from) {
            Ok(keys) => {
                if keys != *state.read {
                    tracing::info!(number = keys.len(), "API keys have changed");
                }
                state.read = Arc::new(keys);
                state.is_broken = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut state.is_broken, true) {
                    tracing::warn!(%error, "the API keys that were read last stay good");
                }
            }
        }
        Arc::clone(&state.read)
    }
}

fn digest(key: &str) -> Hash {
    blake3::hash(key.as_bytes())
}

/// Whether there are keys to be read in a file or folder, for whoever starts a router.
///
/// # Errors
///
/// [`KeysError`], as the router would fail with.
pub fn check_keys(path: &Path) -> Result<(), KeysError> {
    read(path).map(drop)
}

/// The digests of the keys in the file `path`, or in all files of the folder.
fn read(path: &Path) -> Result<BTreeSet<[u8; 32]>, KeysError> {
    let fail = |source| KeysError::Read {
        path: path.into(),
        source,
    };
    let mut keys = BTreeSet::new();
    for file in files(path).map_err(fail)? {
        let metadata = fs::metadata(&file).map_err(fail)?;
        if metadata.is_dir() {
            continue;
        }
        if metadata.len() > LONGEST {
            return Err(fail(io::Error::other("it is too large for keys")));
        }
        for line in fs::read_to_string(&file).map_err(fail)?.lines() {
            let key = line.trim();
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if !is_key(key) {
                return Err(KeysError::NoKey(file));
            }
            keys.insert(*digest(key).as_bytes());
        }
    }
    if keys.is_empty() {
        return Err(KeysError::None(path.into()));
    }
    Ok(keys)
}

/// The file itself, or those of a folder. In a mounted Secret, names that begin with a dot are how
/// it is replaced as a whole.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Whether a header can carry `key`.
pub(crate) fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait() {
        std::thread::sleep(LOOK + Duration::from_millis(50));
    }

    #[test]
    fn without_keys_everybody_may_ask_and_with_keys_who_brings_one() {
        let keys = Keys::open(&[], None).unwrap();
        assert!(keys.allow(None) && keys.allow(Some("any")));
        let keys = Keys::open(&["a".into(), "b".into()], None).unwrap();
        assert!(keys.allow(Some("a")) && keys.allow(Some("b")));
        assert!(!keys.allow(None) && !keys.allow(Some("c")) && !keys.allow(Some("")));
    }

    #[test]
    fn files_of_keys_are_read_again_and_a_mistake_opens_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        assert!(Keys::open(&[], Some(&path)).is_err(), "not there");
        fs::write(&path, "# nobody\n\n").unwrap();
        let error = Keys::open(&[], Some(&path)).unwrap_err();
        assert!(matches!(error, KeysError::None(_)), "{error}");
        fs::write(&path, "# ours\none\n two \n").unwrap();
        let keys = Keys::open(&["fixed".into()], Some(&path)).unwrap();
        assert!(keys.allow(Some("one")) && keys.allow(Some("two")) && keys.allow(Some("fixed")));
        assert!(!keys.allow(Some("# ours")));
        fs::write(&path, "three\n").unwrap();
        wait();
        assert!(keys.allow(Some("three")) && !keys.allow(Some("one")));
        for broken in ["", "three four\n"] {
            fs::write(&path, broken).unwrap();
            wait();
            assert!(keys.allow(Some("three")) && !keys.allow(None) && !keys.allow(Some("four")));
        }
        fs::remove_file(&path).unwrap();
        wait();
        assert!(keys.allow(Some("three")) && !keys.allow(Some("")));
    }

    #[test]
    fn a_mounted_secret_is_a_folder_with_a_file_for_each_entry() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("..data");
        fs::create_dir(&data).unwrap();
        for (name, key) in [("alice", "key-a"), ("bob", "key-b")] {
            fs::write(data.join(name), key).unwrap();
            std::os::unix::fs::symlink(data.join(name), folder.path().join(name)).unwrap();
        }
        let keys = Keys::open(&[], Some(folder.path())).unwrap();
        assert!(keys.allow(Some("key-a")) && keys.allow(Some("key-b")));
        assert!(!keys.allow(Some("alice")));
    }
}
