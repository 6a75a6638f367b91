//! All processes together: start, watch, announce, drain.

#[cfg(test)]
mod tests;

use std::{env, path::Path, process, time::Duration};

use anyhow::Context as _;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    console::Console,
    greeting::{greeting, own_name},
    links::Links,
    plan::Plan,
    process::{Event, News, Order, keep_running},
    render::{Program, Role},
    state::{ServiceState, State, StateFolder},
};
use crate::{failure::Reported, report::Report, stop::Signals};

/// How often the router is asked whether it can serve.
const POLL: Duration = Duration::from_millis(100);
/// How long targets may look for their endpoints before it is said how they stand. What is not
/// found by then is looked for on and on.
const SETTLING: Duration = Duration::from_secs(5);
/// Services end within their grace of 30 s; what takes longer hangs.
const GRACE: Duration = Duration::from_secs(35);

/// Runs the programs until a signal, or until one that is no draft cannot start. Users are told where
/// to ask, and whether that takes a key.
pub(super) async fn supervise(
    plan: &Plan,
    address: &str,
    asks_for_keys: bool,
    programs: Vec<Program>,
    folder: &StateFolder,
    console: &Console,
) -> anyhow::Result<()> {
    let executable = env::current_exe().context("cannot find this executable")?;
    let links = Links::new(plan.policy, plan.on_loss, &programs);
    let mut fleet = Fleet {
        state: State {
            pid: process::id(),
            url: format!("http://{}", reachable(address)),
            model: plan.served_name.clone(),
            ready: false,
            policy: links.verdict(),
            services: programs.iter().map(|program| idle(&program.name)).collect(),
        },
        asks_for_keys,
        links,
        has_served: false,
        is_announced: false,
        folder,
        console,
    };
    let mut signals = Signals::new()?;
    let running = Running::start(&executable, programs);
    let result = fleet.supervise(running, &mut signals, GRACE).await;
    folder.clear();
    result
}

/// The processes as they are heard and told.
struct Running {
    news: mpsc::Receiver<Event>,
    routers: watch::Sender<Order>,
    others: watch::Sender<Order>,
    /// Held: what still runs ends with it.
    _tasks: JoinSet<()>,
}

impl Running {
    fn start(executable: &Path, programs: Vec<Program>) -> Self {
        let (events, news) = mpsc::channel(256);
        let (routers, router_orders) = watch::channel(Order::Run);
        let (others, other_orders) = watch::channel(Order::Run);
        let mut tasks = JoinSet::new();
        for (index, program) in programs.into_iter().enumerate() {
            let orders = if program.role == Role::Router {
                router_orders.clone()
            } else {
                other_orders.clone()
            };
            let executable = executable.to_owned();
            let events = events.clone();
            tasks.spawn(keep_running(executable, program, index, events, orders));
        }
        Self {
            news,
            routers,
            others,
            _tasks: tasks,
        }
    }

    fn kill(&self) {
        self.routers.send_replace(Order::Kill);
        self.others.send_replace(Order::Kill);
    }
}

/// The processes as far as they are known.
struct Fleet<'a> {
    state: State,
    asks_for_keys: bool,
    links: Links,
    /// Whether a router and a target have ever served together, so that there may be requests.
    has_served: bool,
    /// Whether users were told where to ask.
    is_announced: bool,
    folder: &'a StateFolder,
    console: &'a Console,
}

