use super::*;

const START: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).expect("a time")
}

fn rounds(windows: u64, length: f64) -> Rounds {
    Rounds {
        windows,
        accepted: ((length - 1.0) * windows as f64).round() as u64,
        ..Rounds::default()
    }
}

fn heard(old: (u64, f64), new: (u64, f64)) -> Heard {
    Heard {
        old: rounds(old.0, old.1),
        new: rounds(new.0, new.1),
        counted: COUNTED,
        ..Heard::default()
    }
}

/// A pool whose spec was changed from `a` to `b`, and what became of that, look by look.
struct Pool {
    wanted: &'static str,
    running: Option<&'static str>,
    rollout: RolloutSpec,
    status: RolloutStatus,
    is_settled: bool,
    has_canary: bool,
    ready: u32,
    trouble: Option<&'static str>,
    is_used: bool,
}

impl Pool {
    fn edited() -> Self {
        Self {
            wanted: "b",
            running: Some("a"),
            rollout: RolloutSpec::default(),
            status: RolloutStatus::default(),
            is_settled: true,
            has_canary: false,
            ready: 0,
            trouble: None,
            is_used: true,
        }
    }

    fn undecided(mut self, undecided: Undecided) -> Self {
        self.rollout.canary = Some(CanarySpec {
            undecided,
            ..CanarySpec::default()
        });
        self
    }

    fn look(&mut self, second: i64, heard: Heard) -> Course {
        let canary = CanaryPods {
            ready: self.ready,
            trouble: self.trouble.map(str::to_owned),
        };
        let Decision { course, status } = decide(&Given {
            wanted: self.wanted,
            running: self.running,
            rollout: self.rollout,
            before: &self.status,
            split: Split { old: 1, new: 1 },
            is_settled: self.is_settled,
            canary: self.has_canary.then_some(canary),
            heard,
            is_used: self.is_used,
            now: at(second),
        });
        // What the caller does about it, but for what takes time.
        match course {
            Course::Try => self.has_canary = true,
            Course::Promote => {
                self.is_settled = self.running == Some(self.wanted) && self.is_settled;
                self.running = Some(self.wanted);
            }
            Course::All => {
                self.running = Some(self.wanted);
                self.has_canary = false;
            }
            Course::Keep => self.has_canary = false,
        }
        self.status = status;
        course
    }

    /// Brings the new revision up.
    fn begun() -> Self {
        let mut pool = Self::edited();
        pool.begin();
        pool
    }

    fn begin(&mut self) {
        assert_eq!(self.look(0, Heard::default()), Course::Try);
        self.ready = 1;
        assert_eq!(self.look(10, Heard::default()), Course::Try);
    }

    fn outcome(&self) -> (RolloutResult, &str, &str) {
        let outcome = self.status.outcome.as_ref().expect("it is over");
        (outcome.result, &outcome.reason, &outcome.message)
    }
}

#[test]
fn one_that_is_as_good_is_promoted_and_its_trial_ends_when_all_pods_are_new() {
    let mut pool = Pool::begun();
    assert_eq!(pool.look(20, heard((200, 3.0), (200, 2.9))), Course::Try);
    let canary = pool.status.canary.as_ref().expect("it is tried");
    assert_eq!((canary.old.verdicts, canary.new.verdicts), (200, 200));
    assert_eq!(canary.new.acceptance_length, Some(2.9));
    assert_eq!(
        pool.look(30, heard((4000, 3.0), (4000, 2.9))),
        Course::Promote
    );
    assert_eq!(
        pool.outcome(),
        (
            RolloutResult::Promoted,
            "AsGood",
            "revision b had acceptance length 2.90 of 4000 verdicts, a had acceptance length 3.00 \
             of 4000 verdicts"
        )
    );
    assert_eq!(
        pool.look(40, Heard::default()),
        Course::Promote,
        "pods are old"
    );
    pool.is_settled = true;
    assert_eq!(pool.look(50, Heard::default()), Course::All);
    assert_eq!(pool.look(60, Heard::default()), Course::All);
    assert_eq!(pool.outcome().1, "AsGood");
    assert_eq!(pool.status.revision.as_deref(), Some("b"));
}

#[test]
fn what_chance_may_say_is_looked_at_for_longer_and_at_last_decided() {
    // The same draft, as it was measured.
    let mut equal = Pool::begun();
    assert_eq!(equal.look(20, heard((300, 3.9), (300, 3.3))), Course::Try);
    assert_eq!(
        equal.look(30, heard((3000, 3.6), (3000, 3.5))),
        Course::Promote
    );
    // What is clear needs no more.
    let mut bad = Pool::begun();
    assert_eq!(bad.look(20, heard((300, 3.4), (300, 1.1))), Course::Keep);
    // At the edge of what is tolerated.
    let edge = |windows| heard((windows, 3.0), (windows, 2.699));
    let mut most = Pool::begun();
    assert_eq!(most.look(20, edge(5999)), Course::Try);
    assert_eq!(most.look(30, edge(6000)), Course::Keep);
    let mut late = Pool::begun();
    assert_eq!(late.look(20, edge(1000)), Course::Try);
    assert_eq!(late.look(10 + 900, edge(1000)), Course::Keep);
}

