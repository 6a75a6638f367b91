//! The state folder: sockets, rendered configurations, and who is running.

use std::{
    env,
    fs::{self, DirBuilder, File, TryLockError},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::failure::usage;

/// Longest path of a Unix socket, without the terminating zero.
const MAX_SOCKET_PATH: usize = 107;
/// Between two tries to lock a folder.
const PAUSE: Duration = Duration::from_millis(50);

/// A folder that belongs to one `up` as long as it runs.
#[derive(Debug)]
pub(super) struct StateFolder {
    path: PathBuf,
    /// Held, never read.
    _lock: File,
}

/// Who is running, for people and scripts: `state.json` in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Process id of `up`.
    pub(super) pid: u32,
    /// Address of the HTTP API.
    pub(super) url: String,
    /// Name that clients use for the model.
    pub(super) model: String,
    /// Whether requests are answered.
    pub(super) ready: bool,
    /// The policy that requests get, and why it is not the one asked for.
    pub(super) policy: String,
    /// The services.
    pub(crate) services: Vec<ServiceState>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceState {
    /// Name of the process.
    pub(crate) name: String,
    /// Its id; none while it does not run.
    pub(super) pid: Option<u32>,
    /// Whether it serves.
    pub(super) ready: bool,
    /// URL of its metrics and rounds; none while it does not serve.
    #[serde(default)]
    pub(crate) metrics: Option<String>,
    /// How often it was started again.
    pub(super) restarts: u32,
}

impl ServiceState {
    /// It does not run any more.
    pub(super) fn stopped(&mut self) {
        self.pid = None;
        self.ready = false;
        self.metrics = None;
    }
}

impl StateFolder {
    /// Opens `path`, or the default folder of the deployment called `name`, and locks it.
    pub(super) fn open(path: Option<&Path>, name: &str) -> anyhow::Result<Self> {
        let given = path;
        let path = path.map_or_else(|| default_folder(name), Path::to_owned);
        let create = || -> std::io::Result<(PathBuf, File)> {
            // Sockets and keys are in it.
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)?;
            let path = fs::canonicalize(&path)?;
            let lock = File::create(path.join("lock"))?;
            Ok((path, lock))
        };
        let (path, lock) = create().with_context(|| {
            let path = path.display();
            match given {
                Some(_) => format!("cannot use {path}, which --state-dir names, as state folder"),
                None => format!(
                    "cannot use {path} as state folder: name another one with --state-dir, or set \
                     XDG_STATE_HOME"
                ),
            }
        })?;
        match lock_soon(&lock, || thread::sleep(PAUSE)) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(&path)),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(Self { path, _lock: lock })
    }

    /// A file of the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The socket of a service.
    pub(super) fn socket(&self, name: &str) -> anyhow::Result<PathBuf> {
        let socket = self.path.join(format!("{name}.sock"));
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            let path = socket.display();
            return Err(usage(format!(
                "{path} is too long for a socket ({MAX_SOCKET_PATH} bytes): choose a shorter \
                 --state-dir"
            )));
        }
        Ok(socket)
    }

    /// Writes `state.json`, all of it or nothing.
    pub(super) fn save(&self, state: &State) -> anyhow::Result<()> {
        let (new, path) = (self.file("state.json.new"), self.file("state.json"));
        let text = serde_json::to_string_pretty(state)?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes `state.json`: nothing runs any more.
    pub(super) fn clear(&self) {
        // It may never have been written.
        let _ = fs::remove_file(self.file("state.json"));
    }
}

/// Locks a file, or says who has it. One that looks whether it is locked, as `top` does, has it for
/// an instant, and so has a process forked beside it until it runs its own program: such are waited
/// for.
fn lock_soon(lock: &File, mut pause: impl FnMut()) -> Result<(), TryLockError> {
    for _ in 0..20 {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => pause(),
            other => return other,
        }
    }
    lock.try_lock()
}

