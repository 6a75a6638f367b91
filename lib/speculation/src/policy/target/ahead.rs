//! What the target makes of proposals drafted ahead of its verdicts.

use super::{Effects, Policy, TargetSession, Verified, cache::Hit};
use crate::{
    Proposals, Round, TokenId,
    fallback::Fallback,
    guess::OutcomeKey,
    message::{Delivery, Entries},
    policy::SsdOptions,
    proposal::{self, Laws},
};

/// Where the window after a verdict comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// It had been drafted for this verdict.
    Ahead {
        /// Place of the verdict among the outcomes that were drafted for, likeliest first; none if
        /// it is the rest of a window that was not verified whole.
        place: Option<u32>,
    },
    /// It had not.
    Fallback(Fallback),
}

/// What became of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Where the next window comes from.
    pub source: Source,
    /// Its tokens, if they are known.
    pub tokens: u32,
    /// The most it may have.
    pub sought: u32,
    /// Whether it has fewer because no other was likely enough.
    pub ended: bool,
    /// Whether anything was to be drafted for the verdict.
    pub expected: bool,
    /// Whether this was the first verdict of a binding, for which the endpoint has little time.
    pub first: bool,
}

impl Lookup {
    /// Whether the window had been drafted for the verdict.
    pub fn is_hit(&self) -> bool {
        matches!(self.source, Source::Ahead { .. })
    }
}

/// What has come of what is drafted for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// Tokens of the continuation.
    pub tokens: u32,
    /// Whether there may be more of them.
    pub grows: bool,
}

/// Counts of what was drafted ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadStats {
    /// Verdicts that a window had been drafted for.
    pub hits: u32,
    /// Verdicts that none had been drafted for, though the endpoint was to.
    pub misses: u32,
    /// Those of `hits` that were the first verdict of a binding.
    pub first_hits: u32,
    /// Those of `misses` that were the first verdict of a binding.
    pub first_misses: u32,
    /// Sum over hits of the place of the verdict among the outcomes drafted for, 0 being the
    /// likeliest.
    pub places: u64,
    /// Tokens of windows that had been drafted ahead, and had come here.
    pub used: u32,
    /// Tokens of continuations that came in time.
    pub received: u64,
    /// Tokens of continuations that came too late, or twice, or not in order.
    pub late: u64,
    /// Verdicts without a hit after which nothing was proposed.
    pub alone: u32,
    /// Verdicts without a hit after which proposals of the target's host were verified.
    pub local: u32,
    /// Verdicts without a hit after which the endpoint was asked.
    pub remote: u32,
}

/// A verdict looked up.
#[derive(Debug)]
pub(super) struct Looked {
    hit: Option<Hit>,
    /// Most tokens that were to be found.
    expected: u32,
    /// Whether the endpoint was to draft for it and to look it up.
    pub(super) kept: bool,
    pub(super) first: bool,
}

/// Whose proposals a window has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Author {
    Endpoint,
    /// The driver.
    Host,
}

impl TargetSession {
    /// Takes in a part of the continuations.
    pub(super) fn receive_entries(&mut self, part: &Entries, effects: &mut Effects) {
        let keys = part.keys.iter().map(|key| key.token);
        let sides = part.sides.iter().map(|side| side.token);
        let own = part.tokens.iter().copied();
        let own = own.filter(|&token| token != Entries::ENDED);
        let tokens = own.clone().chain(sides);
        let explains = || {
            let drawn = part.tokens.iter().copied().zip(0..);
            part.q.len() == part.tokens.len() && proposal::explains(&part.q, part.saguaro, drawn)
        };
        if !self.understands(keys.chain(tokens), effects) || !self.explained(explains, effects) {
            return;
        }
        let current = part.round == self.round && part.base_len as usize == self.tokens.len();
        let tokens = (own.count() + part.sides.len()) as u64;
        if current && self.cache.take(part) {
            self.stats.ahead.received += tokens;
        } else {
            self.stats.ahead.late += tokens;
        }
    }

    /// Tokens that the cache of continuations holds; never more than the policy's budget times its
    /// lookahead.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// What was drafted for this verdict on the round under verification, if anything. A driver may
    /// wait for more before it hands the verdict over (see [`linger`](crate::linger)): nothing is
    /// drafted for a verdict that the endpoint knows.
    pub fn drafted(&self, verified: &Verified<'_>) -> Option<Drafted> {
        let room = self.room(1 + verified.tokens.len());
        let hit = self.find(verified)?;
        // The rest of a window that was not verified whole has nothing to follow it.
        hit.place?;
        let tokens = hit.proposals.height() as u32;
        Some(Drafted {
            tokens,
            grows: tokens < room && hit.grows,
        })
    }

