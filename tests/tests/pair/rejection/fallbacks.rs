//! Whatever follows a verdict that nothing was drafted for, 10^5 samples follow the target's law.

use foretoken_protocol::Address;
use foretoken_target::{DeliveryName, OnLossName};

use super::{refrains::Refrains, *};

/// A way to go on after misses.
struct Kind {
    fallback: FallbackName,
    delivery: DeliveryName,
    /// Whether so much of it has happened that it would show if anything was wrong.
    happened: fn(&Tally) -> bool,
}

fn pushed(fallback: FallbackName, happened: fn(&Tally) -> bool) -> Kind {
    Kind {
        fallback,
        delivery: DeliveryName::Push,
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

/// Has a thousand requests of a hundred tokens answered, and more until enough has happened.
async fn assert_lawful(
    name: &str,
    client: &GenerateClient,
    policy: &str,
    happened: impl Fn(&Tally) -> bool,
) {
    let mut tally = Tally::default();
    for seeds in draws(1000) {
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
        assert_lawful(&name, &client, "SSD", kind.happened).await;
        target.end().await;
    }
    endpoint.end().await;
}

#[tokio::test]
async fn after_misses_that_no_endpoint_is_asked_about_samples_follow_the_law() {
    assert_kinds_lawful([
        pushed(FallbackName::Nothing, |tally| {
            assert_eq!(tally.local + tally.remote, 0, "{tally:?}");
            tally.hits > 1000 && tally.alone > 1000
        }),
        pushed(FallbackName::Local, |tally| {
            assert_eq!(tally.remote, 0, "{tally:?}");
            tally.hits > 1000 && tally.local > 1000
        }),
    ])
    .await;
}

#[tokio::test]
async fn after_misses_that_an_endpoint_may_be_asked_about_samples_follow_the_law() {
    assert_kinds_lawful([
        pushed(FallbackName::Remote, |tally| {
            assert_eq!(tally.local, 0, "{tally:?}");
            tally.hits > 1000 && tally.remote > 1000
        }),
        pushed(FallbackName::Auto, |tally| {
            tally.hits > 1000 && tally.alone.min(tally.local).min(tally.remote) > 100
        }),
        // The endpoint is asked as long as the rule thinks that so many rows are few.
        pushed(FallbackName::LockStep, |tally| {
            tally.hits > 1000 && tally.local > 1000
        }),
    ])
    .await;
}

#[tokio::test]
async fn samples_of_windows_that_are_pulled_follow_the_law() {
    let kind = |fallback, happened| Kind {
        delivery: DeliveryName::Pull,
        ..pushed(fallback, happened)
    };
    assert_kinds_lawful([
        kind(FallbackName::Auto, |tally| {
            tally.hits > 1000 && tally.remote > 1000
        }),
        kind(FallbackName::Remote, |tally| {
            tally.hits > 1000 && tally.remote > 1000
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
        assert_lawful(policy, &client, policy, |tally| {
            let rejected = tally.drafted - tally.accepted;
            tally.accepted > 1000 && rejected > 1000
        })
        .await;
        target.end().await;
    }
}
