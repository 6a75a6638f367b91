//! A target that spans processes: which of them this one is, and whether the others are there.
//!
//! Only a simulated model spans processes in this version: its leader answers alone, and its workers
//! are there, and ready, and do nothing. What is real is the group: it serves when all of it is
//! there, and whoever runs the processes replaces it whole.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use foretoken_service::observation::{Observation, Signs};
use reqwest::{Client, redirect};
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{child, failure::usage};

/// How long a worker may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long after one try to reach a worker the next one is.
const PAUSE: Duration = Duration::from_millis(300);
/// How often those that wait say so.
const REMINDER: Duration = Duration::from_secs(10);

/// Flags of a process of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[expect(clippy::struct_field_names, reason = "flags are called after fields")]
pub(crate) struct GroupArgs {
    /// Processes that the target spans, for a simulated model: the leader serves once all others are
    /// ready
    #[arg(long, value_name = "N", requires_all = ["group_rank", "group_leader"])]
    group_size: Option<u32>,
    /// Which of them this is: 0, the leader, or a worker
    #[arg(long, value_name = "I", requires = "group_size")]
    group_rank: Option<u32>,
    /// Host of the leader, NAME.DOMAIN; worker I is NAME-I.DOMAIN, on the leader's port of metrics
    #[arg(long, value_name = "HOST", requires = "group_size")]
    group_leader: Option<String>,
}

/// The place of a process in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    size: u32,
    rank: u32,
    leader: String,
}

/// What a process of a group does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It serves: all others are there.
    Serve,
    /// It ends: it was told to stop, as a worker, or while it waited for those.
    End,
}

impl GroupArgs {
    /// The place that was said, if this is a process of a group.
    pub(crate) fn group(self) -> anyhow::Result<Option<Group>> {
        // They come together or not at all.
        let (Some(size), Some(rank), Some(leader)) =
            (self.group_size, self.group_rank, self.group_leader)
        else {
            return Ok(None);
        };
        if rank >= size {
            let message = format!("--group-rank is {rank}; it must be below --group-size, {size}");
            return Err(usage(message));
        }
        Ok((size > 1).then_some(Group { size, rank, leader }))
    }
}

impl Group {
    /// Takes this process' place: a worker is there until `stop`, a leader waits for its workers.
    /// Health is shown at `observed`.
    pub(crate) fn join(
        &self,
        runtime: &Runtime,
        is_simulated: bool,
        observed: Option<&str>,
        stop: &CancellationToken,
    ) -> anyhow::Result<Next> {
        if !is_simulated {
            return Err(usage(
                "--group-size is only served with --simulated: models on CPU cores are in one process",
            ));
        }
        let observed = observed.ok_or_else(|| {
            usage("--group-size needs --metrics-listen: there the processes see each other")
        })?;
        if self.rank > 0 {
            child::run(runtime, stop, stand_by(observed, stop))?;
            return Ok(Next::End);
        }
        let (_, port) = observed
            .rsplit_once(':')
            .context("--metrics-listen must be HOST:PORT")?;
        let workers: Vec<String> = (1..self.size)
            .map(|rank| format!("{}:{port}", self.host(rank)))
            .collect();
        let mut next = Next::End;
        child::run(runtime, stop, async {
            tokio::select! {
                gathered = gather(&workers) => gathered.map(|()| next = Next::Serve),
                () = stop.cancelled() => Ok(()),
            }
        })?;
        Ok(next)
    }

    /// Host of the worker of that rank.
    fn host(&self, rank: u32) -> String {
        match self.leader.split_once('.') {
            Some((name, domain)) => format!("{name}-{rank}.{domain}"),
            None => format!("{}-{rank}", self.leader),
        }
    }
}

/// Is there, and ready, until `stop`.
async fn stand_by(observed: &str, stop: &CancellationToken) -> anyhow::Result<()> {
    let signs = Signs {
        ready: Arc::new(true.into()),
        ..Signs::default()
    };
    tracing::info!("a worker of a simulated target: its leader answers");
    let observation = Observation::bind(observed)?;
    Ok(observation.serve_signs(signs, stop.clone()).await?)
}

/// Waits until all `workers` are ready.
async fn gather(workers: &[String]) -> anyhow::Result<()> {
    let client = Client::builder()
        .timeout(PATIENCE)
        .no_proxy()
        .redirect(redirect::Policy::none())
        .build()?;
    let mut told = Instant::now();
    for worker in workers {
        let url = format!("http://{worker}/ready");
        loop {
            let answer = client.get(&url).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            if told.elapsed() >= REMINDER {
                told = Instant::now();
                tracing::info!(worker, "waiting for a worker of this group");
            }
            sleep(PAUSE).await;
        }
    }
    tracing::info!(workers = workers.len(), "the group is there");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(size: u32, rank: u32) -> anyhow::Result<Option<Group>> {
        let args = GroupArgs {
            group_size: Some(size),
            group_rank: Some(rank),
            group_leader: Some("story-group-0.story-group.chat".into()),
        };
        args.group()
    }

    #[test]
    fn workers_are_called_after_their_leader() {
        let group = group(3, 0).unwrap().unwrap();
        assert_eq!(group.host(2), "story-group-0-2.story-group.chat");
    }

    #[test]
    fn a_group_has_a_place_for_each_process_and_one_alone_is_none() {
        let message = group(2, 2).unwrap_err().to_string();
        assert!(message.contains("below --group-size, 2"), "{message}");
        assert_eq!(group(1, 0).unwrap(), None);
        assert_eq!(GroupArgs::default().group().unwrap(), None);
    }

    #[test]
    fn models_that_compute_are_in_one_process() {
        let runtime = child::small_runtime().unwrap();
        let group = group(2, 1).unwrap().unwrap();
        let joined = group.join(
            &runtime,
            false,
            Some("127.0.0.1:0"),
            &CancellationToken::new(),
        );
        let message = joined.unwrap_err().to_string();
        assert!(
            message.contains("only served with --simulated"),
            "{message}"
        );
    }

    #[tokio::test]
    async fn a_leader_waits_until_its_workers_are_ready() {
        let observation = Observation::bind("127.0.0.1:0").unwrap();
        let workers = [observation.address().to_string()];
        let signs = Signs::default();
        let (ready, stop) = (Arc::clone(&signs.ready), CancellationToken::new());
        let serving = tokio::spawn(observation.serve_signs(signs, stop.clone()));
        let leader = gather(&workers);
        tokio::pin!(leader);
        let early = tokio::time::timeout(Duration::from_millis(700), leader.as_mut()).await;
        assert!(early.is_err(), "no worker was ready");
        ready.store(true, std::sync::atomic::Ordering::Relaxed);
        leader.await.unwrap();
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
