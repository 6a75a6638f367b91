//! All processes together: start, watch, announce, drain.

use std::{env, process, time::Duration};

use anyhow::Context as _;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, interval, sleep_until},
};

use super::{
    console::Console,
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
    let (events, mut news) = mpsc::channel(256);
    let (routers, router_orders) = watch::channel(Order::Run);
    let (others, other_orders) = watch::channel(Order::Run);
    let mut tasks = JoinSet::new();
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
        folder,
        console,
    };
    for (index, program) in programs.into_iter().enumerate() {
        let orders = if program.role == Role::Router {
            router_orders.clone()
        } else {
            other_orders.clone()
        };
        tasks.spawn(keep_running(
            executable.clone(),
            program,
            index,
            events.clone(),
            orders,
        ));
    }
    drop((events, router_orders, other_orders));
    let mut signals = Signals::new()?;
    let mut result = fleet.run(&mut news, &mut signals).await;
    routers.send_replace(Order::Drain);
    if result.is_err() {
        // Nothing has been served, so there is nothing to finish.
        routers.send_replace(Order::Kill);
        others.send_replace(Order::Kill);
    }
    let deadline = Instant::now() + GRACE;
    loop {
        tokio::select! {
            event = news.recv() => match event {
                Some(Event { index, news }) => {
                    if fleet.is_router(index) && matches!(news, News::Ended { .. }) {
                        others.send_if_modified(|order| raise(order, Order::Drain));
                    }
                    fleet.note(index, news);
                }
                None => break,
            },
            () = signals.any() => {
                console.say("stopping at once");
                // Streams may have been cut.
                result = result.and(Err(Reported::Failure.into()));
                routers.send_replace(Order::Kill);
                others.send_replace(Order::Kill);
            }
            () = sleep_until(deadline) => {
                console.say("some services hang; stopping at once");
                result = result.and(Err(Reported::Failure.into()));
                routers.send_replace(Order::Kill);
                others.send_replace(Order::Kill);
                while tasks.join_next().await.is_some() {}
                break;
            }
        }
    }
    folder.clear();
    result
}

/// The processes as far as they are known.
struct Fleet<'a> {
    state: State,
    asks_for_keys: bool,
    links: Links,
    folder: &'a StateFolder,
    console: &'a Console,
}

impl Fleet<'_> {
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
        let mut serving_since = None;
        self.save();
        loop {
            tokio::select! {
                event = news.recv() => {
                    let Some(Event { index, news }) = event else {
                        return Err(anyhow::anyhow!("all services have ended"));
                    };
                    if self.note(index, news) {
                        self.console.say("stopping the other services");
                        return Err(Reported::Failure.into());
                    }
                }
                () = signals.any() => {
                    self.console.say("draining; press Ctrl-C again to stop at once");
                    return Ok(());
                }
                _ = poll.tick(), if !self.state.ready && self.all_ready() => {
                    let answer = client.get(&ready_url).send().await;
                    if !answer.is_ok_and(|answer| answer.status().is_success()) {
                        continue;
                    }
                    let waited = serving_since.get_or_insert_with(Instant::now).elapsed();
                    if self.links.are_settled() || waited > SETTLING {
                        self.state.ready = true;
                        self.save();
                        self.console.announce(&greeting(&self.state, self.asks_for_keys));
                    }
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
            News::Died { status, pause } => {
                console.log(
                    index,
                    &format!("ended ({status}); starting again in {pause:?}"),
                );
                service.stopped();
                links.forget(index);
                state.policy = links.verdict();
            }
            News::Failed { status } => {
                service.stopped();
                is_fatal = !links.fail(index, status.to_string());
                state.policy = links.verdict();
                let without = if is_fatal { "" } else { "; serving without it" };
                console.log(index, &format!("could not start ({status}){without}"));
            }
            News::Unstartable(error) => {
                console.log(index, &format!("could not be run: {error}"));
                is_fatal = true;
            }
            News::Ended { status } => {
                if let Some(status) = status.filter(|status| !status.success()) {
                    console.log(index, &format!("ended ({status})"));
                }
                service.stopped();
            }
        }
        self.save();
        is_fatal
    }

    fn save(&self) {
        if let Err(error) = self.folder.save(&self.state) {
            self.console.say(&format!("{error:#}"));
        }
    }

    /// Whether everything serves that is going to.
    fn all_ready(&self) -> bool {
        let mut services = self.state.services.iter().enumerate();
        services.all(|(index, service)| service.ready || self.links.has_failed(index))
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

/// What to try first. A key is not shown: clients have it in the variable that `chat` reads too.
fn greeting(state: &State, asks_for_keys: bool) -> String {
    let State {
        url, model, policy, ..
    } = state;
    let quoted = serde_json::Value::from(model.as_str());
    let (first, header) = if asks_for_keys {
        (
            "with one of the API keys exported as FORETOKEN_API_KEY:\n\n  ",
            "-H \"Authorization: Bearer $FORETOKEN_API_KEY\" \\\n    ",
        )
    } else {
        ("", "")
    };
    format!(
        "ready: {model} ({policy}) at {url}/v1\n\n  {first}\
         curl {url}/v1/completions -H 'Content-Type: application/json' \\\n    {header}\
         -d '{{\"model\": {quoted}, \"prompt\": \"Question: Tom has 3 apples.\", \
         \"max_tokens\": 64}}'\n\n  \
         foretoken chat --url {url}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_everybody_is_shown_as_one_that_can_be_used() {
        assert_eq!(reachable("0.0.0.0:8000"), "127.0.0.1:8000");
        assert_eq!(reachable("[::]:1"), "[::1]:1");
        assert_eq!(reachable("10.0.0.1:1"), "10.0.0.1:1");
    }

    #[test]
    fn the_greeting_has_a_line_that_is_let_in_with_keys_and_without() {
        let state = State {
            pid: 1,
            url: "http://h:1".into(),
            model: "m".into(),
            ready: true,
            policy: "Speculative".into(),
            services: Vec::new(),
        };
        let open = "ready: m (Speculative) at http://h:1/v1\n\n  \
                    curl http://h:1/v1/completions -H 'Content-Type: application/json' \\\n    \
                    -d '{\"model\": \"m\", \"prompt\": \"Question: Tom has 3 apples.\", \
                    \"max_tokens\": 64}'\n\n  \
                    foretoken chat --url http://h:1\n";
        assert_eq!(greeting(&state, false), open);
        let keyed = open
            .replace(
                "  curl",
                "  with one of the API keys exported as FORETOKEN_API_KEY:\n\n  curl",
            )
            .replace(
                "-d '",
                "-H \"Authorization: Bearer $FORETOKEN_API_KEY\" \\\n    -d '",
            );
        assert_eq!(greeting(&state, true), keyed);
    }

    #[test]
    fn orders_only_rise() {
        let mut order = Order::Kill;
        assert!(!raise(&mut order, Order::Drain));
        assert_eq!(order, Order::Kill);
    }
}
