//! The same request with the same seed, one time after the other.
//!
//! What was said before was decided by the coins that are about to decide again, so that who proposes
//! it knows them. The third time shows it: what was accepted is proposed and accepted again, and what
//! replaced a proposal meets the coin that turned that down. With what others said on offer, the
//! likeliest token then comes in 86 of 100 cases instead of 74.

use foretoken_protocol::Address;
use foretoken_target::OnLossName;

use super::*;

/// Above this chi-square of 3 degrees of freedom comes once in a hundred million.
const MOST: f64 = 40.0;

fn short(seed: u64, policy: &str) -> GenerateRequest {
    let mut request = sampled(seed, policy);
    request.max_tokens = 3;
    // Nobody else has said anything.
    request.cache_salt = Some(format!("{seed}"));
    request
}

/// What requests with these seeds come to when they are asked for the third time.
struct ThirdTimes {
    /// Second tokens, by rank.
    counts: [f64; 4],
    stats: Vec<GenerationStats>,
}

impl ThirdTimes {
    async fn of(client: &GenerateClient, policy: &str, seeds: u64) -> Self {
        let mut times = Self {
            counts: [0.0; 4],
            stats: Vec::new(),
        };
        times.fill(client, policy, 0..seeds).await;
        times
    }

    /// Adds those with these seeds.
    async fn fill(&mut self, client: &GenerateClient, policy: &str, seeds: Range<u64>) {
        let mut answers = futures::stream::iter(seeds)
            .map(async |seed| {
                for _ in 0..2 {
                    ranks(client, short(seed, policy)).await;
                }
                ranks(client, short(seed, policy)).await
            })
            .buffer_unordered(AT_ONCE);
        while let Some((ranks, stats)) = answers.next().await {
            self.counts[ranks[1] as usize] += 1.0;
            self.stats.push(stats);
        }
    }

    fn assert_lawful(&self) {
        let total: f64 = self.counts.iter().sum();
        let terms = self.counts.iter().zip(LAW).map(|(count, p)| {
            let expected = total * p;
            (count - expected).powi(2) / expected
        });
        let found: f64 = terms.sum();
        assert!(found < MOST, "{found} {:?}", self.counts);
    }
}

fn standing_in() -> TargetConfig {
    TargetConfig {
        listen: vec![Address::loopback(0)],
        on_loss: OnLossName::Local,
        lookahead: LookaheadConfig::Fixed(3),
        ..TargetConfig::default()
    }
}

#[tokio::test]
async fn what_is_asked_again_with_the_same_seed_follows_the_law_again() {
    let (client, target) = target(rejecting(standing_in()), runner(sim(Role::Target)));
    let third = ThirdTimes::of(&client, "Speculative", 1200).await;
    third.assert_lawful();
    target.end().await;
}

#[tokio::test]
async fn what_is_asked_again_follows_the_law_again_after_misses_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    // So slow that nothing has been drafted ahead by the time that it is over.
    let mut options = sim(Role::Draft { agreement: 0.9 });
    options.latency.base = Duration::from_millis(5);
    let endpoint = draft(&address, runner(options));
    let config = TargetConfig {
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(3),
            fallback: FallbackName::Local,
            ..SsdConfig::default()
        },
        ..with_endpoint(&address)
    };
    let (client, target) = target(rejecting(config), runner(sim(Role::Target)));
    warm(&client).await;
    let mut third = ThirdTimes::of(&client, "SSD", 0).await;
    let misses = |third: &ThirdTimes| third.stats.iter().map(|stats| stats.misses).sum::<u32>();
    for seeds in draws(1200) {
        third.fill(&client, "SSD", seeds).await;
        if misses(&third) > 1000 {
            break;
        }
    }
    third.assert_lawful();
    let misses = misses(&third);
    assert!(misses > 1000, "{misses}");
    target.end().await;
    endpoint.end().await;
}

/// Else the others would show nothing.
#[tokio::test]
async fn with_coupled_noise_what_is_asked_again_is_proposed_and_accepted() {
    let (client, target) = target(standing_in(), runner(sim(Role::Target)));
    let third = ThirdTimes::of(&client, "Speculative", 100).await;
    let known = third.stats.iter().filter(|stats| stats.accepted > 0);
    let known = known.count();
    assert!(known > 50, "{known}");
    target.end().await;
}