#[test]
fn one_that_is_worse_is_rolled_back_and_not_tried_again_until_the_spec_asks_for_another() {
    let mut pool = Pool::begun();
    assert_eq!(pool.look(30, heard((400, 3.0), (300, 2.0))), Course::Keep);
    assert_eq!(pool.outcome().1, "LowerAcceptance");
    for second in (40..10_000).step_by(500) {
        assert_eq!(
            pool.look(second, heard((400, 1.0), (400, 9.0))),
            Course::Keep
        );
    }
    assert_eq!(pool.running, Some("a"));
    pool.wanted = "c";
    assert_eq!(pool.look(20_000, Heard::default()), Course::Try);
    assert_eq!(pool.status.outcome, None);
    pool.wanted = "a";
    assert_eq!(pool.look(20_010, Heard::default()), Course::All);
    assert_eq!((&pool.status.outcome, &pool.status.canary), (&None, &None));
    pool.wanted = "b";
    assert_eq!(
        pool.look(20_020, Heard::default()),
        Course::Try,
        "asked for again"
    );
}

#[test]
fn whoever_wants_a_worse_one_all_the_same_says_so() {
    let mut pool = Pool::begun();
    assert_eq!(pool.look(30, heard((400, 3.0), (300, 2.0))), Course::Keep);
    pool.rollout.kind = RolloutType::Rolling;
    assert_eq!(pool.look(40, Heard::default()), Course::All);
    assert_eq!(pool.look(50, Heard::default()), Course::All);
    assert_eq!(pool.status.outcome, None);
}

#[test]
fn a_pool_without_pods_and_one_of_unknown_make_has_nothing_to_compare() {
    let mut unknown = Pool::edited();
    unknown.running = None;
    assert_eq!(unknown.look(0, Heard::default()), Course::All);
    assert_eq!(Split::of(0, 25), Split { old: 0, new: 0 });
    assert_eq!(Split::of(1, 50), Split { old: 1, new: 1 });
    assert_eq!(Split::of(2, 1), Split { old: 1, new: 1 });
    assert_eq!(Split::of(10, 25), Split { old: 7, new: 3 });
    assert_eq!(Split::of(1000, 50), Split { old: 500, new: 500 });
}

#[test]
fn without_traffic_it_waits_until_the_deadline_and_does_what_is_asked_for() {
    for (undecided, course) in [
        (Undecided::Promote, Course::Promote),
        (Undecided::RollBack, Course::Keep),
    ] {
        let mut pool = Pool::edited().undecided(undecided);
        pool.begin();
        assert_eq!(
            pool.look(10 + 899, heard((100, 3.0), (100, 1.0))),
            Course::Try
        );
        assert_eq!(pool.look(10 + 900, heard((100, 3.0), (100, 1.0))), course);
        assert_eq!(pool.outcome().1, "TooFewVerdicts");
        assert_eq!(pool.look(5000, Heard::default()), course, "it stays so");
    }
}

#[test]
fn where_nobody_may_use_the_pool_nobody_is_waited_for() {
    let mut pool = Pool::edited();
    pool.is_used = false;
    assert_eq!(
        pool.look(0, Heard::default()),
        Course::Try,
        "it has to be ready"
    );
    pool.ready = 1;
    assert_eq!(pool.look(5, Heard::default()), Course::Promote);
    assert_eq!(pool.outcome().1, "Unused");
}

#[test]
fn one_that_never_becomes_ready_is_rolled_back_with_what_kept_it() {
    let mut pool = Pool::edited();
    pool.trouble = Some("the image cannot be pulled");
    assert_eq!(pool.look(0, Heard::default()), Course::Try);
    assert_eq!(pool.look(899, heard((5000, 3.0), (0, 1.0))), Course::Try);
    assert_eq!(pool.look(900, Heard::default()), Course::Keep);
    assert_eq!(
        pool.outcome(),
        (
            RolloutResult::RolledBack,
            "NotReady",
            "revision b was not ready within 900 s: the image cannot be pulled"
        )
    );
}

#[test]
fn one_that_becomes_ready_and_fails_again_and_again_is_never_promoted() {
    let mut pool = Pool::begun();
    for second in (20..900).step_by(20) {
        pool.ready = 1;
        let course = pool.look(second, heard((200, 3.0), (200, 3.0)));
        assert_eq!(course, Course::Try);
        pool.ready = 0;
        // However good it was.
        let course = pool.look(second + 10, heard((9000, 3.0), (9000, 3.0)));
        assert_eq!(course, Course::Try);
    }
    let canary = pool.status.canary.as_ref().expect("it is tried");
    assert_eq!(
        canary.ready_at,
        Some(Time(at(10))),
        "its deadline does not move"
    );
    assert_eq!(
        pool.look(910, heard((9000, 3.0), (9000, 3.0))),
        Course::Keep
    );
    assert_eq!(pool.outcome().1, "NotReady");
}

