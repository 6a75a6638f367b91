//! Whatever follows a verdict that nothing was drafted for, samples follow the target's law.
//!
//! Of each kind there are 10^5 tokens, but of two that are told from others by who decides alone:
//! `LockStep` chooses what `Auto` does, by another rule, and with `Pull` both that there can be ask the
//! endpoint. Of these there are 2 * 10^4.

use foretoken_protocol::Address;
use foretoken_target::{DeliveryName, OnLossName};

use super::{refrains::Refrains, *};

/// A way to go on after misses.
struct Kind {
    fallback: FallbackName,
    delivery: DeliveryName,
    requests: u64,
    /// Whether so much of it has happened that it would show if anything was wrong.
    happened: fn(&Tally) -> bool,
}

fn pushed(fallback: FallbackName, requests: u64, happened: fn(&Tally) -> bool) -> Kind {
    Kind {
        fallback,
        delivery: DeliveryName::Push,
        requests,
        happened,
    }
}

/// A target whose steps leave time to draft in.
fn unhurried() -> SimOptions {
    let mut options = instant(Role::Target);
    options.latency.base = Duration::from_millis(5);
    options
}

/// A request in few words.
fn terse(seed: u64, policy: &str) -> GenerateRequest {
    let mut request = sampled(seed, policy);
    for token in &mut request.tokens {
        token.0 %= Refrains::VOCAB;
    }
    request
}

/// Has so many requests answered, and more until enough has happened.
async fn assert_lawful(
    name: &str,
    client: &GenerateClient,
    (policy, requests): (&str, u64),
    happened: impl Fn(&Tally) -> bool,
) {
    let mut tally = Tally::default();
    for seeds in draws(requests) {
        let asked = seeds.map(|seed| terse(seed, policy));
        tally.fill(client, asked).await;
        if happened(&tally) {
            break;
        }
    }
    let found = tally.chi_square();
    assert!(found < MOST, "{name}: {found} {tally:?}");
    assert!(happened(&tally), "{name}: {tally:?}");
}

/// The same with an endpoint, one kind after the other.
async fn assert_kinds_lawful(kinds: impl IntoIterator<Item = Kind>) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let role = Role::Draft { agreement: 0.6 };
    let endpoint = draft(&address, Refrains::runner(instant(role)));
    for kind in kinds {
        let (fallback, delivery) = (kind.fallback, kind.delivery);
        let config = rejecting(TargetConfig {
            ssd: SsdConfig {
                lookahead: LookaheadConfig::Fixed(3),
                budget: 4,
                fallback,
                delivery,
                ..SsdConfig::default()
            },
            ..with_endpoint(&address)
        });
        let (client, target) = target(config, Refrains::runner(unhurried()));
        let name = format!("{fallback:?} {delivery:?}");
        assert_lawful(&name, &client, ("SSD", kind.requests), kind.happened).await;
        target.end().await;
    }
    endpoint.end().await;
}

#[tokio::test]
async fn after_misses_that_no_endpoint_is_asked_about_samples_follow_the_law() {
    assert_kinds_lawful([
        pushed(FallbackName::Nothing, 1000, |tally| {
            assert_eq!(tally.local + tally.remote, 0, "{tally:?}");
            tally.hits > 1000 && tally.alone > 1000
        }),
        pushed(FallbackName::Local, 1000, |tally| {
            assert_eq!(tally.remote, 0, "{tally:?}");
            tally.hits > 1000 && tally.local > 1000
        }),
    ])
    .await;
}

#[tokio::test]
async fn after_misses_that_an_endpoint_may_be_asked_about_samples_follow_the_law() {
    assert_kinds_lawful([
        pushed(FallbackName::Remote, 1000, |tally| {
            assert_eq!(tally.local, 0, "{tally:?}");
            tally.hits > 1000 && tally.remote > 1000
        }),
        pushed(FallbackName::Auto, 1000, |tally| {
            tally.hits > 1000 && tally.alone.min(tally.local).min(tally.remote) > 100
        }),
        // The endpoint is asked as long as the rule thinks that so many rows are few.
        pushed(FallbackName::LockStep, 200, |tally| {
            tally.hits > 200 && tally.local > 200
        }),
    ])
    .await;
}

#[tokio::test]
async fn samples_of_windows_that_are_pulled_follow_the_law() {
    let kind = |fallback, requests, happened| Kind {
        delivery: DeliveryName::Pull,
        ..pushed(fallback, requests, happened)
    };
    assert_kinds_lawful([
        kind(FallbackName::Auto, 1000, |tally| {
            tally.hits > 1000 && tally.remote > 1000
        }),
        kind(FallbackName::Remote, 200, |tally| {
            tally.hits > 200 && tally.remote > 200
        }),
    ])
    .await;
}

#[tokio::test]
async fn samples_of_a_target_that_proposes_for_itself_follow_the_law() {
    for policy in ["Speculative", "SSD"] {
        let config = rejecting(TargetConfig {
            listen: vec![Address::loopback(0)],
            on_loss: OnLossName::Local,
            lookahead: LookaheadConfig::Fixed(3),
            ..TargetConfig::default()
        });
        let (client, target) = target(config, Refrains::runner(unhurried()));
        // Of both together there are 10^5 tokens.
        assert_lawful(policy, &client, (policy, 500), |tally| {
            let rejected = tally.drafted - tally.accepted;
            tally.accepted > 1000 && rejected > 1000
        })
        .await;
        target.end().await;
    }
}
