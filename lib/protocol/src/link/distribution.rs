//! What proposals were drawn from, in few bytes: ascending tokens as distances, weights as they are.

use foretoken_speculation::{
    TokenId, message::SparseDistribution, proposal::Proposer, saguaro::Saguaro,
};

use crate::wire::{
    ValueError, Wire, check_at_most, check_count,
    proto::speculation::v1::{self as proto, SparseQ},
};

/// Most tokens of all distributions of a message together.
const MAX_TOKENS: usize = 1 << 20;

/// Most tokens of one: whoever draws among more is no draft of ours, and would keep its target busy.
const MAX_SUPPORT: usize = Proposer::MAX_SUPPORT as usize;

/// None if there are no distributions.
pub(super) fn pack(q: &[SparseDistribution], saguaro: Saguaro) -> Option<SparseQ> {
    if q.is_empty() {
        return None;
    }
    let pairs = q.iter().map(|q| q.entries.len()).sum();
    let mut packed = SparseQ {
        counts: Vec::with_capacity(q.len()),
        tokens: Vec::with_capacity(pairs),
        weights: Vec::with_capacity(pairs),
        saguaro: write_saguaro(saguaro),
    };
    for q in q {
        packed.counts.push(q.entries.len() as u32);
        let mut next = 0;
        for &(token, weight) in &q.entries {
            packed.tokens.push(token.0.wrapping_sub(next));
            packed.weights.push(weight);
            next = token.0.wrapping_add(1);
        }
    }
    Some(packed)
}

/// One distribution for each of `expected` tokens, and how they were lowered; nothing if there are
/// none at all.
pub(super) fn unpack(
    q: Option<SparseQ>,
    expected: usize,
) -> Result<(Vec<SparseDistribution>, Saguaro), ValueError> {
    let Some(q) = q else {
        return Ok((Vec::new(), Saguaro::default()));
    };
    check_count("q.counts", q.counts.len(), expected)?;
    check_count("q.weights", q.weights.len(), q.tokens.len())?;
    check_at_most("q.tokens", q.tokens.len(), MAX_TOKENS)?;
    let mut pairs = q.tokens.iter().copied().zip(q.weights.iter().copied());
    let mut distributions = Vec::with_capacity(expected);
    for &count in &q.counts {
        check_at_most("a proposal's q", count as usize, MAX_SUPPORT)?;
        let found = pairs.len();
        if found < count as usize {
            return Err(ValueError::Count {
                field: "q.tokens",
                found,
                expected: count as usize,
            });
        }
        distributions.push(read(pairs.by_ref().take(count as usize))?);
    }
    check_count("q.tokens", q.tokens.len(), q.tokens.len() - pairs.len())?;
    Ok((distributions, read_saguaro(q.saguaro)?))
}

/// Nothing if nothing is lowered.
pub(super) fn write_saguaro(saguaro: Saguaro) -> Option<proto::Saguaro> {
    (saguaro != Saguaro::default()).then(|| saguaro.to_proto())
}

pub(super) fn read_saguaro(saguaro: Option<proto::Saguaro>) -> Result<Saguaro, ValueError> {
    Saguaro::from_proto(saguaro.unwrap_or_default())
}

/// A distribution, from distances between its tokens and its weights.
fn read(
    pairs: impl ExactSizeIterator<Item = (u32, u32)>,
) -> Result<SparseDistribution, ValueError> {
    let broken = ValueError::Distribution("a proposal's q");
    let mut entries = Vec::with_capacity(pairs.len());
    let mut next = Some(0_u32);
    for (distance, weight) in pairs {
        let token = next.and_then(|next| next.checked_add(distance));
        let Some(token) = token.filter(|_| (1..=SparseDistribution::MAX_WEIGHT).contains(&weight))
        else {
            return Err(broken);
        };
        entries.push((TokenId(token), weight));
        next = token.checked_add(1);
    }
    if entries.is_empty() {
        return Err(broken);
    }
    Ok(SparseDistribution { entries })
}
