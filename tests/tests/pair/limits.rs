//! What bounds an endpoint and a target is counted by its name.

use std::time::Duration;

use foretoken_draft::{DraftConfig, QuotaConfig};
use foretoken_engine::sim::{Latency, Role, SimOptions};
use foretoken_protocol::link::{Consumer, LinkEvent};
use foretoken_speculation::{
    Epoch, SessionId, TokenId,
    bounds::Bound as _,
    message::{Open, ToDraft},
};
use foretoken_target::{LookaheadConfig, SsdConfig, TargetConfig};

use super::{
    dialled::Dialled,
    metrics::Scrape,
    rig::*,
    ssd::{ahead, quick, slow},
};

/// How often each of these was what bound, as the service at `port` tells it.
async fn bound<const N: usize>(port: u16, metric: &str, limits: [&str; N]) -> [u64; N] {
    let scrape = Scrape::of(port).await;
    limits.map(|limit| scrape.count(&format!("{metric}{{limit=\"{limit}\"}}")))
}

/// Asks until most builds for a request are bound by that one, of their number and time, which is
/// `expected`: by an endpoint like this, that may draft for so many outcomes.
async fn builds(options: SimOptions, budget: u32, expected: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(options));
    let config = TargetConfig {
        ssd: SsdConfig {
            budget,
            ..SsdConfig::default()
        },
        ..with_endpoint(&address)
    };
    let (client, target) = target(config, runner(slow()));
    warm(&client).await;
    let counts = || bound(port, "foretoken_build_limits_total", ["budget", "time"]);
    let by_expected = async |seed| {
        let before = counts().await;
        output(&client, ahead(request(seed, 60))).await;
        let after = counts().await;
        let [own, other] = [expected, 1 - expected].map(|at| after[at] - before[at]);
        (own > other.max(5)).then_some(())
    };
    eventually("bound by what should bind", by_expected).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn builds_are_bound_by_the_outcomes_asked_for_or_by_the_time_of_a_verification() {
    builds(quick(0.8), 1, 0).await;
    // Two steps of this endpoint take longer than a verification.
    let base = Duration::from_millis(2);
    let options = SimOptions {
        latency: Latency {
            base,
            ..Latency::default()
        },
        ..sim(Role::Draft { agreement: 0.8 })
    };
    builds(options, 24, 1).await;
}

/// What two sessions of 60 tokens were turned away for by an endpoint like this: slots, quotas and
/// pages.
async fn refusals(mut config: DraftConfig, pages: usize) -> [u64; 3] {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    config.listen = vec![address.clone()];
    config.metrics_listen = Some("127.0.0.1:0".into());
    let options = SimOptions {
        pages,
        ..quick(0.8)
    };
    let (endpoint, port) = observed_draft(config, runner(options));
    let asked = tokio::task::spawn_blocking(move || {
        let consumer = Consumer {
            namespace: "n".into(),
            deployment: "d".into(),
        };
        let target = Dialled::new(&address, consumer);
        for session in [1, 2] {
            let open = Open {
                session: SessionId(session),
                epoch: Epoch(1),
                prompt_len: 60,
                tokens: (0..60).map(TokenId).collect(),
                ..Open::default()
            };
            let sent = target.link.send(vec![ToDraft::Open(open)]);
            sent.expect("it is up");
        }
        let mut answers = 0;
        target.wait("the answers", |event| {
            if let LinkEvent::Messages(messages) = event {
                answers += messages.into_iter().count();
            }
            (answers == 2).then_some(())
        });
    });
    asked.await.expect("it answers");
    let limits = ["slots", "quota", "pages"];
    let counts = bound(port, "foretoken_refusal_limits_total", limits).await;
    endpoint.end().await;
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_turned_away_is_counted_by_what_there_was_none_of() {
    let of_all = DraftConfig::default;
    assert_eq!(
        refusals(of_all(), 64).await,
        [0; 3],
        "there is room for both"
    );
    let one_slot = DraftConfig {
        max_sessions: 1,
        ..of_all()
    };
    assert_eq!(refusals(one_slot, 64).await, [1, 0, 0]);
    let one_of_its_quota = DraftConfig {
        quotas: vec![QuotaConfig {
            namespace: "n".into(),
            max_slots: Some(1),
            weight: None,
        }],
        ..of_all()
    };
    assert_eq!(refusals(one_of_its_quota, 64).await, [0, 1, 0]);
    assert_eq!(
        refusals(of_all(), 4).await,
        [0, 0, 2],
        "a page has 16 tokens"
    );
}

#[tokio::test]
async fn lookaheads_that_were_chosen_are_counted_by_what_bound_them() {
    const LIMITS: [&str; 6] = ["maximum", "acceptance", "answer", "step", "margin", "probe"];
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(quick(1.0)));
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 1 },
        ..with_endpoint(&address)
    };
    let (client, target, port) = observed_target(config, runner(slow()));
    let count = || bound(port, "foretoken_lookahead_limits_total", LIMITS);
    let mut fixed = request(0, 40);
    fixed.lookahead = Some(2);
    let (_, stats) = output(&client, fixed).await;
    assert_eq!(
        stats.measured.limits.counts().map(|(_, n)| n).sum::<u32>(),
        0
    );
    assert_eq!(count().await, [0; 6], "nobody chose anything");

    let mut of_requests = [0; 6];
    // All is accepted and quick: one token, the most there may be, is soon known to pay.
    let settled = async |seed| {
        let (_, stats) = output(&client, request(seed, 60)).await;
        for (place, (limit, count)) in stats.measured.limits.counts().enumerate() {
            assert_eq!(limit.name(), LIMITS[place]);
            of_requests[place] += u64::from(count);
        }
        (of_requests[0] > 10).then_some(())
    };
    eventually("bound by the maximum", settled).await;
    let counted = count().await;
    // Some were chosen for a request that was bound by them, or only just about to be.
    for (place, limit) in LIMITS.iter().enumerate() {
        let (told, all) = (of_requests[place], counted[place]);
        assert!(told <= all, "{limit}: {told} of {all}");
    }
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn a_request_is_told_what_its_endpoint_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(quick(0.8)));
    let (client, target) = target(with_endpoint(&address), runner(slow()));
    warm(&client).await;
    let counts = || async {
        let scrape = Scrape::of(port).await;
        let judged = scrape.count("foretoken_verdicts_judged_total");
        let limits = ["budget", "time", "worth", "weight", "rows", "pages"];
        let limits = bound(port, "foretoken_build_limits_total", limits).await;
        (judged, limits.iter().sum::<u64>())
    };
    let told_most = async |seed| {
        let before = counts().await;
        let (_, stats) = output(&client, ahead(request(seed, 60))).await;
        let after = counts().await;
        let told = stats.endpoint;
        let limits = told.limits.counts();
        let limits: u64 = limits.map(|(_, count)| u64::from(count)).sum();
        let (judged, builds) = (after.0 - before.0, after.1 - before.1);
        let case = format!("{told:?} of {judged} and {builds}");
        assert!(
            u64::from(told.judged) <= judged && limits <= builds,
            "{case}"
        );
        assert!(told.ranked <= told.judged, "{case}");
        assert!(told.ranks >= told.ranked.into(), "{case}");
        // What comes after the last columns of a request is not told; on a busy machine that is more.
        let is_most = u64::from(told.judged) > judged / 2 && limits > builds / 2;
        let is_much = told.judged > 5 && limits > 5 && told.ahead > Duration::ZERO;
        (is_most && is_much).then_some(())
    };
    eventually("is it told most", told_most).await;
    target.end().await;
    endpoint.end().await;
}
