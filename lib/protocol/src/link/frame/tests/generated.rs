//! Random messages.

use std::time::Duration;

use super::*;

pub(super) fn tokens(max: usize) -> impl Strategy<Value = Vec<TokenId>> {
    vec(any::<u32>().prop_map(TokenId), 0..max)
}

pub(super) fn proposals() -> impl Strategy<Value = Proposals> {
    let nodes = vec((any::<u32>(), any::<u32>()), 0..30);
    let tree = nodes.prop_map(|nodes| {
        let mut tree = Proposals::new();
        for (parent, token) in nodes {
            // A repeated child is left out.
            tree.push(parent % (tree.len() as u32 + 1), TokenId(token))
                .ok();
        }
        tree
    });
    prop_oneof![tokens(9).prop_map(Proposals::from), tree]
}

pub(super) fn sides() -> impl Strategy<Value = Vec<Side>> {
    let side = |(entry, after, token)| Side {
        entry,
        after,
        token: TokenId(token),
    };
    vec((0..300_u32, 0..70_u32, any::<u32>()).prop_map(side), 0..9)
}

pub(super) fn key() -> impl Strategy<Value = (SessionId, Epoch)> {
    (
        any::<u64>().prop_map(SessionId),
        any::<u32>().prop_map(Epoch),
    )
}

pub(super) fn sampling() -> impl Strategy<Value = SamplingParams> {
    let bias = vec((any::<u32>().prop_map(TokenId), -100.0_f32..100.0), 0..5);
    (
        0.0_f32..9.0,
        any::<u32>(),
        0.01_f32..=1.0,
        0.0_f32..=1.0,
        bias,
        tokens(4),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, logit_bias, banned_until_min)| SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: 1.0 + top_p,
                presence_penalty: min_p,
                frequency_penalty: -min_p,
                logit_bias,
                banned_until_min,
                min_tokens: top_k / 2,
            },
        )
}

pub(super) fn branching() -> impl Strategy<Value = Option<Branching>> {
    let fan_out = prop_oneof![
        Just(FanOut::Uniform),
        Just(FanOut::Geometric),
        Just(FanOut::Learned)
    ];
    let delivery = prop_oneof![Just(Delivery::Push), Just(Delivery::Pull)];
    option::of((0..=4096_u32, 0..=4096_u32, fan_out, delivery)).prop_map(|values| {
        values.map(|(lookahead, branches, fan_out, delivery)| Branching {
            lookahead,
            branches,
            fan_out,
            delivery,
        })
    })
}

pub(super) fn entries() -> impl Strategy<Value = ToTarget> {
    let keys = vec((any::<u32>(), any::<u32>()), 0..30);
    let numbers = (any::<u32>(), any::<u32>(), (any::<bool>(), any::<u32>()));
    let drawn = drawn(tokens(60).boxed());
    (key(), numbers, (keys, sides()), drawn).prop_map(
        |(
            (session, epoch),
            (round, base_len, (late, before)),
            (keys, sides),
            (tokens, q, saguaro),
        )| {
            let keys = keys.into_iter().map(|(accepted, token)| OutcomeKey {
                accepted,
                token: TokenId(token),
            });
            ToTarget::Entries(Entries {
                session,
                epoch,
                round: Round(round),
                base_len,
                late,
                before,
                keys: keys.collect(),
                tokens,
                sides,
                q,
                saguaro,
            })
        },
    )
}

pub(super) fn saguaro() -> impl Strategy<Value = Saguaro> {
    (0..9_u32, 0..=20_u32).prop_map(|(fan_out, lost)| Saguaro::new(fan_out, lost))
}

/// Tokens, and perhaps what they were drawn from.
pub(super) fn drawn(
    tokens: BoxedStrategy<Vec<TokenId>>,
) -> impl Strategy<Value = (Vec<TokenId>, Vec<SparseDistribution>, Saguaro)> {
    let q = (distribution(), distribution());
    (tokens, option::of((q, saguaro()))).prop_map(|(tokens, q)| match q {
        Some(((a, b), saguaro)) if !tokens.is_empty() => {
            let q = [a, b].into_iter().cycle().take(tokens.len()).collect();
            (tokens, q, saguaro)
        }
        Some(_) | None => (tokens, Vec::new(), Saguaro::default()),
    })
}

