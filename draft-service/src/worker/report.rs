//! What the endpoint says of itself to whoever asks.

use foretoken_service::report::{DraftReport, RefusedReport};

use super::{Outlet, Worker};

/// Most refused targets that are named.
const MOST_NAMED: usize = 16;

impl<O: Outlet> Worker<O> {
    /// Shows how it is doing.
    pub(super) fn show(&self) {
        let sessions = self.sessions_held();
        let mut refused: Vec<RefusedReport> = self
            .refused
            .iter()
            .map(|(instance, reason)| RefusedReport {
                instance: instance.clone(),
                reason: reason.clone(),
            })
            .collect();
        refused.sort_by(|a, b| a.instance.cmp(&b.instance));
        refused.truncate(MOST_NAMED);
        self.board.show_draft(DraftReport {
            slots: self.limits.sessions as u32,
            slots_in_use: self.sessions.len() as u32,
            up_seconds: self.began.elapsed().as_secs_f64(),
            busy_seconds: self.busy.as_secs_f64(),
            timely_tokens: self.metrics.entry_tokens.timely.get(),
            late_tokens: self.metrics.entry_tokens.late.get(),
            consumers: self.tenants.told(&sessions),
            refused,
        });
    }
}
