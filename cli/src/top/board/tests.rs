use foretoken_service::rounds::Hello;

use super::{
    super::session::{FAREWELL, RECENT},
    *,
};

const TARGET: &str = "http://t:1";
const DRAFT: &str = "http://d:1";
const ROUTER: &str = "http://r:1";

fn place(name: &str, url: &str) -> Place {
    Place {
        name: name.into(),
        url: url.into(),
    }
}

fn scraped(url: &str, text: &str, at: Instant) -> News {
    News::Scraped(url.into(), Totals::parse(text), at)
}

fn told(session: u64, round: u32, accepted: u32, window: u32) -> News {
    let round = Round {
        session,
        round,
        policy: "SSD".into(),
        source: if window > 0 { "ahead" } else { "none" }.into(),
        window,
        accepted,
        emitted: accepted + 1,
        took_us: (round > 1).then_some(650),
        ..Round::default()
    };
    News::Told(TARGET.into(), Line::Round(round))
}

/// What an endpoint had done for a verdict on session 7 of the target that is called so.
fn built(target: &str, rank: Option<u32>) -> News {
    let build = Build {
        target: target.into(),
        session: 7,
        outcomes: 12,
        pushed: 40,
        judged: 1,
        rank,
        limit: Some("time".into()),
        ahead_us: 90,
        awaited_us: 10,
        ..Build::default()
    };
    News::Told(DRAFT.into(), Line::Build(build))
}

fn hello(url: &str, service: &'static str, instance: &str) -> News {
    let hello = Hello {
        service: service.into(),
        instance: instance.into(),
        tokens: false,
    };
    News::Told(url.into(), Line::Hello(hello))
}

fn board() -> Board {
    let mut board = Board::default();
    let places = [("target-0", TARGET), ("draft-0", DRAFT), ("router", ROUTER)];
    let places = places.map(|(name, url)| place(name, url));
    board.note(News::Places(places.to_vec()));
    board
}

