//! The simulated language: next-token logits as a function of a context's hash.

use foretoken_speculation::{
    TokenId,
    hash::{mix, unit},
};

use super::{End, Role, SimOptions};

/// Probabilities of the likely tokens after every context. The rest, `1 - sum`, is spread over the
/// other tokens. Steep enough for acceptance to follow the set agreement, flat enough for seeds to
/// matter at temperature 1.
const PEAKS: [f64; 4] = [0.70, 0.15, 0.07, 0.03];

/// Where a draft that comes near has the target's likeliest token: from which draw on it is second,
/// third and fourth.
const NEAR_RANKS: [(f64, usize); 3] = [(0.85, 3), (0.70, 2), (0.0, 1)];

/// Logit of a token that must not occur: no noise reaches it.
const NEVER: f32 = -1.0e4;

/// A set of visible tokens: the sum of a mark per token. A sum, because the runner must see every
/// visible slot and no other, in whatever order and by whatever route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context(u64);

/// What the language leaves in a KV slot: depends on the token, its position and all it attended
/// to, as real keys and values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// A slot that was never written.
    pub(super) const POISON: Self = Self(0x7fb5_d329_728e_a185);
}

impl Context {
    pub(super) fn with(self, mark: Mark) -> Self {
        Self(self.0.wrapping_add(mark.0))
    }
}

/// The language with one model's knowledge of it.
#[derive(Clone, Debug)]
pub(super) struct Language {
    seed: u64,
    end: Option<End>,
    role: Role,
    near: f64,
    /// Logits of a context without likely tokens; rows start as copies of it.
    base: Vec<f32>,
    /// Logits of the likely tokens.
    peaks: [f32; PEAKS.len()],
}

impl Language {
    pub(super) fn new(options: &SimOptions) -> Self {
        let seed = mix(options.language ^ 0x6a09_e667_f3bc_c908);
        let rest = 1.0 - PEAKS.iter().sum::<f64>();
        let others = (options.vocab_size - PEAKS.len()) as f64;
        let jitter = |token: usize| (mix(seed ^ token as u64) >> 40) as f32 / (1 << 24) as f32;
        // Below 0.05 apart, all different enough for truncation by rank to be stable.
        let mut base: Vec<f32> = (0..options.vocab_size).map(|t| 0.05 * jitter(t)).collect();
        if let Some(end) = options.end {
            base[end.token.index()] = NEVER;
        }
        let peaks = PEAKS.map(|p| (p * others / rest).ln() as f32);
        Self {
            seed,
            end: options.end,
            role: options.role,
            near: options.near,
            base,
            peaks,
        }
    }

    /// What `token` at `position` leaves behind after having seen `context`.
    pub(super) fn mark(&self, context: Context, token: TokenId, position: u32) -> Mark {
        let place = u64::from(token.0) << 32 | u64::from(position);
        Mark(mix(
            mix(context.0 ^ self.seed).wrapping_add(mix(place ^ self.seed.rotate_left(17)))
        ))
    }

    /// Appends the logits after `context` to `rows`.
    pub(super) fn append_logits(&self, context: Context, rows: &mut Vec<f32>) {
        let start = rows.len();
        rows.extend_from_slice(&self.base);
        for (token, logit) in self.likely(context).into_iter().zip(self.peaks) {
            rows[start + token] = logit;
        }
    }

    /// The likely tokens after `context`, likeliest first, as this model sees it.
    fn likely(&self, context: Context) -> [usize; PEAKS.len()] {
        let state = mix(context.0 ^ self.seed.rotate_left(32));
        let ends = |end: &End| unit(mix(state ^ 1)) < end.rate;
        let first = self.end.filter(ends).map(|end| end.token.index());
        let truth = self.draw(mix(state ^ 2), first, None);
        match self.role {
            Role::Draft { agreement } if unit(mix(state ^ 3)) >= agreement => {
                if unit(mix(state ^ 5)) < self.near {
                    return nearly(truth, unit(mix(state ^ 6)));
                }
                self.draw(mix(state ^ 4), None, Some(truth[0]))
            }
            Role::Draft { .. } | Role::Target => truth,
        }
    }

    /// Distinct tokens from a hash, beginning with `first` if given and without `but`.
    fn draw(&self, state: u64, first: Option<usize>, but: Option<usize>) -> [usize; PEAKS.len()] {
        let vocab = self.base.len();
        let end = self.end.map(|end| end.token.index());
        let mut drawn = [usize::MAX; PEAKS.len()];
        for i in 0..drawn.len() {
            let mut token = (mix(state.wrapping_add(i as u64)) % vocab as u64) as usize;
            while drawn.contains(&token) || Some(token) == end || Some(token) == but {
                token = (token + 1) % vocab;
            }
            drawn[i] = token;
        }
        drawn[0] = first.unwrap_or(drawn[0]);
        drawn
    }
}

/// The target's tokens with the likeliest at another rank; `draw` in [0, 1) decides which.
fn nearly(mut tokens: [usize; PEAKS.len()], draw: f64) -> [usize; PEAKS.len()] {
    let rank = NEAR_RANKS.iter().find(|(from, _)| draw >= *from);
    tokens.swap(0, rank.map_or(1, |(_, rank)| *rank));
    tokens
}
