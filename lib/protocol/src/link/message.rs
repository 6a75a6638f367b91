//! Messages of one session, as protobuf.
//!
//! What is checked: arrays are whole, as long as each other and within limits; numbers are in
//! their range; a proposal's distributions are distributions. What is not: whether tokens exist
//! and rounds follow, which only the receiving session can tell.

use std::time::Duration;

use bytes::Bytes;
use foretoken_speculation::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    bounds::BoundCounts,
    fanout::FanOut,
    guess::OutcomeKey,
    message::{
        Account, Branching, Cutoff, Cutoffs, Delivery, Entries, Keyed as _, Open, Outcome, Resync,
        Rise, Side, ToDraft, ToTarget, TreeBudget, Window,
    },
    saguaro::Saguaro,
    sampling::SamplingParams,
    trace::TraceContext,
    verify::Verification,
};

use super::distribution;
use crate::wire::{
    ValueError, Wire, check_at_most, check_count, check_text, pack_tokens,
    proto::speculation::v1::{
        self as proto, DraftMessage, TargetMessage, draft_message, target_message,
    },
    unpack_tokens,
};

/// Most tokens an outcome or a window can have. Far above any lookahead that pays.
const MAX_WINDOW: usize = 4096;

/// Most outcomes that a part of entries can name, and that can be asked for.
const MAX_BRANCHES: usize = 4096;

/// Most tokens of a part of entries.
const MAX_PART: usize = 1 << 16;

/// That of a request that names none.
const NO_SALT: [u8; 32] = [0; 32];

/// A salt of 32 bytes, or none.
fn read_salt(bytes: &[u8]) -> Result<[u8; 32], ValueError> {
    if bytes.is_empty() {
        return Ok(NO_SALT);
    }
    bytes.try_into().map_err(|_| ValueError::Count {
        field: "open.salt",
        found: bytes.len(),
        expected: 32,
    })
}

impl Wire for ToDraft {
    type Proto = TargetMessage;

    fn to_proto(&self) -> TargetMessage {
        let body = match self {
            Self::Open(open) => target_message::Body::Open(proto::Open {
                sampling: Some(open.sampling.to_proto()),
                seed: open.seed.0,
                prompt_len: open.prompt_len,
                tokens: pack_tokens(&open.tokens),
                branching: open.branching.map(|branching| branching.to_proto()),
                support: match open.verification {
                    Verification::Coupled => 0,
                    Verification::Rejection { support } => support,
                },
                salt: if open.salt == NO_SALT {
                    Bytes::new()
                } else {
                    Bytes::copy_from_slice(&open.salt)
                },
                keeps_nothing: open.keeps_nothing,
                traceparent: open
                    .trace
                    .map_or_else(String::new, |trace| trace.to_string()),
            }),
            Self::Outcome(outcome) => target_message::Body::Outcome(proto::Outcome {
                round: outcome.round.0,
                base_len: outcome.base_len,
                tokens: pack_tokens(&outcome.tokens),
                lookahead: outcome.lookahead,
                verifying: outcome.verifying.as_ref().map(|window| proto::Verifying {
                    tokens: words(window.tokens()),
                    parents: window.parents().to_vec(),
                }),
                branches: outcome.branches,
                tree: outcome.tree.map(|tree| proto::TreeBudget {
                    nodes: tree.nodes,
                    cutoff: tree.cutoff.parts,
                    rise_after: tree.cutoff.rise.after,
                    rise: tree.cutoff.rise.parts,
                }),
                window_cutoff: outcome.cutoffs.window,
                entries_cutoff: outcome.cutoffs.entries,
                cutoffs_rise_after: outcome.cutoffs.rise.after,
                cutoffs_rise: outcome.cutoffs.rise.parts,
                saguaro: distribution::write_saguaro(outcome.saguaro),
                lingered_us: micros(outcome.lingered),
                awaited: outcome.awaited,
                elapsed_us: micros(outcome.elapsed),
            }),
            Self::Close { .. } => target_message::Body::Close(proto::Close {}),
        };
        let (session, epoch) = self.key();
        TargetMessage {
            session: session.0,
            epoch: epoch.0,
            body: Some(body),
        }
    }

