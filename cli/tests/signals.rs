//! Signals to the first process of a container, which the system ends for none that it does not watch.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Whatever is waited for is there long before.
const PATIENCE: Duration = Duration::from_secs(20);

/// What makes a program the first process of a namespace, and ends it with itself.
const FIRST: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--",
];

/// A router that is to fetch its model, and has somebody to ask then.
const ROUTER: [&str; 5] = [
    "router",
    "--model",
    "hf://a/b",
    "--target",
    "http://127.0.0.1:9",
];

/// Whether this machine lets programs be first processes. Where `FORETOKEN_TEST_CLUSTER=required` it has to.
fn can_be_first() -> bool {
    let tried = Command::new("unshare").args(FIRST).arg("true").output();
    let why = match tried {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("`unshare` is not possible here: {why}");
    let required = env::var("FORETOKEN_TEST_CLUSTER").as_deref() == Ok("required");
    assert!(!required, "{message}");
    eprintln!("NOT RUN, nothing was tested: {message}");
    false
}

fn wait<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// `foretoken` as the first process of a namespace.
struct First {
    /// `unshare`, which ends as its child does.
    outside: Child,
}

impl First {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let outside = Command::new("unshare")
            .args(FIRST)
            .arg(env!("CARGO_BIN_EXE_foretoken"))
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            outside: outside.unwrap(),
        }
    }

    /// Sends it a signal as whoever stops containers does, from outside.
    fn signal(&self, name: &str) {
        let parent = format!("PPid:\t{}\n", self.outside.id());
        let pid = wait("the first process", || {
            let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
                let name = entry.unwrap().file_name();
                name.to_str()?.parse::<u32>().ok()
            });
            let status = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/status"));
            let mut pids = pids.filter(|pid| status(pid).is_ok_and(|it| it.contains(&parent)));
            pids.next()
        });
        let sent = Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn end(&mut self, what: &str) -> ExitStatus {
        wait(what, || self.outside.try_wait().unwrap())
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // Its child ends with it.
        let _ = self.outside.kill();
        let _ = self.outside.wait();
    }
}

/// A hub that never answers, and what tells that it was asked.
fn silent_hub() -> (String, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (connections, asked) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            if connections.send(connection.unwrap()).is_err() {
                return;
            }
        }
    });
    (url, asked)
}

#[test]
fn the_first_process_of_a_container_ends_at_once_while_it_does_not_serve_yet() {
    if !can_be_first() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let file = folder.path().join("file.yaml");
    let text = "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: a}
spec: {model: {uri: \"hf://a/b\"}}
";
    fs::write(&file, text).unwrap();
    let up = ["up", "--port", "0", "--state-dir", place];
    let up = [&up[..], &["-f", file.to_str().unwrap()]].concat();
    for (arguments, signal, code) in [
        (&["fetch", "hf://a/b"][..], "TERM", 143),
        (&["fetch", "hf://a/b"], "INT", 130),
        (&["generate", "--model", "hf://a/b", "Tom"], "TERM", 143),
        (&["target", "--model", "hf://a/b"], "TERM", 143),
        (&["draft", "--model", "hf://a/b"], "INT", 130),
        (&ROUTER, "TERM", 143),
        (&up, "TERM", 143),
    ] {
        let (hub, asked) = silent_hub();
        let variables = [
            ("HF_ENDPOINT", hub.as_str()),
            ("HF_HUB_CACHE", place),
            ("NO_PROXY", "*"),
        ];
        let mut first = First::start(arguments, &variables);
        let _held = asked.recv_timeout(PATIENCE).unwrap();
        first.signal(signal);
        let ended = first.end(&format!("the end of {arguments:?} by {signal}"));
        assert_eq!(ended.code(), Some(code), "{arguments:?}");
    }
}

/// Whether who serves metrics there is well; none while nobody says so.
fn is_well(address: &str) -> Option<bool> {
    let mut connection = TcpStream::connect(address).ok()?;
    let asked = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    connection.write_all(asked).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(true)
}

/// A target that serves, on a port that was free; none if somebody else got it first.
fn serving() -> Option<First> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let arguments = ["target", "--simulated", "step-us=1", "--metrics-listen"];
    let mut first = First::start(&[&arguments[..], &[&address]].concat(), &[]);
    let serves = wait("a target that serves or ends", || {
        let has_ended = first.outside.try_wait().unwrap().is_some();
        if has_ended {
            Some(false)
        } else {
            is_well(&address)
        }
    });
    serves.then_some(first)
}

#[test]
fn the_first_process_of_a_container_drains_once_it_serves() {
    if !can_be_first() {
        return;
    }
    let mut tries = (0..5).map(|_| serving());
    let mut first = tries.find_map(|first| first).unwrap();
    first.signal("TERM");
    assert_eq!(first.end("the end of a target").code(), Some(0));
}