/// Two looks at a target, two at a draft, and a router that does not answer.
fn filled() -> Board {
    let mut board = board();
    board.note(hello(TARGET, "target", "target-0"));
    let then = Instant::now();
    let now = then + Duration::from_secs(2);
    let began = UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - 100.0;
    let target = |tokens: u32, hits: u32, misses: u32| {
        format!(
            "process_start_time_seconds {began}
vllm:num_requests_running 2
vllm:generation_tokens_total {tokens}
foretoken_links_up 1
foretoken_hits_total{{round=\"later\"}} {hits}
foretoken_misses_total{{round=\"later\"}} {misses}"
        )
    };
    board.note(scraped(TARGET, &target(1000, 10, 10), then));
    board.note(scraped(TARGET, &target(1500, 19, 11), now));
    for at in [then, now] {
        board.note(scraped(
            DRAFT,
            "foretoken_builds_total 5\nforetoken_links 1",
            at,
        ));
    }
    board.note(News::Failed(ROUTER.into(), "no answer in time".into()));
    board
}

/// What is drawn by other tests.
pub(crate) fn example() -> Snapshot {
    let mut board = filled();
    for (round, accepted, window) in [(1, 0, 0), (2, 5, 5), (3, 2, 4), (4, 0, 0)] {
        board.note(told(7, round, accepted, window));
    }
    board.note(built("target-0", Some(3)));
    board.snapshot()
}

#[test]
fn a_session_has_figures_of_its_own_from_its_rounds_and_from_what_was_built_for_it() {
    let mut board = filled();
    board.note(built("target-0", Some(1)));
    assert!(
        board.snapshot().sessions.is_empty(),
        "no round was told yet"
    );
    let round = |session, round, hit| {
        let round = Round {
            session,
            round,
            policy: "SSD".into(),
            source: "ahead".into(),
            took_us: Some(105),
            verification_us: 100,
            bytes: 210,
            hit: Some(hit),
            late_tokens: 3,
            limit: Some("margin".into()),
            ..Round::default()
        };
        News::Told(TARGET.into(), Line::Round(round))
    };
    for (session, number, hit) in [(7, 2, true), (7, 3, false), (8, 2, true)] {
        board.note(round(session, number, hit));
    }
    for (target, rank) in [
        ("target-0", Some(4)),
        ("target-0", None),
        ("another", Some(30)),
    ] {
        board.note(built(target, rank));
    }
    let snapshot = board.snapshot();
    let [seven, eight] = snapshot.sessions.as_slice() else {
        panic!("{:?}", snapshot.sessions)
    };
    let figures = &seven.figures;
    assert_eq!(
        (figures.hit_rate, eight.figures.hit_rate),
        (Some(0.5), Some(1.0))
    );
    assert_eq!(
        (figures.decided_rank, eight.figures.decided_rank),
        (Some(4.0), None)
    );
    assert_eq!(figures.unranked_share, Some(0.5));
    assert_eq!(figures.hidden_share, Some(0.9));
    assert_eq!(figures.outcomes_per_build, Some(12.0));
    assert_eq!(figures.bytes_per_round, Some(210.0));
    let entries = figures.entry_tokens;
    assert_eq!((entries.pushed, entries.late), (Some(80.0), Some(6.0)));
    assert_eq!(figures.build_limits.keys().collect::<Vec<_>>(), ["time"]);
    assert_eq!(
        figures.lookahead_limits.keys().collect::<Vec<_>>(),
        ["margin"]
    );

    // Which of two targets of one name is meant cannot be said.
    board.note(hello(ROUTER, "target", "target-0"));
    board.note(built("target-0", Some(100)));
    assert_eq!(board.snapshot().sessions[0].figures.decided_rank, Some(4.0));
}

/// Sessions of a target whose rounds never say `hit`: number and source of each round, and place of what
/// was drafted ahead.
fn looked_up_elsewhere(
    policy: &'static str,
    rounds: &[(u32, &'static str, Option<u32>)],
) -> Figures {
    let mut board = filled();
    for &(round, source, place) in rounds {
        let round = Round {
            session: 7,
            round,
            policy: policy.into(),
            source: source.into(),
            place,
            took_us: (round > 1).then_some(650),
            ..Round::default()
        };
        board.note(News::Told(TARGET.into(), Line::Round(round)));
    }
    board.snapshot().sessions.remove(0).figures
}

#[test]
fn where_the_endpoint_looks_verdicts_up_the_next_window_tells_whether_they_were_drafted_for() {
    let rounds = [
        (1, "none", None),
        // That on the prompt had not been drafted for; two had, and then comes the rest of a window.
        (2, "remote", None),
        (3, "ahead", Some(1)),
        (4, "ahead", Some(4)),
        (5, "ahead", None),
        // Nothing was asked for after this one, so nothing is drafted for its own verdict.
        (6, "none", None),
        (7, "remote", None),
        // Proposals of the host are followed by what is asked of the endpoint.
        (8, "local", None),
        (9, "ahead", Some(2)),
        // What was between is not known.
        (12, "remote", None),
    ];
    let figures = looked_up_elsewhere("SSD", &rounds);
    assert_eq!(figures.hit_rate, Some(0.75));
    assert_eq!(figures.later_hit_rate, Some(1.0));
    assert_eq!(looked_up_elsewhere("Speculative", &rounds).hit_rate, None);
}

#[test]
fn what_a_verdict_says_of_its_hit_is_not_counted_again_with_the_next_window() {
    let mut board = filled();
    for (round, hit) in [(1, true), (2, false), (3, false)] {
        let round = Round {
            session: 7,
            round,
            policy: "SSD".into(),
            source: if round == 2 { "ahead" } else { "remote" }.into(),
            place: (round == 2).then_some(1),
            took_us: (round > 1).then_some(650),
            hit: Some(hit),
            ..Round::default()
        };
        board.note(News::Told(TARGET.into(), Line::Round(round)));
    }
    let figures = board.snapshot().sessions.remove(0).figures;
    assert_eq!(figures.hit_rate, Some(1.0 / 3.0));
}

#[test]
fn figures_are_those_of_the_interval_and_of_all_the_time() {
    let snapshot = filled().snapshot();
    let rate = snapshot.now.tokens_per_second.unwrap();
    assert!((rate - 250.0).abs() < 1.0, "{rate}");
    assert_eq!(snapshot.now.hit_rate, Some(0.9));
    assert_eq!(snapshot.all.hit_rate, Some(19.0 / 30.0));
    let rate = snapshot.all.tokens_per_second.unwrap();
    assert!(rate > 10.0 && rate <= 15.0, "{rate}");
    assert_eq!(snapshot.requests.running, Some(2));
    assert!(snapshot.is_anything_up());
}

/// Nobody asked a target, so what only targets count is not known; 0 would be a lie.
#[test]
fn a_router_alone_tells_what_it_counts_and_nothing_is_made_up_for_the_rest() {
    let mut board = Board::default();
    board.note(News::Places(vec![place("router", ROUTER)]));
    let nothing = board.snapshot();
    assert_eq!(nothing.requests, Requests::default());
    assert_eq!(nothing.now, Figures::default());
    let then = Instant::now();
    let now = then + Duration::from_secs(2);
    for (tokens, at) in [(1000, then), (3400, now)] {
        let text = format!(
            "foretoken_targets_ready 1\nvllm:num_requests_running 3\n\
             vllm:generation_tokens_total {tokens}"
        );
        board.note(scraped(ROUTER, &text, at));
    }
    let snapshot = board.snapshot();
    assert!((snapshot.now.tokens_per_second.unwrap() - 1200.0).abs() < 1.0);
    let requests = Requests {
        running: Some(3),
        ..Requests::default()
    };
    assert_eq!(snapshot.requests, requests);
    assert_eq!(
        (snapshot.now.late, snapshot.now.entry_tokens.used),
        (None, None)
    );
    assert_eq!(
        snapshot.services[0].tokens_per_second.map(f64::round),
        Some(1200.0)
    );
}

#[test]
fn services_are_told_by_what_they_say_or_show_and_one_that_fails_by_why() {
    let snapshot = filled().snapshot();
    let service = |name: &str| {
        let mut services = snapshot.services.iter();
        services.find(|service| service.name == name).unwrap()
    };
    assert_eq!(service("target-0").kind.as_deref(), Some("target"));
    assert_eq!(service("draft-0").kind.as_deref(), Some("draft"));
    assert_eq!(service("draft-0").links, Some(1));
    assert_eq!(
        service("router").trouble.as_deref(),
        Some("no answer in time")
    );
    let mut nothing = board();
    nothing.note(News::Failed(TARGET.into(), "refused".into()));
    assert!(!nothing.has_rates() && !nothing.snapshot().is_anything_up());
}

#[test]
fn rates_are_there_once_everybody_who_answers_was_asked_twice() {
    let mut board = board();
    board.note(News::Failed(ROUTER.into(), "refused".into()));
    let now = Instant::now();
    for (url, expected) in [
        (TARGET, false),
        (DRAFT, false),
        (TARGET, false),
        (DRAFT, true),
    ] {
        board.note(scraped(url, "a 1", now));
        assert_eq!(board.has_rates(), expected, "{url}");
    }
}

#[test]
fn a_session_has_its_latest_rounds_and_leaves_after_its_end() {
    let mut board = filled();
    for round in 1..=50 {
        board.note(told(7, round, round % 5, 5));
    }
    let snapshot = board.snapshot();
    let [session] = snapshot.sessions.as_slice() else {
        panic!("{:?}", snapshot.sessions)
    };
    assert_eq!((session.session, session.rounds), (7, 50));
    assert_eq!(session.target, "target-0");
    assert_eq!(session.recent.len(), RECENT);
    assert_eq!(session.recent[RECENT - 1].accepted, 0);
    assert_eq!(session.ahead_share, Some(1.0));
    assert_eq!(session.round_ms, Some(0.65));
    let key = (TARGET.to_owned(), 7);
    let known = board.sessions.get_mut(&key).unwrap();
    known.heard = Instant::now().checked_sub(2 * FAREWELL).unwrap();
    assert_eq!(board.snapshot().sessions.len(), 1, "it may go on");
    board.sessions.get_mut(&key).unwrap().ended = Some("length".into());
    assert!(board.snapshot().sessions.is_empty());
}

/// A long output that is looked at late.
#[test]
fn rounds_and_tokens_of_a_session_are_of_the_same_time() {
    let mut board = filled();
    for round in 700..=790 {
        board.note(told(7, round, 1, 5));
    }
    let snapshot = board.snapshot();
    let [session] = snapshot.sessions.as_slice() else {
        panic!("{:?}", snapshot.sessions)
    };
    assert_eq!((session.rounds, session.tokens), (91, 182));
}

#[test]
fn sessions_that_run_come_before_those_that_ended_of_which_the_latest_come_first() {
    let mut board = filled();
    for session in 1..=6 {
        board.note(told(session, 2, 1, 5));
    }
    let now = Instant::now();
    for (session, millis) in [(1, 30), (2, 10), (4, 20)] {
        let known = board.sessions.get_mut(&(TARGET.to_owned(), session));
        let known = known.unwrap();
        known.ended = Some("length".into());
        known.heard = now.checked_sub(Duration::from_millis(millis)).unwrap();
    }
    let snapshot = board.snapshot();
    let order = snapshot.sessions.iter().map(|session| session.session);
    assert_eq!(order.collect::<Vec<_>>(), [3, 5, 6, 2, 4, 1]);
}

#[test]
fn sessions_are_bounded_and_go_with_their_target() {
    let mut board = filled();
    for session in 0..2 * MOST_SESSIONS as u64 {
        board.note(told(session, 2, 1, 5));
    }
    assert_eq!(board.sessions.len(), MOST_SESSIONS);
    board.note(News::Places(vec![place("draft-0", DRAFT)]));
    assert!(board.snapshot().sessions.is_empty());
}

#[test]
fn a_target_that_begins_anew_has_new_requests_of_old_numbers() {
    let mut board = filled();
    for round in 1..=5 {
        board.note(told(7, round, 1, 5));
    }
    board.note(told(7, 1, 0, 0));
    board.note(told(7, 2, 3, 5));
    let shown = |board: &mut Board| {
        let snapshot = board.snapshot();
        let [session] = snapshot.sessions.as_slice() else {
            panic!("{:?}", snapshot.sessions)
        };
        (session.rounds, session.tokens)
    };
    assert_eq!(shown(&mut board), (2, 5));
    // Its first rounds were not heard.
    let late = |round, at_ms| {
        let round = Round {
            session: 7,
            round,
            at_ms,
            emitted: 1,
            ..Round::default()
        };
        News::Told(TARGET.into(), Line::Round(round))
    };
    board.note(late(3, 900));
    assert_eq!(shown(&mut board), (3, 6));
    board.note(late(300, 400));
    assert_eq!(shown(&mut board), (1, 1));
}