fn in_use(path: &Path) -> anyhow::Error {
    let who = match read(path) {
        Some(State { pid, url, .. }) => format!("process {pid}, {url}"),
        None => "it is starting".to_owned(),
    };
    anyhow::anyhow!(
        "another `foretoken up` uses {} ({who}): stop it, or choose another --state-dir",
        path.display()
    )
}

/// What the `up` that uses a folder says of itself; none while it is starting, or if there is none.
pub(crate) fn read(folder: &Path) -> Option<State> {
    let text = fs::read_to_string(folder.join("state.json")).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether an `up` runs that uses this folder.
pub(crate) fn is_in_use(folder: &Path) -> bool {
    let held = |lock: File| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
    File::open(folder.join("lock")).is_ok_and(held)
}

/// The default folders that are in use.
pub(crate) fn folders_in_use() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(default_root()) else {
        return Vec::new();
    };
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders: Vec<PathBuf> = folders.filter(|folder| is_in_use(folder)).collect();
    folders.sort();
    folders
}

/// A folder of its own for each deployment.
pub(crate) fn default_folder(name: &str) -> PathBuf {
    default_root().join(name)
}

/// By the rules for a user's state on Linux.
fn default_root() -> PathBuf {
    let state = match (env::var_os("XDG_STATE_HOME"), env::var_os("HOME")) {
        (Some(state), _) if !state.is_empty() => PathBuf::from(state),
        (_, Some(home)) if !home.is_empty() => PathBuf::from(home).join(".local/state"),
        _ => env::temp_dir(),
    };
    state.join("foretoken")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let services = vec![ServiceState {
            name: "t".into(),
            pid: Some(2),
            ready: true,
            metrics: Some("http://h:2".into()),
            restarts: 1,
        }];
        State {
            pid: 1,
            url: "http://h:1".into(),
            model: "m".into(),
            ready: true,
            policy: "Speculative".into(),
            services,
        }
    }

    #[test]
    fn a_second_up_on_the_folder_is_told_who_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateFolder::open(Some(folder.path()), "a").unwrap();
        first.save(&state()).unwrap();
        let error = StateFolder::open(Some(folder.path()), "a")
            .unwrap_err()
            .to_string();
        assert!(error.contains("process 1, http://h:1"), "{error}");
        assert!(is_in_use(folder.path()));
        assert!(!is_in_use(&folder.path().join("nothing")));
    }

    #[test]
    fn what_a_dead_one_left_is_free() {
        let folder = tempfile::tempdir().unwrap();
        drop(StateFolder::open(Some(folder.path()), "a").unwrap());
        // Other tests of this process fork, and a child has the lock until it runs its program.
        let free = |_| {
            thread::sleep(Duration::from_millis(20));
            !is_in_use(folder.path())
        };
        assert!((0..500).any(free));
    }

    #[test]
    fn one_that_looks_at_the_lock_stops_none_that_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = File::create(&path).unwrap();
        let looking = File::open(&path).unwrap();
        looking.try_lock_shared().unwrap();
        let mut looking = Some(looking);
        let pause = || {
            // Other tests of this process fork, and a child looks on until it runs its program.
            if looking.take().is_none() {
                thread::sleep(PAUSE);
            }
        };
        lock_soon(&lock, pause).unwrap();
        assert!(looking.is_none(), "nobody was waited for");
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(90));
        let state = StateFolder::open(Some(&deep), "a").unwrap();
        let error = state.socket("target-0").unwrap_err().to_string();
        assert!(error.contains("shorter --state-dir"), "{error}");
    }

    #[test]
    fn a_new_folder_is_for_its_user_alone() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(Some(&folder.path().join("a/b")), "a").unwrap();
        let mode = fs::metadata(&state.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn the_state_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let dir = StateFolder::open(Some(folder.path()), "a").unwrap();
        dir.save(&state()).unwrap();
        assert_eq!(read(folder.path()), Some(state()));
        dir.clear();
        assert!(!dir.file("state.json").exists());
    }
}
