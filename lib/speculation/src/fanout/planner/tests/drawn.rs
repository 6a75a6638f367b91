//! Guesses where proposals are drawn and verified by ratio: they hit as often as follows from the laws
//! of both sides, by enumeration of what a verdict may be.

use super::*;
use crate::{
    message::SparseDistribution,
    proposal::{Place, Proposer},
    saguaro::Saguaro,
    verify::{Drawn, RatioRule, RoundCoins, Verification, ratio_chain},
};

const ROUNDS: u32 = 4000;
/// Rounds in which planners learn.
const YOUNG: u32 = 1000;
const BUDGET: usize = 8;
/// Guesses that a power law is fitted over.
const FITTED: u32 = 16;

/// A round as it is drawn, and what may become of it.
struct Round {
    draft: Vec<Vec<f32>>,
    target: Vec<Vec<f32>>,
    window: Vec<TokenId>,
    q: Vec<SparseDistribution>,
    /// By accepted tokens and by token: probability that the verdict is this one.
    outcomes: Vec<Vec<f64>>,
    /// By accepted tokens: all tokens that can be decided, those first that the draft thinks likeliest.
    orders: Vec<Vec<usize>>,
}

impl Round {
    fn draw(number: u32, rule: RatioRule) -> Self {
        let (draft, target) = rows(number);
        let mut drafter = sampler(1.0, number.into());
        let (mut scratch, mut proposer) = (Scratch::new(), Proposer::default());
        let (mut window, mut q) = (Vec::new(), Vec::new());
        for (index, row) in (0..).zip(&draft[..WINDOW]) {
            let place = Place { start: 1, index };
            let cut = (Verification::SUPPORT, Saguaro::default());
            let (token, law) = proposer.draw(&drafter, &mut scratch, row, place, cut);
            drafter.push(token);
            window.push(token);
            q.push(law);
        }
        let order = |(k, row): (usize, &Vec<f32>)| {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            order.retain(|&token| window.get(k).is_none_or(|drawn| drawn.index() != token));
            order
        };
        let orders = draft.iter().enumerate().map(order).collect();
        let p: Vec<_> = target.iter().map(|row| softmax(row, row.len())).collect();
        let drawn = draft[..WINDOW].iter();
        let drawn: Vec<_> = drawn
            .map(|row| softmax(row, Verification::SUPPORT as usize))
            .collect();
        let outcomes = outcomes(rule, &window, &p, &drawn);
        Self {
            draft,
            target,
            window,
            q,
            outcomes,
            orders,
        }
    }

    /// Probability that this many tokens are accepted.
    fn ends(&self, accepted: usize) -> f64 {
        self.outcomes[accepted].iter().sum()
    }

    /// Probability that this many are accepted and one of the first `guesses` tokens is decided.
    fn hits(&self, accepted: usize, guesses: usize) -> f64 {
        let guesses = self.orders[accepted].iter().take(guesses);
        guesses.map(|&token| self.outcomes[accepted][token]).sum()
    }
}

