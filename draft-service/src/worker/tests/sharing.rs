//! Several targets on one endpoint: who gets what, and what nobody else notices.

use foretoken_protocol::link::Consumer;

use super::{branches::K, *};
use crate::config::QuotaConfig;

/// Another target, of this deployment, dials.
fn dial(rig: &mut Rig, link: u64, namespace: &str, deployment: &str) -> LinkId {
    let link = LinkId(link);
    let hello = Hello {
        consumer: Consumer {
            namespace: namespace.into(),
            deployment: deployment.into(),
        },
        ..Hello::default()
    };
    rig.worker.take(0, ServerEvent::Up { link, hello });
    link
}

/// Why a session is refused, if it is.
pub(super) fn refusal(sent: &[(LinkId, ToTarget)], to: LinkId, id: u64) -> Option<&str> {
    sent.iter().find_map(|(link, message)| match message {
        ToTarget::Refused {
            session, reason, ..
        } if *link == to && session.0 == id => Some(reason.as_str()),
        _ => None,
    })
}

/// A prompt of 64 tokens that shares no page with those of other numbers.
pub(super) fn own_prompt(number: u32) -> Vec<TokenId> {
    own_prompt_of(64, number)
}

/// The same of another length.
pub(super) fn own_prompt_of(len: u32, number: u32) -> Vec<TokenId> {
    let tokens = prompt(len).into_iter();
    let tokens = tokens.map(|token| TokenId((token.0 + number) % 64));
    tokens.collect()
}

pub(super) fn held(rig: &Rig, link: LinkId) -> usize {
    let sessions = rig.worker.sessions.iter();
    sessions.filter(|session| session.link == link).count()
}

