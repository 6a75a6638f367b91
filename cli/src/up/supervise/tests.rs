use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use foretoken_protocol::Address;
use foretoken_speculation::policy::{Lookahead, Policy};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::{sleep, timeout},
};

use super::*;
use crate::up::state;

/// Whatever is waited for is there long before.
const PATIENCE: Duration = Duration::from_secs(20);
const READY: &str = r#"echo '{"ready": {"addresses": [], "metrics": null}}'"#;

/// Services that are scripts, and what `up` keeps of them.
struct Stage {
    folder: StateFolder,
    console: Console,
    programs: Vec<Program>,
    _place: tempfile::TempDir,
}

impl Stage {
    /// One service for each script, which is run in the state folder.
    fn new(scripts: &[(Role, String)]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let program = |(index, (role, script)): (usize, &(Role, String))| Program {
            name: format!("service-{index}"),
            arguments: vec![
                "-c".into(),
                format!("cd '{}'; {script}", place.path().display()),
            ],
            environment: Vec::new(),
            role: role.clone(),
        };
        let programs: Vec<Program> = scripts.iter().enumerate().map(program).collect();
        Self {
            folder: StateFolder::open(Some(place.path()), "stage").unwrap(),
            console: Console::new(programs.iter().map(|program| program.name.as_str())),
            programs,
            _place: place,
        }
    }