pub(super) fn to_draft() -> impl Strategy<Value = ToDraft> {
    let ids = (1..=u128::MAX, 1..=u64::MAX, any::<u8>());
    let trace = ids.prop_map(|(trace, span, flags)| TraceContext {
        trace: trace.try_into().expect("not zero"),
        span: span.try_into().expect("not zero"),
        flags: TraceFlags::new(flags),
    });
    let kept = (option::of(any::<[u8; 32]>()), any::<bool>());
    let how = (
        sampling(),
        option::of(1..300_u32),
        (kept, option::of(trace)),
    );
    let open = (key(), how, any::<u64>(), tokens(40), branching()).prop_map(
        |((session, epoch), (sampling, support, (kept, trace)), seed, tokens, branching)| {
            let prompt_len = tokens.len() as u32 / 2;
            let (salt, keeps_nothing) = kept;
            ToDraft::Open(Open {
                session,
                epoch,
                sampling,
                verification: support.map_or(Verification::Coupled, |support| {
                    Verification::Rejection { support }
                }),
                seed: Seed(seed),
                prompt_len,
                tokens,
                branching,
                salt: salt.unwrap_or_default(),
                keeps_nothing,
                trace,
            })
        },
    );
    let rise = || any::<(u32, u32)>().prop_map(|(after, parts)| Rise { after, parts });
    let tree = (any::<u32>(), any::<u32>(), rise()).prop_map(|(nodes, parts, rise)| TreeBudget {
        nodes,
        cutoff: Cutoff { parts, rise },
    });
    let next = (
        0..=4096_u32,
        option::of(proposals()),
        0..=4096_u32,
        option::of(tree),
        (
            saguaro(),
            any::<(u32, u32, u32)>(),
            (any::<u32>(), any::<u32>(), rise()),
        ),
    );
    let outcome = (key(), any::<u32>(), any::<u32>(), tokens(9), next).prop_map(
        |((session, epoch), round, base_len, tokens, next)| {
            let (lookahead, verifying, branches, tree, (saguaro, waited, cutoffs)) = next;
            let (lingered, awaited, elapsed) = waited;
            let round = Round(round);
            ToDraft::Outcome(Outcome {
                session,
                epoch,
                round,
                base_len,
                tokens,
                lookahead,
                verifying,
                branches,
                tree,
                cutoffs: Cutoffs {
                    window: cutoffs.0,
                    entries: cutoffs.1,
                    rise: cutoffs.2,
                },
                saguaro,
                lingered: Duration::from_micros(lingered.into()),
                awaited,
                elapsed: Duration::from_micros(elapsed.into()),
            })
        },
    );
    let close = key().prop_map(|(session, epoch)| ToDraft::Close { session, epoch });
    prop_oneof![open, outcome, close]
}

pub(super) fn distribution() -> impl Strategy<Value = SparseDistribution> {
    let token = prop_oneof![0..9_u32, any::<u32>(), Just(u32::MAX)];
    vec((token, 1..=SparseDistribution::MAX_WEIGHT), 1..6).prop_map(|mut entries| {
        entries.sort_by_key(|entry| entry.0);
        entries.dedup_by_key(|entry| entry.0);
        let entries = entries.into_iter();
        SparseDistribution {
            entries: entries
                .map(|(token, weight)| (TokenId(token), weight))
                .collect(),
        }
    })
}

pub(super) fn to_target() -> impl Strategy<Value = ToTarget> {
    let opened = key().prop_map(|(session, epoch)| ToTarget::Opened { session, epoch });
    let refused =
        (key(), ".{0,20}", any::<bool>()).prop_map(|((session, epoch), reason, retry)| {
            ToTarget::Refused {
                session,
                epoch,
                reason,
                retry,
            }
        });
    let q = option::of((vec(distribution(), 9), saguaro()));
    let place = option::of(0..u32::MAX);
    let window = (key(), any::<u32>(), any::<u32>(), proposals(), q, place).prop_map(
        |((session, epoch), round, base_len, mut proposals, q, place)| {
            let (mut q, mut saguaro) = q.unwrap_or_default();
            if !q.is_empty() {
                proposals.cut_below(q.len());
            }
            q.truncate(proposals.height());
            if q.is_empty() {
                saguaro = Saguaro::default();
            }
            ToTarget::Window(Window {
                session,
                epoch,
                round: Round(round),
                base_len,
                proposals,
                q,
                saguaro,
                place,
            })
        },
    );
    let resync = (key(), any::<u32>()).prop_map(|((session, epoch), have_len)| {
        ToTarget::Resync(Resync {
            session,
            epoch,
            have_len,
        })
    });
    let account = (key(), any::<[u32; 5]>(), vec(any::<u32>(), 0..9)).prop_map(
        |((session, epoch), [judged, ranked, ranks, ahead, awaited], limits)| {
            ToTarget::Account(Account {
                session,
                epoch,
                judged,
                ranked,
                ranks,
                ahead: Duration::from_micros(ahead.into()),
                awaited: Duration::from_micros(awaited.into()),
                limits: BoundCounts::by_place(limits),
            })
        },
    );
    prop_oneof![opened, refused, window, entries(), resync, account]
}
