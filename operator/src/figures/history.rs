//! What one pod has said: the latest, and what it said some time before.

use std::time::Duration;

use foretoken_service::report::Report;

/// How long before the latest report the earlier one is, at least, once there are enough.
const SPAN: Duration = Duration::from_secs(30);

/// What one pod has said.
#[derive(Clone, Debug)]
pub struct History {
    latest: (Duration, Report),
    /// Becomes the earlier one when it is old enough.
    middle: Option<(Duration, Report)>,
    earlier: Option<(Duration, Report)>,
}

impl History {
    /// It spoke for the first time, at this time of the listener's clock.
    pub fn new(at: Duration, report: Report) -> Self {
        Self {
            latest: (at, report),
            middle: None,
            earlier: None,
        }
    }

    /// It spoke again.
    pub fn hear(&mut self, at: Duration, report: Report) {
        let before = std::mem::replace(&mut self.latest, (at, report));
        let Some(middle) = &self.middle else {
            self.earlier = Some(before.clone());
            self.middle = Some(before);
            return;
        };
        if at.saturating_sub(middle.0) >= SPAN {
            self.earlier = self.middle.replace(before);
        }
    }

    /// What it said last.
    pub fn latest(&self) -> &Report {
        &self.latest.1
    }

    /// How long before the latest report the earlier one is; 0 if it spoke once.
    pub fn span(&self) -> Duration {
        let earlier = self.earlier.as_ref().map(|(at, _)| *at);
        earlier.map_or(Duration::ZERO, |at| self.latest.0.saturating_sub(at))
    }

    /// What it said before, half a minute to a minute ago if it was heard then; none if it spoke
    /// once.
    pub fn earlier(&self) -> Option<&Report> {
        self.earlier.as_ref().map(|(_, report)| report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: u64) -> Report {
        Report {
            instance: name.to_string(),
            ..Report::default()
        }
    }

    #[test]
    fn the_earlier_report_is_of_half_a_minute_to_a_minute_ago() {
        let mut history = History::new(Duration::ZERO, named(0));
        assert!(history.earlier().is_none());
        assert!(history.span().is_zero());
        for at in (5..300).step_by(5) {
            history.hear(Duration::from_secs(at), named(at));
            let earlier: u64 = history
                .earlier()
                .and_then(|report| report.instance.parse().ok())
                .expect("it spoke before");
            let ago = at - earlier;
            assert!((30..=65).contains(&ago) || earlier == 0, "{at}: {ago}");
            assert_eq!(history.span(), Duration::from_secs(ago));
            assert_eq!(history.latest().instance, at.to_string());
        }
    }
}