    fn from_proto(message: TargetMessage) -> Result<Self, ValueError> {
        let session = SessionId(message.session);
        let epoch = Epoch(message.epoch);
        Ok(match message.body.ok_or(ValueError::Missing("the body"))? {
            target_message::Body::Open(open) => {
                let tokens = unpack_tokens("open.tokens", &open.tokens)?;
                if open.prompt_len as usize > tokens.len() {
                    return Err(ValueError::TooMany {
                        field: "open.prompt_len",
                        found: open.prompt_len as usize,
                        limit: tokens.len(),
                    });
                }
                Self::Open(Open {
                    session,
                    epoch,
                    sampling: SamplingParams::from_proto(
                        open.sampling.ok_or(ValueError::Missing("sampling"))?,
                    )?,
                    seed: Seed(open.seed),
                    prompt_len: open.prompt_len,
                    tokens,
                    branching: open.branching.map(Branching::from_proto).transpose()?,
                    verification: match open.support {
                        0 => Verification::Coupled,
                        support => Verification::Rejection { support },
                    },
                    salt: read_salt(&open.salt)?,
                    keeps_nothing: open.keeps_nothing,
                    trace: TraceContext::parse(&open.traceparent),
                })
            }
            target_message::Body::Outcome(outcome) => {
                let tokens = unpack_tokens("outcome.tokens", &outcome.tokens)?;
                check_window("outcome.tokens", tokens.len())?;
                check_window("outcome.lookahead", outcome.lookahead as usize)?;
                check_branches("outcome.branches", outcome.branches as usize)?;
                let window = |window: proto::Verifying| {
                    let tokens = tokens_of(window.tokens);
                    read_proposals("outcome.verifying", tokens, &window.parents)
                };
                Self::Outcome(Outcome {
                    session,
                    epoch,
                    round: Round(outcome.round),
                    base_len: outcome.base_len,
                    tokens,
                    lookahead: outcome.lookahead,
                    verifying: outcome.verifying.map(window).transpose()?,
                    branches: outcome.branches,
                    tree: outcome.tree.map(|tree| TreeBudget {
                        nodes: tree.nodes,
                        cutoff: Cutoff {
                            parts: tree.cutoff,
                            rise: Rise {
                                after: tree.rise_after,
                                parts: tree.rise,
                            },
                        },
                    }),
                    cutoffs: Cutoffs {
                        window: outcome.window_cutoff,
                        entries: outcome.entries_cutoff,
                        rise: Rise {
                            after: outcome.cutoffs_rise_after,
                            parts: outcome.cutoffs_rise,
                        },
                    },
                    saguaro: distribution::read_saguaro(outcome.saguaro)?,
                    lingered: Duration::from_micros(outcome.lingered_us.into()),
                    awaited: outcome.awaited,
                    elapsed: Duration::from_micros(outcome.elapsed_us.into()),
                })
            }
            target_message::Body::Close(proto::Close {}) => Self::Close { session, epoch },
        })
    }
}

/// Whole microseconds, an hour and more at most.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Wire for ToTarget {
    type Proto = DraftMessage;

    fn to_proto(&self) -> DraftMessage {
        let body = match self {
            Self::Opened { .. } => draft_message::Body::Opened(proto::Opened {}),
            Self::Refused { reason, retry, .. } => draft_message::Body::Refused(proto::Refused {
                reason: reason.clone(),
                retry: *retry,
            }),
            Self::Window(window) => draft_message::Body::Window(proto::Window {
                round: window.round.0,
                base_len: window.base_len,
                tokens: pack_tokens(window.proposals.tokens()),
                parents: window.proposals.parents().to_vec(),
                q: distribution::pack(&window.q, window.saguaro),
                place: window.place.map_or(0, |place| place.saturating_add(1)),
            }),
            Self::Entries(entries) => draft_message::Body::Entries(proto::Entries {
                round: entries.round.0,
                base_len: entries.base_len,
                before: entries.before,
                late: entries.late,
                accepted: entries.keys.iter().map(|key| key.accepted).collect(),
                decided: entries.keys.iter().map(|key| key.token.0).collect(),
                tokens: words(&entries.tokens),
                sides: write_sides(&entries.sides),
                q: distribution::pack(&entries.q, entries.saguaro),
            }),
            Self::Resync(resync) => draft_message::Body::Resync(proto::Resync {
                have_len: resync.have_len,
            }),
            Self::Account(account) => draft_message::Body::Account(proto::Account {
                judged: account.judged,
                ranked: account.ranked,
                ranks: account.ranks,
                ahead_us: micros(account.ahead),
                awaited_us: micros(account.awaited),
                limits: account.limits.to_places(),
            }),
        };
        let (session, epoch) = self.key();
        DraftMessage {
            session: session.0,
            epoch: epoch.0,
            body: Some(body),
        }
    }

    fn from_proto(message: DraftMessage) -> Result<Self, ValueError> {
        let session = SessionId(message.session);
        let epoch = Epoch(message.epoch);
        Ok(match message.body.ok_or(ValueError::Missing("the body"))? {
            draft_message::Body::Opened(proto::Opened {}) => Self::Opened { session, epoch },
            draft_message::Body::Refused(refused) => Self::Refused {
                session,
                epoch,
                reason: check_text("refused.reason", refused.reason)?,
                retry: refused.retry,
            },
            draft_message::Body::Window(window) => {
                let tokens = unpack_tokens("window.tokens", &window.tokens)?;
                let proposals = read_proposals("window.tokens", tokens, &window.parents)?;
                let (q, saguaro) = distribution::unpack(window.q, proposals.height())?;
                Self::Window(Window {
                    session,
                    epoch,
                    round: Round(window.round),
                    base_len: window.base_len,
                    proposals,
                    q,
                    saguaro,
                    place: window.place.checked_sub(1),
                })
            }
            draft_message::Body::Entries(entries) => {
                Self::Entries(read_entries(session, epoch, entries)?)
            }
            draft_message::Body::Resync(resync) => Self::Resync(Resync {
                session,
                epoch,
                have_len: resync.have_len,
            }),
            draft_message::Body::Account(account) => Self::Account(Account {
                session,
                epoch,
                judged: account.judged,
                ranked: account.ranked,
                ranks: account.ranks,
                ahead: Duration::from_micros(account.ahead_us.into()),
                awaited: Duration::from_micros(account.awaited_us.into()),
                limits: BoundCounts::by_place(account.limits),
            }),
        })
    }
}

