//! A target that asks for every row of every step of an endpoint.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

use foretoken_draft::DraftConfig;
use foretoken_protocol::{Address, link::Link};
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

/// Opens all sessions and decides for them again and again.
fn want_every_row(attacker: &Link, begun: &Sender<()>, over: &AtomicBool) {
    let started = Instant::now();
    for session in 0..SESSIONS {
        let _ = attacker.send(vec![open(session, prompt(20, 3), 1, K)]);
    }
    for round in 0.. {
        if over.load(Ordering::Relaxed) || started.elapsed() > PATIENT {
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
        let _ = attacker.send((0..SESSIONS).map(verdict).collect());
        thread::sleep(PAUSE);
        if round == 0 {
            let _ = begun.send(());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_wants_every_row_of_every_step_leaves_others_theirs() {
    let config = DraftConfig {
        max_step_rows: ROWS,
        max_lookahead: LONG,
        max_sessions: SESSIONS as usize + 1,
        ..config(&Address::loopback(0), Duration::from_secs(3600))
    };
    assert_served_beside(want_every_row, &config).await;
}
