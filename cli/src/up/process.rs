//! One supervised process: started, listened to, started again when it dies.

use std::{
    env, io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{mpsc, watch},
    time::sleep,
};

use super::render::Program;
use crate::{child::API_KEY, report::Report, stop::DRAIN};

/// Pause before the first restart; it doubles with each one after a short life.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A life from which on the next pause is the first one again.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// What a process is to do. Orders only rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// Run, and be started again.
    Run,
    /// Finish what is under way, take nothing new, end.
    Drain,
    /// End at once.
    Kill,
}

/// What became known of a process.
#[derive(Debug)]
pub(super) struct Event {
    /// Index of the process.
    pub(super) index: usize,
    /// What it is.
    pub(super) news: News,
}

/// See [`Event`].
#[derive(Debug)]
pub(super) enum News {
    /// It was started, for the n-th time after the first.
    Started { pid: Option<u32>, restarts: u32 },
    /// It said something about itself.
    Reported(Report),
    /// It logged a line.
    Logged(String),
    /// It ended, or could not be started again, and is started after the pause.
    Died {
        end: io::Result<ExitStatus>,
        pause: Duration,
    },
    /// It ended by itself before it ever served: there is no use in starting it again.
    Failed { status: ExitStatus },
    /// It could not be started, and never served.
    Unstartable(io::Error),
    /// It ended after it was told to; no status if it did not run at that time.
    Ended { status: Option<ExitStatus> },
}

impl News {
    /// Whether the process will not run any more.
    pub(super) fn is_last(&self) -> bool {
        match self {
            Self::Started { .. } | Self::Reported(_) | Self::Logged(_) | Self::Died { .. } => false,
            Self::Failed { .. } | Self::Unstartable(_) | Self::Ended { .. } => true,
        }
    }
}

/// Where a process's news go.
#[derive(Clone, Debug)]
struct Outlet {
    index: usize,
    events: mpsc::Sender<Event>,
}

impl Outlet {
    /// A supervisor that listens no more is about to drop everything.
    async fn tell(&self, news: News) {
        let _ = self
            .events
            .send(Event {
                index: self.index,
                news,
            })
            .await;
    }
}

/// Pauses between restarts.
#[derive(Debug)]
struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: FIRST_PAUSE }
    }
}