#[test]
fn one_that_targets_refuse_is_rolled_back_at_once() {
    let mut pool = Pool::begun();
    let refused = Heard {
        refused: Some("the target's tokenizer is x".into()),
        ..Heard::default()
    };
    assert_eq!(pool.look(11, refused), Course::Keep);
    let (result, reason, message) = pool.outcome();
    assert_eq!(
        (result, reason),
        (RolloutResult::RolledBack, "Incompatible")
    );
    assert!(
        message.ends_with("the target's tokenizer is x"),
        "{message}"
    );
}

#[test]
fn one_that_targets_have_no_use_for_is_rolled_back_at_the_deadline() {
    let few = (50, 1.1);
    let mut pool = Pool::begun();
    // However many the old one had before targets had found the new one.
    let much = (90_000, 3.0);
    assert_eq!(pool.look(10 + 899, heard(much, few)), Course::Try);
    assert_eq!(pool.look(10 + 900, heard((600, 3.0), few)), Course::Keep);
    assert_eq!(pool.outcome().1, "NotUsed");
    let mut calm = Pool::begun();
    assert_eq!(calm.look(10 + 900, heard((599, 3.0), few)), Course::Promote);
    assert_eq!(calm.outcome().1, "TooFewVerdicts");
    // Who has less than a minute may not have been found.
    let mut short = Pool::begun();
    short.rollout.canary = Some(CanarySpec {
        deadline_seconds: 30,
        ..CanarySpec::default()
    });
    assert_eq!(short.look(10 + 59, heard(much, few)), Course::Try);
    assert_eq!(short.look(10 + 60, heard(much, few)), Course::Keep);
    assert_eq!(short.outcome().1, "NotUsed");
}

#[test]
fn a_deadline_that_passed_while_nobody_counted_ends_nothing() {
    let told = heard((20_000, 3.0), (299, 3.0));
    let lately = |counted| Heard {
        counted,
        ..told.clone()
    };
    let mut pool = Pool::begun();
    let almost = COUNTED.saturating_sub(Duration::from_secs(1));
    assert_eq!(pool.look(5000, lately(Duration::ZERO)), Course::Try);
    assert_eq!(pool.look(5059, lately(almost)), Course::Try);
    assert_eq!(pool.look(5060, lately(COUNTED)), Course::Keep);
}

#[test]
fn an_operator_that_is_started_again_in_the_middle_goes_on_from_what_was_told() {
    let mut pool = Pool::begun();
    pool.look(20, heard((250, 3.0), (250, 2.5)));
    let text = serde_json::to_string(&pool.status).expect("a status");
    pool.status = serde_json::from_str(&text).expect("a status");
    let canary = pool.status.canary.clone().expect("it is tried");
    assert_eq!(canary.started_at, Time(at(0)));
    let (old, new) = (super::rounds(canary.old), super::rounds(canary.new));
    assert_eq!((old, new), (rounds(250, 3.0), rounds(250, 2.5)));
    let more = Heard {
        old: old.plus(rounds(1500, 3.0)),
        new: new.plus(rounds(1500, 2.5)),
        ..Heard::default()
    };
    assert_eq!(pool.look(60, more), Course::Keep);
    // And after the decision, before anything was done about it.
    let text = serde_json::to_string(&pool.status).expect("a status");
    pool.status = serde_json::from_str(&text).expect("a status");
    pool.has_canary = true;
    assert_eq!(pool.look(70, Heard::default()), Course::Keep);
    let mut good = Pool::begun();
    assert_eq!(
        good.look(20, heard((4000, 3.0), (4000, 3.0))),
        Course::Promote
    );
    good.running = Some("a");
    assert_eq!(good.look(30, Heard::default()), Course::Promote);
}

#[test]
fn small_changes_of_counts_are_not_told() {
    let mut pool = Pool::begun();
    pool.look(20, heard((100, 3.0), (100, 2.5)));
    let told = pool.status.clone();
    pool.look(25, heard((110, 3.1), (105, 2.4)));
    assert_eq!(pool.status, told);
    pool.look(30, heard((140, 3.1), (130, 2.4)));
    assert_ne!(pool.status, told);
}

#[test]
fn another_edit_in_the_middle_begins_anew() {
    let mut pool = Pool::begun();
    pool.look(20, heard((200, 3.0), (200, 2.5)));
    pool.wanted = "c";
    pool.ready = 0;
    assert_eq!(pool.look(30, heard((0, 1.0), (0, 1.0))), Course::Try);
    let canary = pool.status.canary.as_ref().expect("it is tried");
    assert_eq!(canary.revision, "c");
    assert_eq!(
        (canary.started_at.clone(), canary.old.verdicts),
        (Time(at(30)), 0)
    );
}
