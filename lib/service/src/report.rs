//! What a service says of itself at `/status`, as JSON: whoever looks after a cluster reads it.
//!
//! Counts are since the start of the process, so that two looks give what came between, whoever
//! looks and however often. Who reads skips fields it does not know; [`VERSION`] rises when one it
//! knows means something else.

mod few;

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use few::few;

/// Version of the page.
pub const VERSION: u32 = 1;

/// What a service says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Report {
    /// [`VERSION`] of who wrote it.
    pub version: u32,
    /// Name of this replica.
    pub instance: String,
    /// Whether it takes new work.
    pub ready: bool,
    /// Its model.
    pub model: ModelReport,
    /// What it says as a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// What it says as a draft.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftReport>,
    /// What it says as a download.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchReport>,
}

/// How far the download of a model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FetchReport {
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all; 0: not known yet.
    pub total: u64,
}

/// The model of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ModelReport {
    /// Digest of configuration and weights.
    pub digest: String,
    /// Digest of the tokenizer: a target and a draft need the same one.
    pub tokenizer: String,
    /// Entries of the vocabulary.
    pub vocabulary: u32,
    /// Arithmetic path.
    pub path: String,
}

/// What a target says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetReport {
    /// The endpoints that it dials.
    #[serde(deserialize_with = "few")]
    pub endpoints: Vec<EndpointReport>,
    /// How busy it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadReport>,
}

/// How busy a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadReport {
    /// Requests that it works on.
    pub running: u32,
    /// Most of these at a time.
    pub places: u32,
    /// Requests that wait for a place.
    pub waiting: u32,
    /// Requests that were given one.
    pub admitted: u64,
    /// Milliseconds that these had waited, all together.
    pub waited_millis: u64,
    /// Pages for keys and values.
    pub pages: u64,
    /// Of these, pages that requests hold.
    pub pages_in_use: u64,
}

/// An endpoint that a target dials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointReport {
    /// Its name among the target's.
    pub name: String,
    /// What became of the link.
    pub link: LinkState,
    /// Why it is not up, or of no use, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Name of the replica there, as it said last.
    pub instance: String,
    /// Digest of its model, as it said last.
    pub model: String,
    /// What its proposals came to.
    pub rounds: Rounds,
}

/// What became of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LinkState {
    /// Sessions can be opened.
    Up,
    /// It cannot be reached, or was lost; it is dialled again.
    Down,
    /// The two do not go together.
    Refused,
    /// Nothing has been heard yet, or of a state that this release does not know.
    #[default]
    #[serde(other)]
    Dialling,
}

/// What proposals came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rounds {
    /// Windows that were verified.
    pub windows: u64,
    /// Tokens of them that were accepted.
    pub accepted: u64,
    /// Verdicts that a window had been prepared for.
    pub hits: u64,
    /// Verdicts that one could have been prepared for, and was not.
    pub misses: u64,
}

impl Rounds {
    /// Counts a window.
    pub fn note_window(&mut self, accepted: u32) {
        self.windows += 1;
        self.accepted += u64::from(accepted);
    }

    /// Counts a verdict that could have been prepared for.
    pub fn note_lookup(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.misses += u64::from(!hit);
    }

