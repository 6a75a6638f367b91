//! The worker without threads and sockets: a test hands it messages and runs its steps.

use std::time::Duration;

use foretoken_engine::sim::SimOptions;
use foretoken_protocol::link::{Hello, LinkId, LoadReport, Malformed, ServerEvent};
use foretoken_service::complaints::Complaints;
use foretoken_speculation::{
    Epoch, Round, SessionId, TokenId,
    message::{Open, Outcome, ToDraft, ToTarget},
    policy::draft::Outlook,
};

use crate::config::DraftConfig;
use branches::{entries, open_ahead, verifying};
use rig::*;

mod accounts;
mod branches;
mod held;
mod isolation;
mod recalled;
mod rig;
mod room;
mod sharing;
mod unheard;

#[test]
fn a_window_is_what_the_model_samples_with_the_requests_noise() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let tokens = prompt(20);
    rig.tell(A, open(5, tokens.clone()));
    let (_, sent) = rig.settle();
    assert!(matches!(sent[..], [(A, ToTarget::Opened { .. })]));
    let mut whole = tokens.clone();
    let mut base = tokens.len();
    let mut emitted = vec![TokenId(3)];
    for round in 0..5 {
        rig.tell(A, outcome(5, round, base, &emitted, 4));
        whole.extend_from_slice(&emitted);
        base += emitted.len();
        let (_, sent) = rig.settle();
        let [(A, window)] = windows(&sent)[..] else {
            panic!("one window, not {sent:?}")
        };
        assert_eq!(
            window.proposals.tokens(),
            continuation(language(), 5, &whole, 4)
        );
        assert_eq!(
            (window.round, window.base_len as usize),
            (Round(round + 1), base)
        );
        // Accept some of it, and decide something else.
        let accepted = round as usize % 5;
        emitted = window.proposals.tokens()[..accepted].to_vec();
        emitted.push(TokenId(round));
    }
}

#[test]
fn what_a_verdict_keeps_from_being_sent_does_not_count_as_sent() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let window = [TokenId(5), TokenId(9)];
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &window));
    let drawn = |rig: &Rig| rig.worker.sessions[0].draft.stats().built;
    while drawn(&rig) == 0 {
        assert!(rig.worker.step(), "prompt, glue pass and branches");
    }
    // Nobody has come by to send the first column when the verdict is heard.
    rig.tell(A, outcome(1, 1, 21, &[TokenId(8)], 4));
    let (_, sent) = rig.settle();
    let columns = entries(&sent).into_iter().map(|(_, column)| column.drawn());
    let stats = rig.worker.sessions[0].draft.stats();
    assert_eq!(stats.pushed, columns.sum::<u32>());
    assert!(stats.pushed < stats.built, "{stats:?}");
}

#[test]
fn what_is_longer_than_a_step_is_read_in_parts() {
    let config = DraftConfig {
        max_step_rows: 8,
        ..DraftConfig::default()
    };
    for (length, opens) in [
        (12, open as fn(u64, Vec<TokenId>) -> ToDraft),
        (20, open_ahead),
    ] {
        let mut rig = Rig::new(&config, language());
        let tokens = prompt(length);
        rig.tell(A, opens(1, tokens.clone()));
        rig.tell(A, outcome(1, 0, tokens.len(), &[TokenId(3)], 4));
        let (_, sent) = rig.settle();
        assert_eq!(windows(&sent).len(), 1, "{length} tokens");
    }
}

#[test]
fn sessions_of_different_targets_share_steps_and_nothing_else() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let (short, long) = (prompt(10), prompt(30));
    for (link, tokens) in [(A, &short), (B, &long)] {
        rig.tell(link, open(1, tokens.clone()));
    }
    rig.settle();
    rig.tell(A, outcome(1, 0, 10, &[TokenId(1)], 6));
    rig.tell(B, outcome(1, 0, 30, &[TokenId(2)], 6));
    let (steps, sent) = rig.settle();
    assert_eq!(steps, 6, "each step carries a row of both");
    for (link, window) in windows(&sent) {
        let mut tokens = if link == A {
            short.clone()
        } else {
            long.clone()
        };
        tokens.push(TokenId(if link == A { 1 } else { 2 }));
        assert_eq!(
            window.proposals.tokens(),
            continuation(language(), 1, &tokens, 6)
        );
    }
    rig.worker.take(
        0,
        ServerEvent::Down {
            link: A,
            reason: "gone".into(),
        },
    );
    assert_eq!(rig.worker.sessions.len(), 1);
    rig.tell(B, close(1));
    rig.assert_idle();
}