/// The law of these logits, cut to the `kept` likeliest.
fn softmax(logits: &[f32], kept: usize) -> Vec<f64> {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (top, least) = (sorted[0], sorted[kept - 1]);
    let weigh = |&logit: &f32| {
        let weight = libm::exp(f64::from(logit - top));
        if logit < least { 0.0 } else { weight }
    };
    let weights: Vec<f64> = logits.iter().map(weigh).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Probabilities of all verdicts on a window whose tokens were drawn from `q`, where the target's laws
/// are `p`: token by token (Leviathan et al. 2023, algorithm 1), or all positions together (Sun et al.
/// 2024, algorithm 2).
fn outcomes(rule: RatioRule, window: &[TokenId], p: &[Vec<f64>], q: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut outcomes: Vec<Vec<f64>> = Vec::new();
    let mut reached = 1.0;
    for (k, token) in window.iter().enumerate() {
        // What of `p` is there to be covered, and with which probability the token is.
        let scale = if rule == RatioRule::Block {
            reached
        } else {
            1.0
        };
        let left = p[k].iter().zip(&q[k]);
        let left: Vec<f64> = left.map(|(p, q)| (scale * p - q).max(0.0)).collect();
        let total: f64 = left.iter().sum();
        let ratio = p[k][token.index()] / q[k][token.index()];
        let ends = match rule {
            RatioRule::Token => reached * (1.0 - ratio.min(1.0)),
            // That it ends here or earlier; those after it take their part below.
            RatioRule::Block if k == 0 => 1.0,
            RatioRule::Block => total / (total + 1.0 - reached).max(1e-300),
        };
        reached = match rule {
            RatioRule::Token => reached * ratio.min(1.0),
            RatioRule::Block => (reached * ratio).min(1.0),
        };
        let part = ends / total.max(1e-300);
        outcomes.push(left.iter().map(|left| left * part).collect());
    }
    outcomes.push(p[window.len()].iter().map(|p| p * reached).collect());
    if rule == RatioRule::Block {
        // The last position whose coin says so counts.
        let mut none_after = 1.0;
        for outcome in outcomes.iter_mut().rev() {
            let own: f64 = outcome.iter().sum();
            for p in outcome.iter_mut() {
                *p *= none_after;
            }
            none_after *= 1.0 - own;
        }
    }
    outcomes
}

/// The fan-out of Theorem 12 by what is true of these rounds: acceptance, and a power law of misses.
fn closed_form(rounds: &[Round]) -> Vec<usize> {
    let sum = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>();
    let ends: Vec<f64> = (0..=WINDOW).map(|k| sum(&|round| round.ends(k))).collect();
    let rejected: f64 = ends[..WINDOW].iter().sum();
    let tried: f64 = (0..WINDOW).map(|k| ends[k..].iter().sum::<f64>()).sum();
    let a = 1.0 - rejected / tried;
    let miss = |rows: std::ops::Range<usize>, guesses: usize| {
        let all: f64 = ends[rows.clone()].iter().sum();
        let hits = |round: &Round| rows.clone().map(|k| round.hits(k, guesses)).sum();
        1.0 - sum(&hits) / all
    };
    let points = (1..=FITTED).map(|guesses| {
        let miss = miss(0..WINDOW, guesses as usize);
        (libm::log(guesses.into()), libm::log(miss))
    });
    let points: Vec<(f64, f64)> = points.collect();
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / f64::from(FITTED);
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let slope =
        (mean(|point| point.0 * point.1) - x * y) / (mean(|point| point.0 * point.0) - x * x);
    let (r, scale) = (-slope, libm::exp(y - slope * x));
    let last_scale = miss(WINDOW..WINDOW + 1, 1) / scale;
    let b = libm::pow(a, 1.0 / (1.0 + r));
    let mut shares: Vec<f64> = (0..=WINDOW as i32).map(|k| b.powi(k)).collect();
    shares[WINDOW] *= libm::pow((1.0 - a) / last_scale, -1.0 / (1.0 + r));
    let all: f64 = shares.iter().sum();
    for share in &mut shares {
        *share *= BUDGET as f64 / all;
    }
    // In whole numbers: the largest remainders are rounded up.
    let mut counts: Vec<usize> = shares.iter().map(|share| *share as usize).collect();
    let mut order: Vec<usize> = (0..=WINDOW).collect();
    order.sort_by(|&a, &b| shares[b].fract().total_cmp(&shares[a].fract()));
    let left = BUDGET - counts.iter().sum::<usize>();
    order[..left].iter().for_each(|&k| counts[k] += 1);
    counts
}

/// What came of guesses, by round.
struct Played {
    hits: f64,
    /// What the planner said it would be.
    promised: f64,
    /// What follows from the laws for the numbers of guesses that were made.
    expected: f64,
    /// The same for others.
    expected_of: f64,
}

/// Plays all rounds; every guess is the next one in the order of its row.
fn play_drawn(fan_out: FanOut, rule: RatioRule, rounds: &[Round], others: &[usize]) -> Played {
    let mut planner = Planner::new(fan_out, Prior::default());
    let mut candidates = Candidates::new(RankBy::Likelihood, 32);
    let (mut scratch, mut guesses) = (Scratch::new(), Vec::new());
    let [mut hits, mut promised, mut expected, mut expected_of] = [0.0; 4];
    for (number, round) in (0..).zip(rounds) {
        let mut sampler = sampler(1.0, number.into());
        let window = &round.window[..];
        let row = |k: usize| &round.draft[k][..];
        candidates.rank(&mut sampler, &mut scratch, &window.into(), row);
        planner.plan(&candidates, BUDGET, &mut guesses);
        for guess in &guesses {
            let order = &round.orders[guess.key.accepted as usize];
            let token = order.get(guess.rank as usize).copied();
            assert_eq!(
                token,
                Some(guess.key.token.index()),
                "{guess:?} of round {number}"
            );
        }
        let q = &round.q[..];
        let mut coins = RoundCoins::new(Seed(number.into()), 1, 0);
        let row = |k: usize| &round.target[k][..];
        let drawn = Drawn { window, q };
        let verdict = ratio_chain(rule, &mut sampler, &mut scratch, drawn, row, &mut coins);
        let key = outcome(verdict.accepted as u32, verdict.decided.0);
        planner.observe(&candidates, key);
        if number < YOUNG {
            continue;
        }
        hits += f64::from(u8::from(guesses.iter().any(|guess| guess.key == key)));
        promised += guesses.iter().map(|guess| guess.probability).sum::<f64>();
        let made = counts(&guesses, WINDOW + 1);
        expected += (0..=WINDOW)
            .map(|k| round.hits(k, made[k] as usize))
            .sum::<f64>();
        expected_of += (0..=WINDOW).map(|k| round.hits(k, others[k])).sum::<f64>();
    }
    let counted = f64::from(ROUNDS - YOUNG);
    Played {
        hits: hits / counted,
        promised: promised / counted,
        expected: expected / counted,
        expected_of: expected_of / counted,
    }
}

#[test]
fn guesses_of_drawn_windows_hit_as_often_as_follows_from_both_laws() {
    for rule in [RatioRule::Token, RatioRule::Block] {
        let rounds: Vec<Round> = (0..ROUNDS)
            .map(|number| Round::draw(number, rule))
            .collect();
        for round in &rounds {
            let all: f64 = (0..=WINDOW).map(|k| round.ends(k)).sum();
            assert!((all - 1.0).abs() < 1e-9, "some verdict there is: {all}");
        }
        let geometric = closed_form(&rounds);
        for fan_out in [FanOut::Uniform, FanOut::Geometric, FanOut::Learned] {
            let played = play_drawn(fan_out, rule, &rounds, &geometric);
            let Played {
                hits,
                promised,
                expected,
                expected_of,
            } = played;
            let all = std::format!(
                "{fan_out:?}, {rule:?}: {hits} hit, {promised} were promised, {expected} expected, \
                 {expected_of} by the closed form"
            );
            assert!((hits - expected).abs() < 0.02, "{all}");
            assert!((hits - promised).abs() < 0.02, "{all}");
            if fan_out == FanOut::Geometric {
                assert!((expected - expected_of).abs() < 0.01, "{all}");
            }
        }
    }
}
