//! A target that asks for every row of every step of an endpoint.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use foretoken_draft::DraftConfig;
use foretoken_engine::sim::Role;
use foretoken_protocol::link::Link;
use foretoken_speculation::{
    Epoch, Round, SessionId,
    message::{Outcome, ToDraft},
};

use super::{malice::*, rig::*};

/// Rows of a step, and more sessions than that which each want one of every step.
const ROWS: usize = 8;
const SESSIONS: u64 = 15;
/// Tokens of their windows: more than there are steps before the next verdict.
const LONG: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(100);

/// Opens all sessions and decides for them again and again, until it is over.
fn flood(link: &Link, over: &AtomicBool) {
    let begun = Instant::now();
    for session in 0..SESSIONS {
        let _ = link.send(vec![open(session, prompt(20, 3), 1, K)]);
    }
    for round in 0.. {
        if over.load(Ordering::Relaxed) || begun.elapsed() > PATIENT {
            return;
        }
        let verdict = |session| {
            ToDraft::Outcome(Outcome {
                session: SessionId(session),
                epoch: Epoch(1),
                round: Round(round),
                base_len: 20 + round,
                tokens: prompt(1, round),
                lookahead: LONG,
                ..Outcome::default()
            })
        };
        let _ = link.send((0..SESSIONS).map(verdict).collect());
        thread::sleep(PAUSE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_wants_every_row_of_every_step_leaves_others_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let config = DraftConfig {
        max_step_rows: ROWS,
        max_lookahead: LONG,
        max_sessions: SESSIONS as usize + 1,
        ..config(&address, Duration::from_secs(3600))
    };
    let (endpoint, port) = observed_draft(config, runner(sim(Role::Draft { agreement: 0.9 })));
    let served = tokio::task::spawn_blocking(move || {
        let attacker = dial(&address, "attacker");
        let honest = dial(&address, "honest");
        let (link, over) = (&attacker.link, AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| flood(link, &over));
            // It has begun before the honest one comes.
            thread::sleep(PAUSE);
            let entries = serve_honestly(&honest, &mut |_| {});
            over.store(true, Ordering::Relaxed);
            entries.len()
        })
    });
    let rounds = served.await.expect("every round had its entries");
    assert_eq!(rounds, ROUNDS as usize);
    leaves_nothing(port).await;
    endpoint.end().await;
}
