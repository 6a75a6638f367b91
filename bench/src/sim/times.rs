//! How long things take in a simulated deployment.

use std::time::Duration;

use foretoken_speculation::control::StepCost;

/// A step: what it takes with no rows, and for each row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepTime {
    pub(super) base: Duration,
    pub(super) row: Duration,
}

/// Times of one target and one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// A target's round by rows of its pass: the pass and everything between two passes but waiting.
    pub(super) target: StepCost,
    /// The draft's steps: window tokens, one row a session.
    pub(super) token: StepTime,
    /// Reading a window under verification (the glue pass), with what prepares it.
    pub(super) glue: StepTime,
    /// One step of all branches.
    pub(super) branch: StepTime,
    /// Taking in and answering the messages of a target's step.
    pub(super) service: Duration,
    /// Filling the table of what was drafted: only where the table is the endpoint's.
    pub(super) fill: Duration,
}

/// What a step of the draft carries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftRows {
    pub(super) token: u32,
    pub(super) glue: u32,
    pub(super) branch: u32,
}

impl DraftRows {
    pub(super) fn is_empty(self) -> bool {
        self.all() == 0
    }

    pub(super) fn all(self) -> u32 {
        self.token + self.glue + self.branch
    }
}

impl Times {
    /// A pass over `rows` rows.
    pub(super) fn pass(&self, rows: u32) -> Duration {
        self.target.time(rows)
    }

    /// A step of the draft: its kinds are batched, so that the slowest counts once, and all rows.
    pub(super) fn draft(&self, rows: DraftRows) -> Duration {
        let kinds = [
            (rows.token, self.token),
            (rows.glue, self.glue),
            (rows.branch, self.branch),
        ];
        let present = kinds.iter().filter(|(rows, _)| *rows > 0);
        let base = present.map(|(_, time)| time.base).max();
        let each = kinds.iter().map(|(rows, time)| time.row * *rows);
        base.unwrap_or_default() + each.sum::<Duration>()
    }
}