#[test]
fn a_namespace_has_the_slots_of_its_quota_over_all_its_targets_and_is_told_so() {
    let config = DraftConfig {
        quotas: vec![QuotaConfig {
            namespace: "chat".into(),
            max_slots: Some(2),
            weight: None,
        }],
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    let one = dial(&mut rig, 11, "chat", "one");
    let two = dial(&mut rig, 12, "chat", "two");
    rig.tell(one, open(1, prompt(8)));
    rig.tell(two, open(2, prompt(8)));
    rig.tell(two, open(3, prompt(8)));
    rig.tell(A, open(4, prompt(8)));
    let sent = rig.collect();
    let reason = refusal(&sent, two, 3);
    assert_eq!(reason, Some("namespace chat has all 2 slots of its quota"));
    assert!(is_refusal(&sent[2].1, true) || is_refusal(&sent[3].1, true));
    assert_eq!([held(&rig, one), held(&rig, two), held(&rig, A)], [1, 1, 1]);
    let epoch = Epoch(1);
    let session = SessionId(1);
    rig.tell(one, ToDraft::Close { session, epoch });
    rig.tell(two, open(5, prompt(8)));
    assert_eq!(
        held(&rig, two),
        2,
        "the slot that was given back is another's"
    );
}

#[test]
fn a_flood_of_sessions_leaves_every_other_target_its_share_of_slots() {
    let config = DraftConfig {
        max_sessions: 12,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    let flood = |rig: &mut Rig, from: u64| {
        (from..from + 50).for_each(|session| rig.tell(A, open(session, prompt(8))));
    };
    flood(&mut rig, 0);
    assert_eq!(held(&rig, A), 12, "nobody else wants any");
    let other = dial(&mut rig, 11, "b", "b");
    for round in 1..20 {
        for link in [B, other] {
            rig.tell(link, open(1000 + round, prompt(8)));
        }
        flood(&mut rig, 100 * round);
    }
    assert_eq!([A, B, other].map(|link| held(&rig, link)), [4, 4, 4]);
    let before: Vec<_> = rig.worker.sessions.iter().map(|s| s.draft.id()).collect();
    rig.collect();
    flood(&mut rig, 9000);
    let sent = rig.collect();
    assert!(
        sent.iter()
            .all(|(link, message)| *link == A && is_refusal(message, true))
    );
    let after: Vec<_> = rig.worker.sessions.iter().map(|s| s.draft.id()).collect();
    assert_eq!(before, after, "shares that are equal stay as they are");
}

#[test]
fn weights_divide_the_slots() {
    let config = DraftConfig {
        max_sessions: 12,
        quotas: vec![QuotaConfig {
            namespace: "big".into(),
            max_slots: None,
            weight: Some(3),
        }],
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    let big = dial(&mut rig, 11, "big", "x");
    for session in 0..50 {
        rig.tell(A, open(session, prompt(8)));
        rig.tell(big, open(session, prompt(8)));
    }
    assert_eq!([held(&rig, big), held(&rig, A)], [9, 3]);
}

#[test]
fn when_pages_run_out_the_target_with_fewer_keeps_its_session_though_it_is_younger() {
    let options = SimOptions {
        pages: 24,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    for session in 1..=4 {
        rig.tell(A, open(u64::from(session), own_prompt(session)));
    }
    rig.tell(B, open(9, prompt(20)));
    rig.settle();
    let mut base = 20;
    for round in 0..24 {
        let tokens = [TokenId(round); 6];
        rig.tell(B, outcome(9, round, base, &tokens, 2));
        base += tokens.len();
        let (_, sent) = rig.settle();
        assert_eq!(refusal(&sent, B, 9), None);
        assert_eq!(windows(&sent).len(), 1);
    }
    assert!(held(&rig, A) < 4, "pages did not run out");
    assert_eq!(held(&rig, B), 1);
}

#[test]
fn a_prompt_gets_the_pages_of_a_target_with_more_or_nobody_loses_any() {
    let options = SimOptions {
        pages: 24,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    for session in 1..=5 {
        rig.tell(A, open(u64::from(session), own_prompt(session)));
        rig.settle();
    }
    assert_eq!(held(&rig, A), 5);
    // It needs more than the other's sessions have until that would have less.
    rig.tell(B, open(9, prompt(200)));
    let sent = rig.collect();
    let reason = refusal(&sent, B, 9);
    assert_eq!(reason, Some("14 KV pages are needed and not free"));
    assert_eq!([held(&rig, A), held(&rig, B)], [5, 0]);
    rig.tell(B, open(10, own_prompt(30)));
    assert_eq!([held(&rig, A), held(&rig, B)], [4, 1]);
    let sent = rig.collect();
    let reason = refusal(&sent, A, 5);
    assert_eq!(reason, Some("its pages go to a target with fewer"));
}

#[test]
fn prompts_that_come_together_are_refused_what_those_before_them_are_yet_to_take() {
    let options = SimOptions {
        pages: 120,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    let long = |number| own_prompt_of(1600, number);
    let told = |sent: &[(LinkId, ToTarget)]| {
        let opened =
            |(_, message): &&(LinkId, ToTarget)| matches!(message, ToTarget::Opened { .. });
        let refused = |(_, message): &&(LinkId, ToTarget)| is_refusal(message, true);
        [
            sent.iter().filter(opened).count(),
            sent.iter().filter(refused).count(),
        ]
    };
    for session in 1..=5 {
        rig.tell(A, open(u64::from(session), long(session)));
    }
    let (_, sent) = rig.settle();
    assert_eq!(told(&sent), [1, 4], "opened, refused");
    // One that begins anew takes pages again; a short one fits beside it.
    rig.tell(A, {
        let ToDraft::Open(again) = open(1, long(6)) else {
            panic!("it opens")
        };
        let epoch = Epoch(2);
        ToDraft::Open(Open { epoch, ..again })
    });
    rig.tell(A, open(7, long(7)));
    rig.tell(A, open(8, own_prompt(8)));
    let (_, sent) = rig.settle();
    assert_eq!(told(&sent), [2, 1]);
    assert_eq!(held(&rig, A), 2, "nobody is evicted");
}

#[test]
fn one_session_gets_the_rows_of_its_targets_weight_whatever_crowd_another_brings() {
    // A step has eight rows; a prompt alone takes eight steps.
    for (weight, most) in [(1, 17), (3, 12)] {
        let config = DraftConfig {
            max_step_rows: 8,
            prefill_rows: 8,
            quotas: vec![QuotaConfig {
                namespace: "few".into(),
                max_slots: None,
                weight: Some(weight),
            }],
            ..DraftConfig::default()
        };
        let mut rig = Rig::new(&config, language());
        let few = dial(&mut rig, 11, "few", "x");
        for session in 0..20 {
            rig.tell(A, open(u64::from(session), own_prompt(session)));
        }
        for _ in 0..5 {
            assert!(rig.worker.step());
        }
        rig.tell(few, open(99, own_prompt(40)));
        let primed = |rig: &Rig| {
            let index = rig.worker.find(few, SessionId(99)).expect("has a slot");
            rig.worker.sessions[index].primed
        };
        let mut steps = 0;
        while !primed(&rig) {
            // Another crowd, that begins anew with every step.
            rig.tell(A, reopened(steps % 20, steps / 20 + 2));
            assert!(rig.worker.step());
            steps += 1;
        }
        assert!(steps <= most, "{steps} steps");
    }
}

/// Sessions of a target that says before every step what each decided, with a window to draft
/// outcomes for that is as long as a short one can be.
struct Flood {
    lens: Vec<usize>,
    round: u32,
}

impl Flood {
    fn open(rig: &mut Rig, sessions: usize) -> Self {
        for session in 0..sessions as u64 {
            rig.tell(A, open_ahead(session, own_prompt(session as u32)));
        }
        rig.settle();
        Self {
            lens: vec![64; sessions],
            round: 0,
        }
    }

    fn decide(&mut self, rig: &mut Rig) {
        let (window, token) = ([TokenId(self.round % 64); 31], TokenId(self.round % 64));
        for (session, len) in (0..).zip(&mut self.lens) {
            rig.tell(A, verifying(session, self.round, *len, &[token], &window));
            *len += 1;
        }
        self.round += 1;
    }

    /// How many of them the endpoint has read whole.
    fn read(&self, rig: &Rig) -> usize {
        let is_read = |(session, len): (u64, &usize)| {
            let index = rig.worker.find(A, SessionId(session)).expect("has a slot");
            let seq = rig.worker.sessions[index].seq;
            rig.worker.engine.len(seq).expect("it is open") == len + 31
        };
        (0..).zip(&self.lens).filter(|&one| is_read(one)).count()
    }
}

#[test]
fn windows_to_draft_ahead_for_keep_no_other_target_from_its_prompt_or_its_branches() {
    // They ask for all rows of every step.
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let mut flood = Flood::open(&mut rig, 8);
    for _ in 0..10 {
        flood.decide(&mut rig);
        assert!(rig.worker.step());
        assert_eq!(flood.read(&rig), 8, "nobody else wants any");
    }
    let asked = prompt(200);
    rig.tell(B, open_ahead(99, asked.clone()));
    rig.tell(
        B,
        verifying(99, 0, asked.len(), &[TokenId(7)], &[TokenId(5)]),
    );
    rig.collect();
    let (mut read, mut steps, mut drafted) = (0, 0, 0);
    while drafted < K {
        assert!(steps < 30, "{drafted} columns in {steps} steps");
        flood.decide(&mut rig);
        assert!(rig.worker.step());
        read += flood.read(&rig);
        steps += 1;
        let sent = rig.collect();
        drafted += entries(&sent).iter().filter(|(to, _)| *to == B).count() as u32;
    }
    assert!(read >= 4 * steps, "{read} in {steps} steps");
}

/// Steps after which another target leaves again, in the middle of what it asked for.
const STAYS: usize = 15;
/// Tokens of its prompts, two of which take more steps than that.
const LEN: u32 = 160;

/// Tokens that A's session gets drafted in each of some rounds, and in how many steps: alone, or while another
/// target comes and goes in every one of them and wants all rows while it is there.
fn rounds_of_who_stays(is_alone: bool) -> Vec<(u32, usize)> {
    let config = DraftConfig {
        max_step_rows: 16,
        prefill_rows: 16,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    // How much is drafted depends on the time that there is, and so on the machine, unless nobody hurries.
    rig.worker.unhurried = true;
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.settle();
    let mut rounds = Vec::new();
    for round in 0..30 {
        let other = LinkId(20 + u64::from(round));
        let theirs = [0, 1];
        if !is_alone {
            dial(&mut rig, other.0, "b", "b");
            for session in theirs {
                let asked = own_prompt_of(LEN, 2 * round + session as u32);
                rig.tell(other, open_ahead(session, asked));
                rig.tell(
                    other,
                    verifying(session, 0, LEN as usize, &[TokenId(7)], &[TokenId(5)]),
                );
            }
        }
        let (len, token) = (20 + round as usize, TokenId(round));
        rig.tell(A, verifying(1, round, len, &[token], &[TokenId(5)]));
        let (mut drawn, mut steps, mut last) = (0, 0, 0);
        while rig.worker.step() {
            steps += 1;
            let sent = rig.collect();
            for (_, column) in entries(&sent).into_iter().filter(|(to, _)| *to == A) {
                drawn += column.drawn();
                last = steps;
            }
            // Some say so, and some die.
            if steps != STAYS || is_alone {
                continue;
            }
            if round % 2 == 0 {
                for session in theirs {
                    let (session, epoch) = (SessionId(session), Epoch(1));
                    rig.tell(other, ToDraft::Close { session, epoch });
                }
            } else {
                let (link, reason) = (other, "gone".to_owned());
                rig.worker.take(0, ServerEvent::Down { link, reason });
            }
        }
        assert!(is_alone || steps >= STAYS, "it had all that it wanted");
        rounds.push((drawn, last));
    }
    rounds
}

#[test]
fn whoever_joins_and_leaves_takes_no_more_than_half_of_the_steps_from_who_stays() {
    let (alone, beside) = (rounds_of_who_stays(true), rounds_of_who_stays(false));
    for (round, (alone, beside)) in alone.into_iter().zip(beside).enumerate() {
        assert_eq!(alone.0, beside.0, "round {round}");
        assert!(alone.0 >= K * 4, "round {round}: {} tokens", alone.0);
        let [alone, beside] = [alone, beside].map(|(_, steps)| steps);
        assert!(2 * alone < STAYS, "round {round}: {alone} steps");
        assert!(
            beside <= 2 * alone + 1,
            "round {round}: {beside} steps instead of {alone}"
        );
    }
}

#[test]
fn windows_that_are_waited_for_keep_no_other_target_from_its_prompt() {
    let config = DraftConfig {
        max_step_rows: 8,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    for session in 0..8 {
        rig.tell(A, open(session, own_prompt(session as u32)));
    }
    rig.settle();
    rig.tell(B, open(99, prompt(40)));
    let mut windows_of = [0, 0];
    for round in 0..20 {
        for session in 0..8 {
            let len = 64 + round as usize;
            rig.tell(A, outcome(session, round, len, &[TokenId(round)], 1));
        }
        if round == 12 {
            rig.tell(B, outcome(99, 0, 40, &[TokenId(7)], 1));
        }
        assert!(rig.worker.step());
        for (to, _) in windows(&rig.collect()) {
            windows_of[usize::from(to == B)] += 1;
        }
    }
    assert!(windows_of[0] >= 80 && windows_of[1] == 1, "{windows_of:?}");
}

/// The session begins anew, with other tokens.
fn reopened(session: u32, epoch: u32) -> ToDraft {
    let ToDraft::Open(again) = open(u64::from(session), own_prompt(session + 7)) else {
        panic!("it opens")
    };
    ToDraft::Open(Open {
        epoch: Epoch(epoch),
        ..again
    })
}

#[test]
fn a_prefix_is_found_by_its_own_tenant_and_under_its_own_salt_only() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let one = dial(&mut rig, 11, "a", "x");
    let same = dial(&mut rig, 12, "a", "x");
    let other = dial(&mut rig, 13, "b", "x");
    let salted = |session: u64, salt: u8| {
        let ToDraft::Open(whole) = open(session, prompt(40)) else {
            panic!("it opens")
        };
        let salt = [salt; 32];
        ToDraft::Open(Open { salt, ..whole })
    };
    let mut found = 0;
    for (session, (link, salt, known)) in [
        (one, 0, false),
        (same, 0, true),
        (other, 0, false),
        (one, 1, false),
        (same, 1, true),
        (same, 2, false),
        (A, 0, false),
        (B, 0, true),
    ]
    .into_iter()
    .enumerate()
    {
        rig.tell(link, salted(session as u64, salt));
        rig.settle();
        let hits = rig.worker.metrics.prefix_hits.get();
        assert_eq!(hits > found, known, "session {session}");
        found = hits;
    }
}
