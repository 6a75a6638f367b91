//! A target and a draft without weights: a language, and a draft that knows it imperfectly.
//!
//! After each context the target's logits are those of a Zipf law, `-s ln(rank)`, over a vocabulary
//! in an order of the context's own; s is drawn from five values, so that there are contexts where
//! one token is nearly certain and others where many are possible (about 1.5 nats in the mean). The
//! draft's logits are the target's plus independent Gaussian errors. Their standard deviation is the
//! one free parameter; it is set so that greedy target and draft agree as often as is asked for. In
//! few contexts the draft knows nothing: there it has a law of its own.
//!
//! Everything else (acceptance with temperature, how far the true token is from the draft's first
//! guess, what shared noise does to both) then follows from the product's own samplers.

use foretoken_speculation::{
    Seed, TokenId,
    hash::{mix, unit},
    noise::philox,
    sampling::{Sampler, SamplingParams, Scratch},
};

/// Entries of the vocabulary; a power of two.
pub(super) const VOCAB: usize = 256;
/// Exponents of the Zipf laws, and how many contexts in twenty have each.
const EXPONENTS: [(f32, u64); 5] = [(1.2, 2), (1.5, 3), (2.0, 4), (3.0, 5), (5.0, 6)];
/// Share of contexts in which the draft is at a loss. Gaussian errors alone have the true token among
/// the next few guesses nearly always; with these the paper's best case, GSM8K with 70B/1B, has the
/// hit rate of .9 that the paper speaks of.
const LOST: f64 = 0.015;
/// Errors to choose from; a power of two.
const ERRORS: usize = 8192;
/// Contexts over which a draft's agreement is measured.
const CONTEXTS: u64 = 12_000;
/// Halvings of the interval that the standard deviation is searched in.
const HALVINGS: u32 = 16;
/// Largest standard deviation, in nats: agreement is then below a fifth.
const WORST: f32 = 8.0;

/// Which half of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Target,
    Draft,
}

/// A context: what all its tokens, in their order, come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context(u64);

impl Default for Context {
    fn default() -> Self {
        Self::START
    }
}

impl Context {
    pub(super) const START: Self = Self(0x6a09_e667_f3bc_c908);

    #[must_use]
    pub(super) fn with(self, token: TokenId) -> Self {
        Self(mix(self.0 ^ u64::from(token.0).wrapping_mul(0x9e37_79b9)))
    }

    pub(super) fn of(tokens: &[TokenId]) -> Self {
        tokens.iter().fold(Self::START, |c, &token| c.with(token))
    }
}

/// A target and its draft.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// Standard deviation of the draft's errors, in nats.
    sigma: f32,
    logits: [Vec<f32>; EXPONENTS.len()],
    errors: Vec<f32>,
}

impl Pair {
    /// A draft with errors of standard deviation `sigma`.
    pub(super) fn new(sigma: f32) -> Self {
        let zipf = |(exponent, _): (f32, u64)| {
            let logit = |rank: usize| -exponent * (rank as f32 + 1.0).ln();
            (0..VOCAB).map(logit).collect()
        };
        Self {
            sigma,
            logits: EXPONENTS.map(zipf),
            errors: gaussians(),
        }
    }

    /// The pair whose greedy choices agree with this probability.
    pub(super) fn agreeing(agreement: f64) -> Self {
        let greedy = SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        };
        let mut pair = Self::new(0.0);
        let (mut low, mut high) = (0.0, WORST);
        for _ in 0..HALVINGS {
            pair.sigma = f32::midpoint(low, high);
            if pair.agreement(&greedy) > agreement {
                low = pair.sigma;
            } else {
                high = pair.sigma;
            }
        }
        pair
    }

    /// How often both choose the same token with the same noise.
    pub(super) fn agreement(&self, params: &SamplingParams) -> f64 {
        let mut scratch = Scratch::new();
        let (mut target, mut draft) = (Vec::new(), Vec::new());
        let mut same = 0_u32;
        for i in 0..CONTEXTS {
            let context = Context(mix(i));
            target.clear();
            draft.clear();
            self.append(Role::Target, context, &mut target);
            self.append(Role::Draft, context, &mut draft);
            let Ok(sampler) = Sampler::new(params.clone(), Seed(i), &[], 0) else {
                return f64::NAN;
            };
            let choice = sampler.choose(&target, &mut scratch);
            same += u32::from(choice == sampler.choose(&draft, &mut scratch));
        }
        f64::from(same) / CONTEXTS as f64
    }

    /// The logits after each context, one row after the other.
    pub(super) fn rows(&self, role: Role, contexts: &[Context]) -> Vec<f32> {
        let mut rows = Vec::with_capacity(contexts.len() * VOCAB);
        for &context in contexts {
            self.append(role, context, &mut rows);
        }
        rows
    }

    /// Appends the logits after `context` to `rows`.
    fn append(&self, role: Role, context: Context, rows: &mut Vec<f32>) {
        let state = mix(context.0 ^ 0xbb67_ae85_84ca_a73b);
        let mut twentieth = state % 20;
        let mut kind = 0;
        for (i, (_, share)) in EXPONENTS.iter().enumerate() {
            kind = i;
            if twentieth < *share {
                break;
            }
            twentieth -= share;
        }
        let logits = &self.logits[kind];
        let drawn = mix(state);
        let errors = drawn as usize;
        // What the draft takes for the truth when it is at a loss has nothing to do with it.
        let lost = role == Role::Draft && unit(mix(drawn)) < LOST;
        let order = if lost { mix(!drawn) } else { state };
        // An odd stride visits every rank once.
        let (first, stride) = (order >> 8, (order >> 16) | 1);
        let rank = |token: usize| {
            (first.wrapping_add((token as u64).wrapping_mul(stride)) % VOCAB as u64) as usize
        };
        match role {
            Role::Target => rows.extend((0..VOCAB).map(|token| logits[rank(token)])),
            Role::Draft => rows.extend((0..VOCAB).map(|token| {
                let error = self.errors[errors.wrapping_add(token * 37) % ERRORS];
                logits[rank(token)] + self.sigma * error
            })),
        }
    }
}

/// Standard normal deviates (Box and Muller 1958).
fn gaussians() -> Vec<f32> {
    let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
    (0..ERRORS as u32)
        .map(|i| {
            let [a, b, ..] = philox([i, 0, 0, 0], [1, 2]);
            let radius = (-2.0 * unit(a).ln()).sqrt();
            (radius * (std::f64::consts::TAU * unit(b)).cos()) as f32
        })
        .collect()
}
