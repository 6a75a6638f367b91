//! What this host proposes where no endpoint does, and what follows a verdict that none drafted for.
//!
//! Requests with the same cache salt have a table of what followed what in common, as they have
//! their prefix cache; those without a salt are the deployment's own and have another. A request
//! that keeps nothing takes nothing. So whoever may learn from timing what others said is the same
//! for both. Nor has one that is verified by ratio a part in it: proposals have to be independent of the
//! coins that judge them, which those of an earlier request with the same seed are not.

use std::time::Instant;

use foretoken_engine::kv::Salt;
use foretoken_speculation::{
    TokenId,
    control::Pace,
    fallback::{Fallback, Miss, OnMiss},
    local::{Origin, Tenants},
    message::Delivery,
    policy::{Policy, SsdOptions, target::Verified},
    saguaro::Saguaro,
    verify::Verification,
};

use super::Endpoints;
use crate::{config::OnLossName, request::Request};

/// Memory of the tables of all tenants.
const TABLES: usize = 64 << 20;

/// What the host has for requests without a window.
pub(super) struct Stopgap {
    on_loss: OnLossName,
    tenants: Tenants<Salt>,
    pace: Pace,
    /// When the last verdicts were, if somebody waits for the next.
    concluded: Option<Instant>,
}

/// For one verdict: what is proposed if nothing was drafted for it, and who is to propose.
#[derive(Default)]
pub(super) struct Offer {
    pub(super) tokens: Vec<TokenId>,
    pub(super) origin: Origin,
    pub(super) fallback: Option<Fallback>,
    /// Whether nothing is to be drafted for what this verdict leads to.
    pub(super) refrains: bool,
    /// How the tokens that are asked for are lowered.
    pub(super) saguaro: Saguaro,
}

/// The step that a verdict came from: the next one will be like it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// Its rows, without the proposals of the request in question.
    pub(super) rows: u32,
    /// Requests that decode.
    pub(super) sessions: u32,
}

impl Stopgap {
    pub(super) fn new(on_loss: OnLossName, vocab_size: u32) -> Self {
        Self {
            on_loss,
            tenants: Tenants::new(vocab_size, TABLES),
            pace: Pace::default(),
            concluded: None,
        }
    }

    /// Notes that a step has decided so many tokens; `goes_on` says whether anybody waits for more.
    pub(super) fn note_step(&mut self, tokens: u32, now: Instant, goes_on: bool) {
        if let Some(since) = self.concluded {
            let took = now.saturating_duration_since(since);
            self.pace.observe(tokens, took);
        }
        self.concluded = goes_on.then_some(now);
    }

    /// Notes that nobody is served: the time until somebody is says nothing of what time brings.
    pub(super) fn rest(&mut self) {
        self.concluded = None;
    }

    /// Tokens a second that all requests emit, lately.
    pub(super) fn pace(&self) -> f64 {
        self.pace.per_second()
    }

    /// What is on offer after the tokens that were `verified`, which follow the sequence of `request`.
    pub(super) fn offer(
        &mut self,
        request: &mut Request,
        verified: &Verified<'_>,
        step: Step,
        endpoints: &mut Endpoints,
    ) -> Offer {
        let mut offer = Offer::default();
        let mut accepted = 0.0;
        if self.stands_in(request, endpoints) && !is_served(request, verified) {
            let mut tenant = self.tenants.of(request.salt, request.recycles);
            let most = request.policy.lookahead(u32::MAX);
            let said = request.session.tokens();
            request
                .proposer
                .follow(said, verified.tokens, most, &mut tenant);
            // A row more makes the step longer for all who are in it.
            let alone = endpoints.steps().seconds(step.rows);
            // What plain decoding would come to is never too much to ask.
            let plain = f64::from(step.sessions) / endpoints.steps().seconds(step.sessions);
            let pace = self.pace.per_second().max(plain);
            let price =
                |rows: u32| pace * (endpoints.steps().seconds(step.rows + rows) - alone).max(0.0);
            let proposal = request.proposer.propose(tenant.yields, price);
            offer.tokens.extend_from_slice(proposal.tokens);
            (offer.origin, accepted) = (proposal.origin, proposal.accepted);
        }
        if let (Policy::Ssd(options), Some(link)) = (request.policy, request.link)
            && options.delivery == Delivery::Push
        {
            let miss = Miss {
                rows: step.rows,
                sessions: step.sessions,
                lookahead: options.lookahead.of(verified.suggested),
                cutoff: request.session.cutoffs(verified).of_window(),
                caught_up: request.session.is_caught_up(),
                local: offer.tokens.len() as u32,
                local_accepted: accepted,
            };
            let cohort = request.cohort(link);
            offer.refrains = endpoints.refrains(cohort);
            offer.fallback = if offer.refrains {
                Some(Fallback::Remote)
            } else {
                endpoints.fall_back(cohort, options.fallback, miss)
            };
            if request.session.verification() != Verification::Coupled {
                let lowered = endpoints.lower(cohort, miss);
                // Who guesses nothing has nothing to lower it for.
                offer.saguaro = if offer.refrains {
                    Saguaro::default()
                } else {
                    lowered
                };
                request.saguaro = Some(offer.saguaro);
            }
        }
        offer
    }

    /// Whether `request` may come to verify what this host proposes.
    fn stands_in(&self, request: &Request, endpoints: &Endpoints) -> bool {
        let on_miss = match request.policy {
            Policy::Autoregressive => return false,
            Policy::Speculative(_) => OnMiss::Remote,
            Policy::Ssd(SsdOptions { fallback, .. }) => fallback,
        };
        if request.session.is_answered() {
            return on_miss.may_be_local();
        }
        // One that is not bound because no lookahead pays has not lost anything.
        let rests = request.link.is_none() && endpoints.serves(request).is_some();
        self.on_loss == OnLossName::Local && !rests
    }
}

/// Whether what follows is there already, so that nothing else is needed; the proposer catches up when
/// it is. How drawn tokens are lowered depends on what there is besides.
fn is_served(request: &Request, verified: &Verified<'_>) -> bool {
    let session = &request.session;
    let has_more = || session.drafted(verified).is_some_and(|d| d.tokens > 0);
    session.verification() == Verification::Coupled && has_more()
}
