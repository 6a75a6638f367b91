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

/// What bound the builds of an endpoint like this, that may draft for so many outcomes: their number,
/// and time.
async fn builds(options: SimOptions, budget: u32) -> [u64; 2] {
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
    for seed in 0..3 {
        output(&client, ahead(request(seed, 60))).await;
    }
    let limits = bound(port, "foretoken_build_limits_total", ["budget", "time"]).await;
    target.end().await;
    endpoint.end().await;
    limits
}

#[tokio::test]
async fn builds_are_bound_by_the_outcomes_asked_for_or_by_the_time_of_a_verification() {
    let [budget, time] = builds(quick(0.8), 1).await;
    assert!(budget > time, "{budget} by the budget, {time} by time");
    // Two steps of this endpoint take longer than a verification.
    let base = Duration::from_millis(2);
    let options = SimOptions {
        latency: Latency {
            base,
            ..Latency::default()
        },
        ..sim(Role::Draft { agreement: 0.8 })
    };
    let [budget, time] = builds(options, 24).await;
    assert!(time > budget, "{budget} by the budget, {time} by time");
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
    let settled = async {
        // All is accepted and quick: one token, the most there may be, is soon known to pay.
        for seed in 0.. {
            let (_, stats) = output(&client, request(seed, 60)).await;
            for (place, (limit, count)) in stats.measured.limits.counts().enumerate() {
                assert_eq!(limit.name(), LIMITS[place]);
                of_requests[place] += u64::from(count);
            }
            if of_requests[0] > 10 {
                return;
            }
        }
    };
    let settled = tokio::time::timeout(PATIENT, settled).await;
    let counted = count().await;
    settled.unwrap_or_else(|_| panic!("bound otherwise: {counted:?}"));
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
    let before = counts().await;
    let (_, stats) = output(&client, ahead(request(1, 60))).await;
    let after = counts().await;
    let told = stats.endpoint;
    // What comes after the last columns of a request is not told; on a busy machine that is more.
    let is_most = |told: u64, counted: u64| told <= counted && told > counted / 2;
    let judged = after.0 - before.0;
    assert!(is_most(told.judged.into(), judged), "{told:?} of {judged}");
    assert!(told.judged > 5 && told.ranked <= told.judged, "{told:?}");
    assert!(told.ranks >= told.ranked.into(), "{told:?}");
    assert!(told.ahead > Duration::ZERO, "{told:?}");
    let limits: u64 = told
        .limits
        .counts()
        .map(|(_, count)| u64::from(count))
        .sum();
    let builds = after.1 - before.1;
    assert!(
        limits > 5 && is_most(limits, builds),
        "{told:?} of {builds}"
    );
    target.end().await;
    endpoint.end().await;
}
