//! Names of who decodes how.

/// One token a pass.
pub(crate) const PLAIN: &str = "plain";
/// Draft, then verify.
pub(crate) const SPECULATIVE: &str = "Speculative";
/// As the paper's reference.
pub(crate) const PAPER: &str = "SSD, paper's";
/// The same, not with the published lookahead but with the best.
pub(crate) const PAPER_BEST: &str = "SSD, paper's at its best K";
/// As here.
pub(crate) const OURS: &str = "SSD, ours";
/// The same, not with a lookahead that its targets choose but with the best.
pub(crate) const OURS_BEST: &str = "SSD, ours at its best K";
/// As here, but asked for after verdicts.
pub(crate) const PULL: &str = "SSD, ours, pull";
/// As here, with windows that may be trees.
pub(crate) const TREES: &str = "SSD, ours, trees";
/// What is fastest, each target with an endpoint of its own.
pub(crate) const OWN: &str = "best with an own endpoint";
