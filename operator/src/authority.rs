//! The cluster's own authority: what certificates are needed when. Pure: it is told the time.
//!
//! ```text
//! Authority (its CAs, oldest first) ── at(now) ──> Standing: who signs, who is trusted
//! Leaf (what a Secret has) ── plan(wanted, standing, now) ──> keep | trust others | issue anew
//! ```
//!
//! A CA lives for a year. At two thirds of that its successor is made, and trusted by everybody from
//! then on. A day later, when every service has read of it, it signs; every leaf is issued anew. When
//! as long as a leaf lives has passed since, nobody has one of the old CA any more, and it goes. So
//! whichever two services meet, each trusts who made the other's certificate. Whoever does not want to
//! wait asks for a successor, which comes in the same steps.
//!
//! Not here: keys and certificates ([`issue`]), where they are kept (`certificates`).

pub mod issue;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// How long a CA lives.
pub const CA_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long a successor is trusted before it signs: until every service has read of it.
pub const TRUST_FIRST: SignedDuration = SignedDuration::from_hours(24);
/// How long a leaf lives.
pub const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A CA, by what matters for plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ca {
    /// When it was made; no two have the same.
    pub made: Timestamp,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
}

/// The CAs that there are, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority(pub Vec<Ca>);

/// What is to be done with an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// One more CA is to be made.
    pub make: bool,
    /// CAs made before then go.
    pub drop_before: Option<Timestamp>,
}

impl Authority {
    /// What is to be done at `now`; none if it is as it should be.
    pub fn plan(&self, now: Timestamp) -> Option<Change> {
        let make = self.0.last().is_none_or(|newest| is_ripe(newest, now));
        let drop_before = self.oldest_needed(now).map(|ca| ca.made);
        let drops = drop_before.is_some_and(|made| self.0.iter().any(|ca| ca.made < made));
        (make || drops).then_some(Change {
            make,
            drop_before: drop_before.filter(|_| drops),
        })
    }

    /// What is to be done at `now` if somebody asks for a successor: one is made, unless one waits
    /// already until it signs.
    pub fn plan_succession(&self, now: Timestamp) -> Change {
        let Change { make, drop_before } = self.plan(now).unwrap_or(Change {
            make: false,
            drop_before: None,
        });
        let newest = self.0.last().map(|ca| ca.made);
        let is_awaited = newest != self.signer(now).map(|ca| ca.made);
        Change {
            make: make || !is_awaited,
            drop_before,
        }
    }

    /// Who signs at `now`, if there is any CA: the newest that has been trusted for long enough, or the
    /// oldest if none has.
    pub fn signer(&self, now: Timestamp) -> Option<&Ca> {
        let trusted = |ca: &&Ca| now.duration_since(ca.made) >= TRUST_FIRST;
        self.0.iter().rev().find(trusted).or(self.0.first())
    }

    /// Certificates of all that are trusted, newest first, in PEM.
    pub fn bundle(&self) -> String {
        let pems = self.0.iter().rev().map(|ca| ca.certificate.as_str());
        pems.collect()
    }

    /// The oldest CA that a leaf may still be of: the newest that was signing already when the oldest
    /// leaf of now was issued.
    fn oldest_needed(&self, now: Timestamp) -> Option<&Ca> {
        self.signer(now.checked_sub(LEAF_LIFE).ok()?)
    }
}

/// Whether two thirds of a CA's life are over.
fn is_ripe(ca: &Ca, now: Timestamp) -> bool {
    now.duration_since(ca.made) * 3 >= CA_LIFE * 2
}

/// What is known of the certificate that a Secret has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// When the CA that signed it was made.
    pub issuer: Timestamp,
    /// When it was issued.
    pub issued: Timestamp,
    /// Whose it is.
    pub name: String,
    /// Who is trusted, in PEM.
    pub bundle: String,
}

/// What is to be done with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It is as it should be.
    Keep,
    /// It stays, and others are trusted.
    Trust,
    /// It is issued anew.
    Issue,
}

/// What is to be done with what a Secret has, if it has anything, for the service called `name`.
pub fn renewal(leaf: Option<&Leaf>, name: &str, authority: &Authority, now: Timestamp) -> Renewal {
    let Some(leaf) = leaf else {
        return Renewal::Issue;
    };
    let signer = authority.signer(now).map(|ca| ca.made);
    let is_ripe = now.duration_since(leaf.issued) * 3 >= LEAF_LIFE * 2;
    // One from the future was made by a clock that was wrong.
    let is_early = leaf.issued > now + SignedDuration::from_mins(5);
    if leaf.name != name || signer != Some(leaf.issuer) || is_ripe || is_early {
        Renewal::Issue
    } else if leaf.bundle == authority.bundle() {
        Renewal::Keep
    } else {
        Renewal::Trust
    }
}

#[cfg(test)]
mod tests;