impl Pauses {
    /// The pause after a life of this length.
    fn after(&mut self, life: Duration) -> Duration {
        if life > LONG_LIFE {
            self.next = FIRST_PAUSE;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// Runs `program` until told to stop, or until it proves unable to start.
pub(super) async fn keep_running(
    executable: PathBuf,
    program: Program,
    index: usize,
    events: mpsc::Sender<Event>,
    mut orders: watch::Receiver<Order>,
) {
    let outlet = Outlet { index, events };
    let mut has_served = false;
    let mut pauses = Pauses::default();
    let mut restarts = 0;
    loop {
        let started = Instant::now();
        let end = match start(&executable, &program) {
            Ok(mut child) => {
                let pid = child.id();
                outlet.tell(News::Started { pid, restarts }).await;
                restarts += 1;
                let served = forward(&mut child, &outlet);
                let end = wait(&mut child, &mut orders).await;
                // One that could not be waited for is killed by that, and so ends what it says.
                drop(child);
                has_served |= served.await.unwrap_or(false);
                end
            }
            Err(error) => Err(error),
        };
        let is_told = *orders.borrow() > Order::Run;
        if is_told {
            let status = end.ok();
            return outlet.tell(News::Ended { status }).await;
        }
        match end {
            // Without a code it was killed, which says nothing about its configuration.
            Ok(status) if !has_served && status.code().is_some() => {
                return outlet.tell(News::Failed { status }).await;
            }
            Err(error) if !has_served => return outlet.tell(News::Unstartable(error)).await,
            // What has served may do so again: an executable is replaced, a machine has no room.
            end => {
                let pause = pauses.after(started.elapsed());
                outlet.tell(News::Died { end, pause }).await;
                tokio::select! {
                    () = sleep(pause) => {}
                    () = stopped(&mut orders) => {
                        return outlet.tell(News::Ended { status: None }).await;
                    }
                }
            }
        }
    }
}

/// Until there is an order to stop, or nobody left to give one.
async fn stopped(orders: &mut watch::Receiver<Order>) {
    // Its guard must not live across an await.
    let _ = orders.wait_for(|order| *order > Order::Run).await.is_ok();
}

fn start(executable: &PathBuf, program: &Program) -> io::Result<Child> {
    let is_new = |(name, _): &&(&str, String)| env::var_os(name).is_none();
    let environment = program.environment.iter().filter(is_new);
    Command::new(executable)
        .args(&program.arguments)
        // Keys are in the router's configuration; there a variable would go before `--api-key` of `up`.
        .env_remove(API_KEY)
        .envs(environment.map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A Ctrl-C at the terminal is for `up`, which drains in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Waits for the end, passing orders on.
async fn wait(child: &mut Child, orders: &mut watch::Receiver<Order>) -> io::Result<ExitStatus> {
    // Held open: its end would tell the process that this one is gone.
    let mut input = child.stdin.take();
    let mut obeyed = Order::Run;
    loop {
        let order = *orders.borrow_and_update();
        if order > obeyed {
            obeyed = order;
            obey(order, child, &mut input).await;
        }
        tokio::select! {
            status = child.wait() => return status,
            changed = orders.changed() => if changed.is_err() {
                child.start_kill()?;
                return child.wait().await;
            },
        }
    }
}

/// Errors mean that the process has ended, which `wait` sees.
async fn obey(order: Order, child: &mut Child, input: &mut Option<ChildStdin>) {
    match order {
        Order::Run => {}
        Order::Drain => {
            if let Some(input) = input {
                let _ = input.write_all(format!("{DRAIN}\n").as_bytes()).await;
                let _ = input.flush().await;
            }
        }
        Order::Kill => {
            let _ = child.start_kill();
        }
    }
}

/// Passes on what the process says, until it ends. Returns whether it ever served.
fn forward(child: &mut Child, outlet: &Outlet) -> tokio::task::JoinHandle<bool> {
    let (output, logs) = (child.stdout.take(), child.stderr.take());
    let (outlet, logger) = (outlet.clone(), outlet.clone());
    tokio::spawn(async move {
        let reports = async {
            let mut has_served = false;
            let Some(output) = output else {
                return has_served;
            };
            let mut lines = lines(output);
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(report) => {
                        has_served |= matches!(report, Report::Ready { .. });
                        outlet.tell(News::Reported(report)).await;
                    }
                    Err(_) => outlet.tell(News::Logged(line)).await,
                }
            }
            has_served
        };
        let logs = async {
            let Some(logs) = logs else { return };
            let mut lines = lines(logs);
            while let Ok(Some(line)) = lines.next_line().await {
                logger.tell(News::Logged(line)).await;
            }
        };
        tokio::join!(reports, logs).0
    })
}

fn lines<R: AsyncRead + Unpin>(stream: R) -> tokio::io::Lines<BufReader<R>> {
    BufReader::new(stream).lines()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, path::Path};

    use super::*;
    use crate::up::render::Role;

    /// The next news of a process that are no log.
    async fn next(news: &mut mpsc::Receiver<Event>) -> News {
        loop {
            let event = tokio::time::timeout(Duration::from_secs(20), news.recv()).await;
            match event.unwrap().unwrap().news {
                News::Logged(_) => {}
                news => return news,
            }
        }
    }

    /// A process that says it serves, takes its executable away and ends.
    fn service(executable: &Path) -> Program {
        let ready = r#"{"ready": {"addresses": [], "metrics": null}}"#;
        let script = format!("echo '{ready}'; rm '{}'", executable.display());
        Program {
            name: "service".into(),
            arguments: vec!["-c".into(), script],
            environment: Vec::new(),
            role: Role::Target,
        }
    }

    #[tokio::test]
    async fn what_has_served_is_started_again_even_if_that_cannot_be_done_at_first() {
        let folder = tempfile::tempdir().unwrap();
        let executable = folder.path().join("service");
        symlink("/bin/sh", &executable).unwrap();
        let (events, mut news) = mpsc::channel(1);
        let (orders, ordered) = watch::channel(Order::Run);
        let program = service(&executable);
        let kept = keep_running(executable.clone(), program, 0, events, ordered);
        let kept = tokio::spawn(kept);
        for restarts in 0..2 {
            let said = loop {
                match next(&mut news).await {
                    News::Died { end: Err(_), .. } => {}
                    said => break said,
                }
            };
            let expected = restarts;
            assert!(
                matches!(said, News::Started { restarts, .. } if restarts == expected),
                "{said:?}"
            );
            let said = next(&mut news).await;
            assert!(matches!(said, News::Reported(_)), "{said:?}");
            let said = next(&mut news).await;
            assert!(matches!(said, News::Died { end: Ok(_), .. }), "{said:?}");
            let said = next(&mut news).await;
            assert!(matches!(said, News::Died { end: Err(_), .. }), "{said:?}");
            if restarts == 0 {
                symlink("/bin/sh", &executable).unwrap();
            }
        }
        orders.send_replace(Order::Drain);
        loop {
            match next(&mut news).await {
                News::Died { .. } => {}
                News::Ended { status: None } => break,
                other => panic!("{other:?}"),
            }
        }
        kept.await.unwrap();
    }

    #[tokio::test]
    async fn what_never_could_be_started_is_left() {
        let (events, mut news) = mpsc::channel(1);
        let (_orders, ordered) = watch::channel(Order::Run);
        let nowhere = PathBuf::from("/nowhere/service");
        let program = service(&nowhere);
        tokio::spawn(keep_running(nowhere, program, 0, events, ordered));
        let said = next(&mut news).await;
        assert!(
            matches!(said, News::Unstartable(_)) && said.is_last(),
            "{said:?}"
        );
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_begin_anew_after_a_long_life() {
        let mut pauses = Pauses::default();
        let short = |_| pauses.after(Duration::from_secs(1)).as_millis();
        let doubling: Vec<_> = (0..8).map(short).collect();
        assert_eq!(doubling, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pauses.after(LONG_LIFE * 2), FIRST_PAUSE);
        assert_eq!(pauses.after(LONG_LIFE), FIRST_PAUSE * 2);
    }
}