    fn fleet(&self, url: &str) -> Fleet<'_> {
        let policy = Policy::Speculative(Lookahead::Fixed(4));
        let links = Links::new(
            policy,
            foretoken_crds::deployment::OnLoss::Plain,
            &self.programs,
        );
        let services = self.programs.iter().map(|program| idle(&program.name));
        Fleet {
            state: State {
                pid: 1,
                url: url.to_owned(),
                model: "m".into(),
                ready: false,
                policy: links.verdict(),
                services: services.collect(),
            },
            asks_for_keys: false,
            links,
            has_served: false,
            is_announced: false,
            folder: &self.folder,
            console: &self.console,
        }
    }

    async fn supervise(&self, url: &str, grace: Duration) -> anyhow::Result<()> {
        let running = Running::start(Path::new("/bin/sh"), self.programs.clone());
        let mut signals = Signals::new()?;
        self.fleet(url)
            .supervise(running, &mut signals, grace)
            .await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.file(name)
    }

    /// Waits until `state.json` is as wanted.
    async fn wait(&self, what: &str, is_wanted: impl Fn(&State) -> bool) {
        let folder = self.file("");
        let waited = timeout(PATIENCE, async {
            while !state::read(&folder).is_some_and(|state| is_wanted(&state)) {
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(waited.await.is_ok(), "waited in vain until {what}");
    }
}

fn draft() -> Role {
    Role::Draft {
        address: Address::loopback(1),
        weight: 1,
    }
}

/// A script that serves until a file is there, takes that away and ends. It does not begin while there
/// is a file `hold`.
fn until(file: &str) -> String {
    let wait = "while [ -e hold ]; do sleep 0.02; done";
    format!("{wait}; {READY}; while [ ! -e {file} ]; do sleep 0.02; done; rm {file}")
}

#[test]
fn a_draft_that_cannot_be_run_is_done_without_and_nothing_else_is() {
    let roles = [draft(), Role::Target, Role::Router];
    let stage = Stage::new(&roles.map(|role| (role, String::new())));
    let mut fleet = stage.fleet("http://127.0.0.1:1");
    let news = || News::Unstartable(std::io::ErrorKind::NotFound.into());
    assert!(!fleet.note(0, news()));
    let policy = "Autoregressive: endpoint service-0 could not start: entity not found";
    assert_eq!(fleet.state.policy, policy);
    assert!(fleet.note(1, news()));
    assert!(fleet.note(2, news()));
}

#[tokio::test]
async fn what_serves_is_drained_when_another_target_cannot_start() {
    let told = |name: &str| format!("{READY}; read line; echo $line > {name}-told");
    let late = "while [ ! -e go ]; do sleep 0.02; done; exit 3".to_owned();
    let stage = Stage::new(&[
        (
            Role::Target,
            format!("{}; [ -e router-told ] && touch in-order", told("target")),
        ),
        (Role::Target, late),
        (Role::Router, told("router")),
    ]);
    let supervised = stage.supervise("http://127.0.0.1:1", PATIENCE);
    let play = async {
        let serve = |state: &State| state.services[0].ready && state.services[2].ready;
        stage.wait("two serve", serve).await;
        fs::write(stage.file("go"), "").unwrap();
    };
    let (result, ()) = tokio::join!(supervised, play);
    assert!(result.is_err());
    for name in ["router-told", "target-told"] {
        let line = fs::read_to_string(stage.file(name)).unwrap_or_default();
        assert_eq!(line, "drain\n", "{name}");
    }
    assert!(stage.file("in-order").exists());
}

#[tokio::test]
async fn nothing_is_drained_before_anything_has_served() {
    let deaf = format!("{READY}; exec sleep 60");
    let stage = Stage::new(&[(Role::Target, "exit 3".to_owned()), (Role::Router, deaf)]);
    let supervised = stage.supervise("http://127.0.0.1:1", PATIENCE * 2);
    assert!(timeout(PATIENCE, supervised).await.unwrap().is_err());
}

#[tokio::test]
async fn what_hangs_is_ended_however_much_it_has_to_say() {
    let loud = r#"while :; do echo '{"loading": {"done": 0, "total": 1}}'; done"#;
    let stage = Stage::new(&[
        (Role::Target, format!("{READY}; {loud}")),
        (Role::Router, format!("{READY}; exec sleep 60")),
    ]);
    let mut fleet = stage.fleet("http://127.0.0.1:1");
    let mut running = Running::start(Path::new("/bin/sh"), stage.programs.clone());
    let mut signals = Signals::new().unwrap();
    let grace = Duration::from_millis(300);
    let ended = fleet.wind_down(&mut running, &mut signals, grace);
    let is_whole = timeout(PATIENCE, ended).await;
    assert_eq!(
        is_whole,
        Ok(false),
        "it has to end, and to say that it was cut"
    );
}

/// Answers everything with 200 or 503, as is said.
async fn answer(listener: TcpListener, is_ready: Arc<AtomicBool>) {
    loop {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1024];
        let _ = connection.read(&mut asked).await.unwrap();
        let status = if is_ready.load(Ordering::Relaxed) {
            200
        } else {
            503
        };
        let text =
            format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        // Whoever has asked may be gone.
        let _ = connection.write_all(text.as_bytes()).await;
    }
}

#[tokio::test]
async fn ready_is_true_only_while_a_router_and_a_target_serve() {
    let stage = Stage::new(&[
        (Role::Target, until("end-target-0")),
        (Role::Target, until("end-target-1")),
        (Role::Router, until("end-router")),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let is_ready = Arc::new(AtomicBool::new(true));
    let end = |name: &str| fs::write(stage.file(name), "").unwrap();
    let play = async {
        stage.wait("all is ready", |state| state.ready).await;
        end("end-target-0");
        let is_back = |state: &State| state.services[0].restarts == 1 && state.services[0].ready;
        stage.wait("a target is back", is_back).await;
        for dead in [&["end-router"][..], &["end-target-0", "end-target-1"]] {
            // Whoever comes back is not used yet, and nobody does before all of them have gone.
            is_ready.store(false, Ordering::Relaxed);
            fs::write(stage.file("hold"), "").unwrap();
            for name in dead {
                end(name);
            }
            stage.wait("nothing is ready", |state| !state.ready).await;
            fs::remove_file(stage.file("hold")).unwrap();
            is_ready.store(true, Ordering::Relaxed);
            stage.wait("all is ready again", |state| state.ready).await;
        }
    };
    tokio::select! {
        result = stage.supervise(&url, PATIENCE) => panic!("{result:?}"),
        () = answer(listener, Arc::clone(&is_ready)) => {}
        () = play => {}
    }
}

#[tokio::test]
async fn a_draft_that_dies_while_it_loads_keeps_nobody_waiting() {
    let serving = format!("{READY}; exec sleep 60");
    let stage = Stage::new(&[
        (draft(), "kill -9 $$".to_owned()),
        (Role::Target, serving.clone()),
        (Role::Router, serving),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::select! {
        result = stage.supervise(&url, PATIENCE) => panic!("{result:?}"),
        () = answer(listener, Arc::new(AtomicBool::new(true))) => {}
        () = stage.wait("the others are ready", |state| state.ready) => {}
    }
}

#[test]
fn an_address_for_everybody_is_shown_as_one_that_can_be_used() {
    assert_eq!(reachable("0.0.0.0:8000"), "127.0.0.1:8000");
    assert_eq!(reachable("[::]:1"), "[::1]:1");
    assert_eq!(reachable("10.0.0.1:1"), "10.0.0.1:1");
}

#[test]
fn orders_only_rise() {
    let mut order = Order::Kill;
    assert!(!raise(&mut order, Order::Drain));
    assert_eq!(order, Order::Kill);
}