    /// What was counted since `before`; all of it if the counting began anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let is_later = self.windows >= before.windows
            && self.accepted >= before.accepted
            && self.hits >= before.hits
            && self.misses >= before.misses;
        if !is_later {
            return self;
        }
        Self {
            windows: self.windows - before.windows,
            accepted: self.accepted - before.accepted,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            windows: self.windows.saturating_add(other.windows),
            accepted: self.accepted.saturating_add(other.accepted),
            hits: self.hits.saturating_add(other.hits),
            misses: self.misses.saturating_add(other.misses),
        }
    }

    /// Tokens that a round with a window decides on average: those accepted and the target's own;
    /// none without a window.
    pub fn acceptance_length(self) -> Option<f64> {
        let Self {
            windows, accepted, ..
        } = self;
        (windows > 0).then(|| 1.0 + accepted as f64 / windows as f64)
    }

    /// Share of verdicts that were prepared for, from 0 to 1; none without any.
    pub fn hit_rate(self) -> Option<f64> {
        let all = self.hits.saturating_add(self.misses);
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// What a draft says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DraftReport {
    /// Sessions that it can serve at a time.
    pub slots: u32,
    /// Sessions that it serves.
    pub slots_in_use: u32,
    /// Seconds that it has served.
    pub up_seconds: f64,
    /// Of these, seconds in which it drafted or read.
    pub busy_seconds: f64,
    /// Tokens that it had drafted for what came about, and that were there in time.
    pub timely_tokens: u64,
    /// The same, too late.
    pub late_tokens: u64,
    /// Deployments with a link to it, by namespace and name.
    #[serde(deserialize_with = "few")]
    pub consumers: Vec<ConsumerReport>,
    /// Targets that it turned away, as far as it remembers: who, and why.
    #[serde(deserialize_with = "few")]
    pub refused: Vec<RefusedReport>,
}

/// A deployment that uses a draft, or a target that named none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name; empty: the target named none.
    pub deployment: String,
    /// Targets that are connected.
    pub links: u32,
    /// Sessions it has.
    pub slots: u32,
}

/// A target that was turned away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RefusedReport {
    /// Name of the replica.
    pub instance: String,
    /// Why, in words that say what to do.
    pub reason: String,
}

/// Where a service keeps what it says: written by its engine thread now and then, read by whoever
/// asks.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Report>>);

impl Board {
    /// The board of a replica called `instance` that has this model.
    pub fn new(instance: &str, model: ModelReport) -> Self {
        let report = Report {
            version: VERSION,
            instance: instance.to_owned(),
            model,
            ..Report::default()
        };
        Self(Arc::new(Mutex::new(report)))
    }

    /// Replaces what it says as a target.
    pub fn show_target(&self, target: TargetReport) {
        self.lock().target = Some(target);
    }

    /// Replaces what it says as a draft.
    pub fn show_draft(&self, draft: DraftReport) {
        self.lock().draft = Some(draft);
    }

    /// Replaces what it says as a download.
    pub fn show_fetch(&self, fetch: FetchReport) {
        self.lock().fetch = Some(fetch);
    }

    /// All of it, of a service that is `ready` or not.
    pub fn report(&self, ready: bool) -> Report {
        Report {
            ready,
            ..self.lock().clone()
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rounds_between_two_looks_are_told_and_a_new_process_counts_from_nothing() {
        let mut first = Rounds::default();
        first.note_window(3);
        first.note_lookup(true);
        let mut second = first;
        second.note_window(1);
        second.note_window(2);
        second.note_lookup(false);
        let between = second.since(first);
        assert_eq!(between.acceptance_length(), Some(2.5));
        assert_eq!(between.hit_rate(), Some(0.0));
        assert_eq!(first.since(second), first, "it was started again");
        assert_eq!(Rounds::default().acceptance_length(), None);
        assert_eq!(Rounds::default().hit_rate(), None);
    }

    #[test]
    fn a_later_release_is_understood_as_far_as_it_is_known() {
        let page = json!({
            "version": 1, "instance": "t-0", "ready": true, "mood": "fine",
            "target": {"endpoints": [{"name": "a/b", "link": "asleep"}]},
        });
        let report: Report = serde_json::from_value(page).unwrap();
        let endpoint = &report.target.unwrap().endpoints[0];
        assert_eq!(endpoint.link, LinkState::Dialling);
        assert_eq!(report.draft, None);
    }

    #[test]
    fn what_is_shown_is_what_is_read() {
        let board = Board::new("d-0", ModelReport::default());
        board.show_draft(DraftReport {
            slots: 4,
            consumers: vec![ConsumerReport::default()],
            ..DraftReport::default()
        });
        let text = serde_json::to_string(&board.report(true)).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(read, board.report(true));
        assert_eq!((read.version, read.target), (VERSION, None));
    }
}
