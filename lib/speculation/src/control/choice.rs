//! What is decided, and what about.

use crate::bounds::Bound;

/// What the next step has to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sessions that verify in it, this one included: each has its lookahead plus one row.
    pub sessions: u32,
    /// Rows that are in it anyway, prompt chunks for example.
    pub other_rows: u32,
}

impl Default for Load {
    fn default() -> Self {
        Self::of(1)
    }
}

impl Load {
    /// So many sessions, and nothing else.
    pub const fn of(sessions: u32) -> Self {
        Self {
            sessions,
            other_rows: 0,
        }
    }

    /// What loads are told apart by: how many share a step, to about the nearest power of two.
    pub(super) fn magnitude(self) -> u32 {
        let rows = self.sessions.saturating_add(self.other_rows).max(1);
        rows.saturating_add(rows / 2).ilog2()
    }

    pub(super) fn is_like(self, other: Self) -> bool {
        self.magnitude() == other.magnitude()
    }
}

/// A decision, and what kept it from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Tokens to speculate on.
    pub lookahead: u32,
    /// The binding limit.
    pub limit: Limit,
}

/// Why a lookahead is not larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It is the largest allowed.
    Maximum,
    /// One more token would too seldom be accepted.
    Acceptance,
    /// One more token would take the draft too long, or the first one the round trip.
    Answer,
    /// One more row a session would make steps too slow.
    Step,
    /// A better one is not better by enough, than the present one or than none.
    Margin,
    /// Not the best known: to find out whether things have changed.
    Probe,
}

impl Bound for Limit {
    const ALL: &'static [Self] = &[
        Self::Maximum,
        Self::Acceptance,
        Self::Answer,
        Self::Step,
        Self::Margin,
        Self::Probe,
    ];

    fn place(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        match self {
            Self::Maximum => "maximum",
            Self::Acceptance => "acceptance",
            Self::Answer => "answer",
            Self::Step => "step",
            Self::Margin => "margin",
            Self::Probe => "probe",
        }
    }
}
