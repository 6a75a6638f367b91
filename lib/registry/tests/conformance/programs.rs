//! etcd and an API server of a test's own: the programs that `make cluster` builds.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long a program may take to start.
const START: Duration = Duration::from_secs(90);
/// How often a program is started that ends because others have got its ports before it.
pub(crate) const TRIES: usize = 5;

/// Where the programs are. Without them nothing is tested, loudly; with
/// `FORETOKEN_TEST_CLUSTER=required` that is a failure.
pub(crate) fn folder() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map_or_else(
        || Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    let folders = fs::read_dir(cache.join("foretoken/cluster"));
    let built = folders.into_iter().flatten().flatten();
    let built = built.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kubernetes-") && path.join("etcd").exists()
    });
    let newest = built.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok());
    if newest.is_none() {
        let message = "no etcd: `make cluster` builds it";
        let required = env::var("FORETOKEN_TEST_CLUSTER").as_deref() == Ok("required");
        assert!(!required, "{message}");
        eprintln!("NOT RUN, nothing was tested: {message}");
    }
    newest
}

/// Ports that nobody listens on. None is of those that systems give to whoever asks for any, which another
/// may be given before it is bound here, or while what has it is started again.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let draw = || loop {
        let port = 15_000 + (RandomState::new().hash_one(()) % 15_000) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return (listener, port);
        }
    };
    // Held until all are there, so that none is drawn twice.
    let drawn = [(); N].map(|()| draw());
    drawn.map(|(_, port)| port)
}

/// A program that can be ended, started again, and held.
pub(crate) struct Program {
    executable: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    pub(crate) fn start(executable: PathBuf, arguments: Vec<String>, log: PathBuf) -> Self {
        let mut program = Self {
            executable,
            arguments,
            log,
            child: None,
        };
        program.run();
        program
    }

    /// Starts it again.
    pub(crate) fn run(&mut self) {
        let mut log = fs::File::options();
        let log = log.create(true).append(true).open(&self.log).unwrap();
        let child = Command::new(&self.executable)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    /// This program, once somebody listens on `port`; none if it ends before.
    pub(crate) fn listening(mut self, port: u16) -> Option<Self> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < START, "it does not start");
            thread::sleep(Duration::from_millis(20));
            if self.has_ended() {
                return None;
            }
        }
        (!self.has_ended()).then_some(self)
    }

    fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().unwrap();
        child.try_wait().unwrap().is_some()
    }

    /// Waits until `answers`.
    pub(crate) async fn wait(&mut self, mut answers: impl AsyncFnMut() -> bool) {
        let began = Instant::now();
        while !answers().await {
            let ended = self.has_ended();
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(10)..].join("\n");
            assert!(
                !ended && began.elapsed() < START,
                "it does not start: {last}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// etcd with an empty folder, on ports of its own.
pub(crate) struct Etcd {
    pub(crate) program: Program,
    pub(crate) port: u16,
    folder: TempDir,
}

impl Etcd {
    /// Starts one with `options` more.
    pub(crate) fn start(programs: &Path, scheme: &str, options: &[String]) -> Self {
        let mut tries = (0..TRIES).map(|_| Self::try_start(programs, scheme, options));
        let started = tries.find_map(|etcd| etcd);
        started.expect("etcd starts")
    }

    fn try_start(programs: &Path, scheme: &str, options: &[String]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let [port, peers] = free_ports();
        let [url, peers] = [(scheme, port), ("http", peers)]
            .map(|(scheme, port)| format!("{scheme}://127.0.0.1:{port}"));
        let mut arguments = vec![
            format!("--data-dir={}", folder.path().join("data").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        arguments.extend_from_slice(options);
        let log = folder.path().join("etcd.log");
        let program = Program::start(programs.join("etcd"), arguments, log);
        Some(Self {
            program: program.listening(port)?,
            port,
            folder,
        })
    }

    /// Removes all that it knows.
    pub(crate) fn forget(&self) {
        fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }
}