    /// Looks a verdict up. To be called before it changes anything.
    pub(super) fn look_up(&self, verified: &Verified<'_>) -> Looked {
        Looked {
            hit: self.find(verified),
            expected: self.cache.expected(),
            kept: self.kept,
            first: self.round == Round(0),
        }
    }

    fn find(&self, verified: &Verified<'_>) -> Option<Hit> {
        let (&token, path) = verified.tokens.split_last()?;
        let decided = path.len() == verified.accepted as usize;
        if !decided || !matches!(self.config.policy, Policy::Ssd(_)) {
            return None;
        }
        // The driver may have verified less than it was told to, or lost patience with a window. What is left
        // of its own proposals the endpoint did not draft, and the driver makes them again.
        let drafted = self.author == Author::Endpoint;
        let window = drafted.then_some((&self.window, &self.laws));
        for (proposed, laws) in window.into_iter().chain([(&self.late, &self.late_laws)]) {
            let rest = proposed
                .find(verified.tokens)
                .map(|node| proposed.below(node));
            if let Some(proposals) = rest.filter(|rest| !rest.is_empty()) {
                // What was not verified is as good as new.
                let q = laws.q.get(verified.tokens.len()..).unwrap_or_default();
                return Some(Hit {
                    place: None,
                    ended: false,
                    grows: false,
                    proposals,
                    laws: Laws {
                        q: q.to_vec(),
                        saguaro: laws.saguaro,
                    },
                });
            }
        }
        let accepted = self.window.find(path)?;
        let hit = self.cache.find(OutcomeKey { accepted, token })?;
        (!hit.proposals.is_empty()).then_some(hit)
    }

    /// Expects nothing of the round under verification.
    pub(super) fn expect_nothing(&mut self) {
        self.cache.expect(0, 0, 0);
        self.kept = false;
    }

    /// Expects continuations of up to `lookahead` tokens for the round under verification, as trees
    /// of up to `nodes` proposals if there may be any; for how many outcomes.
    pub(super) fn expect(&mut self, lookahead: u32, nodes: u32) -> u32 {
        let Policy::Ssd(SsdOptions {
            budget, delivery, ..
        }) = self.config.policy
        else {
            return 0;
        };
        let branches = if lookahead > 0 { budget } else { 0 };
        match delivery {
            Delivery::Push => self.cache.expect(branches, lookahead, nodes),
            Delivery::Pull => self.kept = branches > 0,
        }
        branches
    }

    /// Decides what is verified next: the window, if that is settled, and how many tokens the
    /// endpoint is asked for, in a window or for each outcome.
    ///
    /// Where a window that the endpoint keeps comes from is told when it comes, see
    /// [`Self::looked_up_there`].
    pub(super) fn settle(
        &mut self,
        looked: Looked,
        verified: &Verified<'_>,
        effects: &mut Effects,
    ) -> (bool, u32) {
        let Policy::Ssd(options) = self.config.policy else {
            let asked = self.wanted(verified.suggested);
            if asked == 0 {
                effects.local = self.propose_locally(verified, self.room(1));
            }
            return (false, asked);
        };
        let most = options.lookahead.of(verified.suggested).min(self.room(1));
        if most == 0 {
            return (false, 0);
        }
        let Looked {
            hit,
            expected,
            kept,
            first,
        } = looked;
        let mut asked = 0;
        let ended = hit.as_ref().is_some_and(|hit| hit.ended);
        let source = if let Some(hit) = hit {
            self.propose(hit.proposals, most);
            self.laws = hit.laws;
            self.laws.q.truncate(self.window.height());
            Source::Ahead { place: hit.place }
        } else {
            let (fallback, tokens) = self.fall_back(options, verified, most);
            match fallback {
                Fallback::Nothing => {}
                Fallback::Local => effects.local = tokens,
                Fallback::Remote => asked = tokens,
            }
            Source::Fallback(fallback)
        };
        let is_expected = expected > 0;
        let lookup = Lookup {
            source,
            tokens: self.window.len() as u32,
            // What was drafted ahead may have been asked for when fewer were wanted.
            sought: if is_expected && asked == 0 {
                most.min(expected)
            } else {
                most
            },
            ended,
            expected: is_expected,
            first,
        };
        if !(kept && asked > 0) {
            self.note(lookup, effects);
        }
        if asked > 0 {
            return (false, asked);
        }
        // The rest of a window was counted with it, or never was an entry.
        let is_entry = matches!(lookup.source, Source::Ahead { place: Some(_) });
        if is_entry && options.delivery == Delivery::Push {
            self.stats.ahead.used += lookup.tokens;
        }
        let ahead = options.lookahead.of(verified.suggested).min(self.room(2));
        (true, ahead)
    }

