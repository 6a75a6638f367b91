//! What keeps an endpoint from drafting for more.

use crate::bounds::Bound;

/// Why a session is not drafted for more outcomes, or not served at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// The target asked for no more, or the endpoint never allows more.
    Budget,
    /// With more, less of each continuation would be ready when its own verification is over.
    Time,
    /// There is time for more, but others have none to spare, and what is left is too unlikely to be worth
    /// theirs; or a hit would save nothing.
    Worth,
    /// The rest belongs to other tenants, by their weights.
    Weight,
    /// A step takes no more rows.
    Rows,
    /// There are no more KV pages.
    Pages,
    /// All slots are taken.
    Slots,
    /// The slots of its namespace's quota are taken.
    Quota,
}

impl Bound for Limit {
    const ALL: &'static [Self] = &[
        Self::Budget,
        Self::Time,
        Self::Worth,
        Self::Weight,
        Self::Rows,
        Self::Pages,
        Self::Slots,
        Self::Quota,
    ];

    fn place(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Time => "time",
            Self::Worth => "worth",
            Self::Weight => "weight",
            Self::Rows => "rows",
            Self::Pages => "pages",
            Self::Slots => "slots",
            Self::Quota => "quota",
        }
    }
}
