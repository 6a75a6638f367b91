//! How a service tells the process that started it how it is doing: one JSON object a line, on
//! standard output. Without such a process it tells the person at the terminal instead.

use std::{
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use foretoken_artifacts::progress::{Bar, Progress as _};
use foretoken_engine::model::{LoadProgress, Progress};
use foretoken_target::{LinkReport, LinkWatch};
use serde::{Deserialize, Serialize};

/// Progress is told at most this often.
const INTERVAL: Duration = Duration::from_millis(100);

/// One line from a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// Weights are being loaded.
    Loading {
        /// Bytes that are ready.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// It serves.
    Ready {
        /// Where.
        addresses: Vec<String>,
        /// Where it shows its metrics and rounds, `host:port`.
        metrics: Option<String>,
    },
    /// What became of its links to endpoints, all of them.
    Links {
        /// The links.
        links: Vec<LinkReport>,
    },
}

/// Where reports go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reporter {
    /// To the process that started this one.
    Parent,
    /// To the person at the terminal.
    Person,
}

impl Reporter {
    /// Reports to the parent if there is one.
    pub(crate) fn new(is_child: bool) -> Self {
        if is_child { Self::Parent } else { Self::Person }
    }

    /// Tells that the service can be used.
    pub(crate) fn ready(self, addresses: Vec<String>, metrics: Option<String>) {
        let shown = metrics.as_deref().unwrap_or("nowhere");
        tracing::info!(addresses = addresses.join(" "), metrics = shown, "serving");
        if let Self::Parent = self {
            tell(&Report::Ready { addresses, metrics });
        }
    }

    /// Tells what becomes of links; the logs tell it to a person.
    pub(crate) async fn follow(self, mut links: LinkWatch) {
        let Self::Parent = self else { return };
        loop {
            tell(&Report::Links { links: links.now() });
            if !links.changed().await {
                return;
            }
        }
    }

    /// Something a load can be told of; `name` is what is loaded.
    pub(crate) fn loading(self, name: &str) -> Progress {
        match self {
            Self::Parent => to_parent(),
            Self::Person => to_person(name.to_owned()),
        }
    }
}

fn tell(report: &Report) {
    let Ok(line) = serde_json::to_string(report) else {
        return;
    };
    // A parent that is gone is noticed by `stop`, which ends the process.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

fn to_parent() -> Progress {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    Arc::new(move |LoadProgress { done, total }| {
        let now = started.elapsed().as_millis() as u64;
        let due = next.load(Ordering::Relaxed);
        if now >= due || done == total {
            next.store(now + INTERVAL.as_millis() as u64, Ordering::Relaxed);
            tell(&Report::Loading { done, total });
        }
    })
}

fn to_person(name: String) -> Progress {
    let bar = Bar::default();
    let shown = AtomicU64::new(0);
    Arc::new(move |LoadProgress { done, total }| {
        let before = shown.swap(done, Ordering::Relaxed);
        if before == 0 {
            bar.begin(&name, total, 0);
        }
        bar.advance(done.saturating_sub(before));
        if done == total {
            bar.finish();
        }
    })
}

#[cfg(test)]
mod tests {
    use foretoken_protocol::Address;
    use foretoken_target::LinkState;

    use super::*;

    #[test]
    fn a_report_is_one_line_that_reads_back() {
        for report in [
            Report::Loading { done: 1, total: 2 },
            Report::Ready {
                addresses: vec!["unix:/a\nb".into()],
                metrics: Some("127.0.0.1:1".into()),
            },
            Report::Links {
                links: vec![LinkReport {
                    address: Address::loopback(1),
                    state: LinkState::Refused("other\nwords".into()),
                }],
            },
        ] {
            let line = serde_json::to_string(&report).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
    }
}