impl Fleet<'_> {
    /// From the start of all processes to their end. Those that take longer than `grace` to end are
    /// killed.
    async fn supervise(
        &mut self,
        mut running: Running,
        signals: &mut Signals,
        grace: Duration,
    ) -> anyhow::Result<()> {
        let result = self.run(&mut running.news, signals).await;
        if result.is_err() && !self.has_served {
            // There is nothing to finish.
            running.kill();
        } else {
            running.routers.send_replace(Order::Drain);
        }
        self.state.ready = false;
        self.save();
        let is_whole = self.wind_down(&mut running, signals, grace).await;
        if !is_whole {
            return result.and(Err(Reported::Failure.into()));
        }
        result
    }

    /// Until a signal, or until a process cannot start that the others need.
    async fn run(
        &mut self,
        news: &mut mpsc::Receiver<Event>,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(2))
            // What is asked is on this machine.
            .no_proxy()
            .build()
            .context("cannot set up the HTTP client")?;
        let ready_url = format!("{}/ready", self.state.url);
        let mut poll = interval(POLL);
        // It stands still while all is well.
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut serving_since = None;
        self.save();
        loop {
            tokio::select! {
                event = news.recv() => {
                    let Some(Event { index, news }) = event else {
                        return Err(anyhow::anyhow!("all services have ended"));
                    };
                    if self.note(index, news) {
                        self.console.say(if self.has_served {
                            "draining the other services; press Ctrl-C to stop at once"
                        } else {
                            "stopping the other services"
                        });
                        return Err(Reported::Failure.into());
                    }
                }
                () = signals.any() => {
                    self.console.say("draining; press Ctrl-C again to stop at once");
                    return Ok(());
                }
                _ = poll.tick(), if !self.state.ready && self.may_be_ready() => {
                    let answer = client.get(&ready_url).send().await;
                    if !answer.is_ok_and(|answer| answer.status().is_success()) {
                        continue;
                    }
                    let waited = serving_since.get_or_insert_with(Instant::now).elapsed();
                    if self.is_announced || self.links.are_settled() || waited > SETTLING {
                        self.get_ready();
                    }
                }
            }
        }
    }

    /// Until all have ended. False if some had to be killed: streams may have been cut.
    async fn wind_down(
        &mut self,
        running: &mut Running,
        signals: &mut Signals,
        grace: Duration,
    ) -> bool {
        let deadline = Instant::now() + grace;
        let mut is_whole = true;
        let mut is_late = false;
        loop {
            tokio::select! {
                event = running.news.recv() => {
                    let Some(Event { index, news }) = event else {
                        return is_whole;
                    };
                    if self.is_router(index) && news.is_last() {
                        running.others.send_if_modified(|order| raise(order, Order::Drain));
                    }
                    self.note(index, news);
                }
                () = signals.any() => {
                    self.console.say("stopping at once");
                    is_whole = false;
                    running.kill();
                }
                // They are listened to all the same: what they have said holds up their end.
                () = sleep_until(deadline), if !is_late => {
                    self.console.say("some services hang; stopping at once");
                    is_late = true;
                    is_whole = false;
                    running.kill();
                }
            }
        }
    }

    /// Takes in what became known. True if it cannot be helped.
    fn note(&mut self, index: usize, news: News) -> bool {
        let Self {
            state,
            asks_for_keys: _,
            links,
            has_served: _,
            is_announced: _,
            folder: _,
            console,
        } = self;
        let Some(service) = state.services.get_mut(index) else {
            return false;
        };
        let mut is_fatal = false;
        match news {
            News::Logged(line) => {
                console.log(index, &line);
                return false;
            }
            News::Reported(Report::Loading { done, total }) => {
                console.loading(index, done, total);
                return false;
            }
            News::Reported(Report::Ready { metrics, .. }) => {
                service.ready = true;
                service.metrics = metrics.map(|address| format!("http://{}", reachable(&address)));
            }
            News::Reported(Report::Links { links: now }) => {
                links.note(index, now);
                state.policy = links.verdict();
            }
            News::Started { pid, restarts } => {
                service.pid = pid;
                service.restarts = restarts;
            }
            News::Died { end, pause } => {
                let what = match end {
                    Ok(status) => format!("ended ({status})"),
                    Err(error) => format!("could not be run: {error}"),
                };
                console.log(index, &format!("{what}; starting again in {pause:?}"));
                service.stopped();
                links.forget(index);
                state.policy = links.verdict();
            }
            News::Failed { status } => {
                service.stopped();
                is_fatal = !links.fail(index, status.to_string());
                state.policy = links.verdict();
                let without = without(is_fatal);
                console.log(index, &format!("could not start ({status}){without}"));
            }
            News::Unstartable(error) => {
                service.stopped();
                is_fatal = !links.fail(index, error.to_string());
                state.policy = links.verdict();
                let without = without(is_fatal);
                console.log(index, &format!("could not be run: {error}{without}"));
            }
            News::Ended { status } => {
                if let Some(status) = status.filter(|status| !status.success()) {
                    console.log(index, &format!("ended ({status})"));
                }
                service.stopped();
            }
        }
        if self.has_whoever_it_takes() {
            self.has_served = true;
        } else {
            self.state.ready = false;
        }
        self.save();
        is_fatal
    }

    /// Requests are answered, for the first time or again.
    fn get_ready(&mut self) {
        self.state.ready = true;
        self.save();
        if !self.is_announced {
            self.is_announced = true;
            let greeting = greeting(&self.state, self.asks_for_keys, &own_name());
            self.console.announce(&greeting);
        }
    }

    fn save(&self) {
        if let Err(error) = self.folder.save(&self.state) {
            self.console.say(&format!("{error:#}"));
        }
    }

    /// Whether it is worth asking the router. Users are told once all is there but drafts that have died;
    /// after that, whoever it takes to answer them is enough.
    fn may_be_ready(&self) -> bool {
        if self.is_announced {
            return self.has_whoever_it_takes();
        }
        let mut services = self.state.services.iter().enumerate();
        services.all(|(index, service)| {
            let may_do_without = service.restarts > 0 && self.links.is_draft(index);
            service.ready || may_do_without || self.links.has_failed(index)
        })
    }

    /// Whether a router and a target serve.
    fn has_whoever_it_takes(&self) -> bool {
        let serves = |(index, service): (usize, &ServiceState)| service.ready.then_some(index);
        let serving = || self.state.services.iter().enumerate().filter_map(serves);
        serving().any(|index| self.is_router(index))
            && serving().any(|index| self.links.is_target(index))
    }

    /// The router is the last one.
    fn is_router(&self, index: usize) -> bool {
        index + 1 == self.state.services.len()
    }
}

fn idle(name: &str) -> ServiceState {
    ServiceState {
        name: name.to_owned(),
        pid: None,
        ready: false,
        metrics: None,
        restarts: 0,
    }
}

/// What is said besides of a process that does not start.
fn without(is_fatal: bool) -> &'static str {
    if is_fatal { "" } else { "; serving without it" }
}

/// Orders only rise.
fn raise(order: &mut Order, to: Order) -> bool {
    let rises = *order < to;
    *order = (*order).max(to);
    rises
}

/// An address that a client on this machine can use.
fn reachable(address: &str) -> String {
    match address.rsplit_once(':') {
        Some(("0.0.0.0", port)) => format!("127.0.0.1:{port}"),
        Some(("[::]", port)) => format!("[::1]:{port}"),
        _ => address.to_owned(),
    }
}