    /// Takes in a window of which only the endpoint knew whether it had been drafted for the verdict, at
    /// which place; `sought` tokens were asked for.
    pub(super) fn looked_up_there(
        &mut self,
        place: Option<u32>,
        (sought, first): (u32, bool),
        effects: &mut Effects,
    ) {
        let place = place.filter(|&place| match self.config.policy {
            Policy::Ssd(options) => place < options.budget,
            _ => false,
        });
        let source = match place {
            Some(_) if !self.window.is_empty() => Source::Ahead { place },
            _ => Source::Fallback(Fallback::Remote),
        };
        let lookup = Lookup {
            source,
            tokens: self.window.len() as u32,
            sought,
            ended: false,
            expected: true,
            first,
        };
        self.note(lookup, effects);
    }

    /// Counts the window of this round as a miss if only the endpoint knows more and it has not come; says
    /// whether it was that.
    pub(super) fn lose(&mut self) -> bool {
        let kept = self.asked.as_mut().and_then(|asked| asked.kept.take());
        let Some(first) = kept else { return false };
        self.stats.ahead.miss(Fallback::Remote, true, first);
        true
    }

    fn note(&mut self, lookup: Lookup, effects: &mut Effects) {
        self.stats.ahead.count(&lookup);
        effects.lookup = Some(lookup);
    }

    /// What is verified after a miss, and how many tokens that has or is asked to have.
    fn fall_back(
        &mut self,
        options: SsdOptions,
        verified: &Verified<'_>,
        most: u32,
    ) -> (Fallback, u32) {
        let chosen = verified.fallback.or(options.fallback.always());
        let chosen = chosen.unwrap_or(Fallback::Remote);
        if chosen == Fallback::Local {
            let tokens = self.propose_locally(verified, most);
            if tokens > 0 {
                return (Fallback::Local, tokens);
            }
        }
        // The endpoint may hold what the verdict was drafted for.
        if chosen == Fallback::Remote || options.delivery == Delivery::Pull {
            let asked = self.wanted(verified.suggested);
            if asked > 0 {
                return (Fallback::Remote, asked);
            }
            // It does not answer.
            let tokens = self.propose_locally(verified, most);
            if tokens > 0 {
                return (Fallback::Local, tokens);
            }
        }
        (Fallback::Nothing, 0)
    }

    /// Verifies what the driver proposes, if it proposes anything; says how many tokens.
    pub(super) fn propose_locally(&mut self, verified: &Verified<'_>, most: u32) -> u32 {
        let known = |token: &TokenId| token.0 < self.config.vocab_size;
        if self.config.policy == Policy::Autoregressive || !verified.local.iter().all(known) {
            return 0;
        }
        self.propose(verified.local.into(), most);
        self.author = Author::Host;
        self.window.len() as u32
    }

    fn propose(&mut self, proposals: Proposals, most: u32) {
        self.window = proposals;
        self.author = Author::Endpoint;
        self.window.cut_below(most as usize);
        self.laws = Laws::default();
    }
}

impl AheadStats {
    fn count(&mut self, lookup: &Lookup) {
        match lookup.source {
            Source::Ahead { place } => {
                // Otherwise it is the rest of a window, and the endpoint looks verdicts up.
                self.hits += u32::from(lookup.expected);
                self.first_hits += u32::from(lookup.expected && lookup.first);
                self.places += place.map_or(0, u64::from);
            }
            Source::Fallback(fallback) => self.miss(fallback, lookup.expected, lookup.first),
        }
    }

    fn miss(&mut self, fallback: Fallback, expected: bool, first: bool) {
        self.misses += u32::from(expected);
        self.first_misses += u32::from(expected && first);
        match fallback {
            Fallback::Nothing => self.alone += 1,
            Fallback::Local => self.local += 1,
            Fallback::Remote => self.remote += 1,
        }
    }
}