impl Wire for Branching {
    type Proto = proto::Branching;

    fn to_proto(&self) -> proto::Branching {
        let fan_out = match self.fan_out {
            FanOut::Learned => proto::FanOut::Learned,
            FanOut::Uniform => proto::FanOut::Uniform,
            FanOut::Geometric => proto::FanOut::Geometric,
        };
        proto::Branching {
            lookahead: self.lookahead,
            branches: self.branches,
            fan_out: fan_out.into(),
            pull: self.delivery == Delivery::Pull,
        }
    }

    fn from_proto(branching: proto::Branching) -> Result<Self, ValueError> {
        check_window("branching.lookahead", branching.lookahead as usize)?;
        check_branches("branching.branches", branching.branches as usize)?;
        Ok(Self {
            lookahead: branching.lookahead,
            branches: branching.branches,
            fan_out: match branching.fan_out() {
                proto::FanOut::Learned => FanOut::Learned,
                proto::FanOut::Uniform => FanOut::Uniform,
                proto::FanOut::Geometric => FanOut::Geometric,
            },
            delivery: if branching.pull {
                Delivery::Pull
            } else {
                Delivery::Push
            },
        })
    }
}

impl Wire for Saguaro {
    type Proto = proto::Saguaro;

    fn to_proto(&self) -> proto::Saguaro {
        proto::Saguaro {
            fan_out: self.fan_out(),
            lost: self.lost(),
        }
    }

    fn from_proto(saguaro: proto::Saguaro) -> Result<Self, ValueError> {
        check_branches("saguaro.fan_out", saguaro.fan_out as usize)?;
        Ok(Self::new(saguaro.fan_out, saguaro.lost))
    }
}

fn read_entries(
    session: SessionId,
    epoch: Epoch,
    entries: proto::Entries,
) -> Result<Entries, ValueError> {
    let (accepted, decided) = (entries.accepted, entries.decided);
    check_count("entries.accepted", accepted.len(), decided.len())?;
    check_branches("entries.decided", decided.len())?;
    check_at_most("entries.tokens", entries.tokens.len(), MAX_PART)?;
    let keys = accepted.into_iter().zip(tokens_of(decided));
    let (q, saguaro) = distribution::unpack(entries.q, entries.tokens.len())?;
    Ok(Entries {
        session,
        epoch,
        round: Round(entries.round),
        base_len: entries.base_len,
        before: entries.before,
        late: entries.late,
        keys: keys
            .map(|(accepted, token)| OutcomeKey { accepted, token })
            .collect(),
        tokens: tokens_of(entries.tokens),
        sides: entries.sides.map_or(Ok(Vec::new()), read_sides)?,
        q,
        saguaro,
    })
}

/// The second choices of a part; nothing if there are none.
fn write_sides(sides: &[Side]) -> Option<proto::Sides> {
    (!sides.is_empty()).then(|| proto::Sides {
        entries: sides.iter().map(|side| side.entry).collect(),
        after: sides.iter().map(|side| side.after).collect(),
        tokens: sides.iter().map(|side| side.token.0).collect(),
    })
}

fn read_sides(sides: proto::Sides) -> Result<Vec<Side>, ValueError> {
    let proto::Sides {
        entries,
        after,
        tokens,
    } = sides;
    check_at_most("entries.sides", tokens.len(), MAX_PART)?;
    for found in [entries.len(), after.len()] {
        check_count("entries.sides", found, tokens.len())?;
    }
    let places = entries.into_iter().zip(after);
    let side = |((entry, after), token)| Side {
        entry,
        after,
        token,
    };
    Ok(places.zip(tokens_of(tokens)).map(side).collect())
}

fn read_proposals(
    field: &'static str,
    tokens: Vec<TokenId>,
    parents: &[u32],
) -> Result<Proposals, ValueError> {
    check_window(field, tokens.len())?;
    Proposals::with_parents(tokens, parents).map_err(|error| ValueError::Tree { field, error })
}

fn words(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

fn tokens_of(words: Vec<u32>) -> Vec<TokenId> {
    words.into_iter().map(TokenId).collect()
}

fn check_window(field: &'static str, found: usize) -> Result<(), ValueError> {
    check_at_most(field, found, MAX_WINDOW)
}

fn check_branches(field: &'static str, found: usize) -> Result<(), ValueError> {
    check_at_most(field, found, MAX_BRANCHES)
}
