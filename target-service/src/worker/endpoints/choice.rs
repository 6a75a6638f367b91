//! Which endpoint a request is drafted for by.
//!
//! Endpoints that the configuration lists are taken in their order, those of a registry by their
//! shares: each request has an order of its own among them (rendezvous hashing with weights), so that
//! replicas of a pool have as many requests, one that goes gives its own to all others, and a request
//! asks the same one however often it looks.
//!
//! One with which no lookahead pays is passed over while another is there, but for few requests that
//! keep to their own: how else would it be noticed that it pays again?

use std::cmp::Ordering;

use foretoken_speculation::hash::{mix, unit};

use super::{Endpoint, Endpoints};
use crate::{inbox::LinkKey, request::Request};

/// One request of so many keeps to an endpoint with which no lookahead pays.
const KEEPING: u64 = 8;

impl Endpoints {
    /// The best endpoint for `request`.
    pub(super) fn pick(&self, request: &Request) -> Option<LinkKey> {
        let len = request.session.tokens().len();
        let usable = |endpoint: &&Endpoint| {
            let refused = request.refused.has(endpoint.link);
            endpoint.may_take() && len < endpoint.positions && !refused
        };
        if !request.endpoints.is_empty() {
            let named = |name: &String| self.list.iter().find(|endpoint| endpoint.name == *name);
            let candidates = request.endpoints.iter().filter_map(named).filter(usable);
            // The first of equals: the order stays, but silent and full endpoints come last.
            let best = candidates.min_by_key(|endpoint| (endpoint.suspect, !endpoint.has_room()));
            return best.map(|endpoint| endpoint.link);
        }
        let id = request.id.0;
        let explores = !request.is_adaptive() || keeps(request);
        let standing = |endpoint: &Endpoint| Standing {
            suspect: endpoint.suspect,
            full: !endpoint.has_room(),
            rests: !explores && self.rests(request.cohort(endpoint.link)),
            place: endpoint.share.map(|share| place(id, &endpoint.name, share)),
        };
        let candidates = self.list.iter().filter(usable);
        let candidates = candidates.map(|endpoint| (standing(endpoint), endpoint.link));
        let best = candidates.min_by(|(a, _), (b, _)| a.compare(b));
        best.map(|(_, link)| link)
    }

    /// Whether an endpoint is of use to `request`, as far as is known.
    pub(super) fn is_of_use(&self, link: LinkKey, request: &Request) -> bool {
        !request.is_adaptive() || !self.rests(request.cohort(link))
    }
}

/// Whether `request` keeps to its own endpoint though no lookahead pays with it, to find out whether one does.
pub(super) fn keeps(request: &Request) -> bool {
    mix(request.id.0).is_multiple_of(KEEPING)
}

/// How an endpoint compares with others for one request.
struct Standing {
    suspect: bool,
    /// Whether somebody would have to give a slot.
    full: bool,
    /// Whether no lookahead pays with it, and that matters.
    rests: bool,
    /// Its place in the request's own order; none: it comes first.
    place: Option<f64>,
}

impl Standing {
    /// Who is better comes first.
    fn compare(&self, other: &Self) -> Ordering {
        let place = |standing: &Self| standing.place.unwrap_or(-1.0);
        (self.suspect, self.full, self.rests)
            .cmp(&(other.suspect, other.full, other.rests))
            .then_with(|| place(self).total_cmp(&place(other)))
    }
}

/// Place, at least 0, of an endpoint in a request's own order: over requests, the least of several is
/// each one's as often as its share says.
fn place(request: u64, name: &str, share: f64) -> f64 {
    let name = name.bytes().fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
    let hash = mix(mix(request) ^ name);
    // An exponential variate of rate `share`: the minimum of several falls to each by its rate.
    -(1.0 - unit(hash)).ln() / share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firsts(shares: &[(&str, f64)]) -> Vec<usize> {
        let mut firsts = vec![0; shares.len()];
        for request in 1..=3000 {
            let places = shares
                .iter()
                .map(|(name, share)| place(request, name, *share));
            let best = places.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
            firsts[best.expect("there are some").0] += 1;
        }
        firsts
    }

    #[test]
    fn requests_are_spread_by_shares() {
        let even = firsts(&[("a/b@10.0.0.1", 1.0), ("a/b@10.0.0.2", 1.0)]);
        assert!(
            even.iter().all(|&count| (1400..1600).contains(&count)),
            "{even:?}"
        );
        let odd = firsts(&[("a/b@10.0.0.1", 2.0), ("a/c@10.0.0.1", 1.0)]);
        assert!((1900..2100).contains(&odd[0]), "{odd:?}");
    }

    #[test]
    fn one_that_comes_takes_requests_and_moves_no_other() {
        let best = |request, names: &[&str]| {
            let places = names.iter().map(|name| place(request, name, 1.0));
            let best = places.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
            best.expect("there are some").0
        };
        let (before, after) = (["a", "b"], ["a", "b", "c"]);
        let moved = (1..500).filter(|&id| best(id, &before) != best(id, &after));
        assert!(moved.into_iter().all(|id| best(id, &after) == 2));
    }

    #[test]
    fn those_without_shares_come_first_unless_they_are_silent_or_of_no_use() {
        let standing = |suspect, rests, place| Standing {
            suspect,
            full: false,
            rests,
            place,
        };
        let fixed = standing(false, false, None);
        let shared = standing(false, false, Some(0.0));
        assert_eq!(fixed.compare(&shared), Ordering::Less);
        assert_eq!(
            fixed.compare(&standing(false, false, None)),
            Ordering::Equal
        );
        let silent = standing(true, false, None);
        assert_eq!(silent.compare(&shared), Ordering::Greater);
        let resting = standing(false, true, None);
        assert_eq!(resting.compare(&shared), Ordering::Greater);
        assert_eq!(resting.compare(&silent), Ordering::Less);
        let full = Standing {
            full: true,
            ..standing(false, false, None)
        };
        assert_eq!(full.compare(&resting), Ordering::Greater);
        assert_eq!(full.compare(&silent), Ordering::Less);
    }
}