#[test]
fn without_a_slot_a_session_is_refused_until_one_is_free() {
    let config = DraftConfig {
        max_sessions: 2,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    for session in 1..=3 {
        rig.tell(A, open(session, prompt(8)));
    }
    let sent = rig.collect();
    assert!(is_refusal(&sent[2].1, true), "{sent:?}");
    rig.worker.report();
    let full = LoadReport {
        slots: 2,
        used: 2,
        draining: false,
    };
    assert_eq!(rig.loads.lock().expect("no panic").last(), Some(&full));
    rig.tell(A, close(1));
    rig.tell(A, open(3, prompt(8)));
    assert!(matches!(rig.collect()[..], [(A, ToTarget::Opened { .. })]));
}

#[test]
fn a_newer_outcome_ends_the_work_on_an_older_window() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open(1, prompt(10)));
    rig.settle();
    rig.tell(A, outcome(1, 0, 10, &[TokenId(1)], 8));
    for _ in 0..3 {
        assert!(rig.worker.step());
    }
    rig.tell(A, outcome(1, 1, 11, &[TokenId(2)], 2));
    let (steps, sent) = rig.settle();
    let [(_, window)] = windows(&sent)[..] else {
        panic!("one window, not {sent:?}")
    };
    assert_eq!(
        (window.round, window.proposals.len(), steps),
        (Round(2), 2, 2)
    );
    assert_eq!(rig.worker.metrics.abandoned.get(), 1);
}

#[test]
fn a_long_prompt_does_not_hold_up_the_windows_of_others() {
    let config = DraftConfig {
        prefill_rows: 16,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    rig.tell(A, open(1, prompt(10)));
    rig.settle();
    rig.tell(B, open(2, prompt(500)));
    rig.tell(A, outcome(1, 0, 10, &[TokenId(1)], 4));
    for _ in 0..4 {
        assert!(rig.worker.step());
    }
    assert_eq!(
        windows(&rig.collect()).len(),
        1,
        "the window took more steps than tokens"
    );
    let (steps, _) = rig.settle();
    assert!(steps > 1, "the prompt was not done in chunks");
}

#[test]
fn who_only_follows_costs_steps_in_batches_and_is_up_to_date_when_asked() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let mut tokens = prompt(10);
    rig.tell(A, open(1, tokens.clone()));
    rig.settle();
    let mut steps = 0;
    for round in 0..40 {
        let token = TokenId(round % 64);
        rig.tell(A, outcome(1, round, tokens.len(), &[token], 0));
        tokens.push(token);
        steps += rig.settle().0;
    }
    assert_eq!(steps, 1);
    rig.tell(A, outcome(1, 40, tokens.len(), &[TokenId(9)], 3));
    tokens.push(TokenId(9));
    let (_, sent) = rig.settle();
    assert_eq!(
        windows(&sent)[0].1.proposals.tokens(),
        continuation(language(), 1, &tokens, 3)
    );
}

#[test]
fn nonsense_ends_its_session_and_no_other() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open(1, prompt(10)));
    rig.tell(A, open(2, vec![TokenId(64)]));
    rig.tell(A, open(3, prompt(5000)));
    rig.tell(B, outcome(4, 0, 10, &[TokenId(1)], 4));
    let sent = rig.collect();
    assert!(
        is_refusal(&sent[1].1, false) && is_refusal(&sent[2].1, false),
        "{sent:?}"
    );
    assert!(matches!(sent[3], (B, ToTarget::Resync(_))));
    let odd = |id| {
        let malformed = Malformed {
            session: Some(SessionId(id)),
            reason: "odd".into(),
        };
        let malformed = vec![malformed].into();
        ServerEvent::Malformed { link: A, malformed }
    };
    rig.worker.take(0, odd(7));
    rig.tell(A, outcome(1, 0, 10, &[TokenId(1)], 4));
    assert_eq!(windows(&rig.settle().1).len(), 1);
    rig.worker.take(0, odd(1));
    assert!(is_refusal(&rig.collect()[0].1, true));
    assert_eq!(rig.worker.metrics.malformed.get(), 2);
    assert_ne!(rig.worker.links[&A].complaints, Complaints::default());
    rig.assert_idle();
}

#[test]
fn when_pages_run_out_the_youngest_session_of_a_target_goes_and_the_others_go_on() {
    let options = SimOptions {
        pages: 8,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    rig.tell(A, open(1, prompt(40)));
    rig.settle();
    rig.tell(A, open(2, prompt(50).into_iter().rev().collect()));
    rig.settle();
    let mut tokens = prompt(40);
    let mut refused = 0;
    for round in 0..8 {
        let emitted = [TokenId(round); 6];
        rig.tell(A, outcome(1, round, tokens.len(), &emitted, 4));
        tokens.extend_from_slice(&emitted);
        let (_, sent) = rig.settle();
        refused += sent.iter().filter(|(_, m)| is_refusal(m, true)).count();
        assert_eq!(windows(&sent).len(), 1);
    }
    assert_eq!((refused, rig.worker.sessions.len()), (1, 1));
}

#[test]
fn a_sequence_that_outgrows_the_model_gives_its_slot_back() {
    let positions = 40;
    let options = SimOptions {
        max_positions: positions,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    rig.tell(A, open(1, prompt(30)));
    rig.settle();
    rig.tell(A, outcome(1, 0, 30, &prompt(9), 4));
    let (_, sent) = rig.settle();
    assert_eq!(
        windows(&sent)[0].1.proposals.len(),
        1,
        "there is room for one"
    );
    rig.tell(A, outcome(1, 1, 39, &prompt(4000), 4));
    let sent = rig.collect();
    assert!(
        matches!(&sent[..], [(A, refused)] if is_refusal(refused, false)),
        "{sent:?}"
    );
    rig.assert_idle();
}

#[test]
fn a_silent_session_loses_its_lease() {
    let config = DraftConfig {
        lease: Duration::ZERO,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    rig.tell(A, open(1, prompt(10)));
    rig.settle();
    std::thread::sleep(Duration::from_millis(1));
    rig.worker.now = std::time::Instant::now();
    rig.worker.expire();
    assert!(is_refusal(&rig.collect()[0].1, true));
    rig.assert_idle();
}

#[test]
fn prompts_seen_before_come_from_the_cache() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    for session in 1..=2 {
        rig.tell(A, open(session, prompt(100)));
        rig.settle();
        rig.tell(A, close(session));
    }
    assert_eq!(rig.worker.metrics.prefix_hits.get(), 96);
}

#[test]
fn a_target_that_is_refused_again_and_again_is_counted_each_time_and_remembered_once() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let refused = |instance: &str, reason: &str| ServerEvent::Refused {
        instance: instance.into(),
        reason: reason.into(),
    };
    for _ in 0..3 {
        rig.worker.take(0, refused("t-0", "other words"));
    }
    assert_eq!(rig.worker.metrics.targets_refused.get(), 3);
    assert_eq!(rig.worker.refused.len(), 1);
    for target in 0..2000 {
        rig.worker
            .take(0, refused(&format!("t-{target}"), "other words"));
    }
    assert!(rig.worker.refused.len() <= super::MOST_REFUSED);
    let hello = Hello {
        instance: "t-1999".into(),
        ..Hello::default()
    };
    let link = LinkId(9);
    rig.worker.take(0, ServerEvent::Up { link, hello });
    assert!(
        !rig.worker.refused.contains_key("t-1999"),
        "it is news if it fails again"
    );
}

#[test]
fn a_session_that_is_opened_anew_knows_of_no_verification() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, branches::open_ahead(1, prompt(12)));
    rig.settle();
    let known = |rig: &Rig| format!("{:?}", rig.worker.sessions[0].outlook);
    let ToDraft::Outcome(verdict) = outcome(1, 0, 12, &[TokenId(3)], 4) else {
        unreachable!("it is a verdict");
    };
    let before = known(&rig);
    let verifying = Some([TokenId(5)].to_vec().into());
    rig.tell(
        A,
        ToDraft::Outcome(Outcome {
            verifying,
            ..verdict
        }),
    );
    assert_ne!(known(&rig), before);
    let ToDraft::Open(open) = branches::open_ahead(1, prompt(12)) else {
        unreachable!("it opens");
    };
    let epoch = Epoch(2);
    rig.tell(A, ToDraft::Open(Open { epoch, ..open }));
    assert_eq!(known(&rig), format!("{:?}", Outlook::default()));
}
