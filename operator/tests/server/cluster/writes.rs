//! What operators write, as the API server has noted it.

use std::{fs, time::Duration};

use foretoken_operator::object::OPERATOR;
use serde_json::Value;
use tokio::time::Instant;

use super::{Cluster, PATIENCE};

impl Cluster {
    /// How much was written so far, to ask later what came after.
    pub(crate) fn writes(&self) -> usize {
        self.all_writes().len()
    }

    /// What operators have written since: verb, namespace, kind and name. Leases left aside.
    pub(crate) fn writes_since(&self, before: usize) -> Vec<String> {
        let mut written = self.all_writes().split_off(before);
        written.sort();
        written
    }

    /// The same without statuses and events.
    pub(crate) fn object_writes_since(&self, before: usize) -> Vec<String> {
        let mut written = self.writes_since(before);
        written.retain(|write| !write.ends_with("/status") && !write.contains("/events/"));
        written
    }

    /// Waits until operators have written nothing for a while.
    pub(crate) async fn settles(&self, silence: Duration) {
        let until = Instant::now() + PATIENCE;
        loop {
            let before = self.writes();
            tokio::time::sleep(silence).await;
            let written = self.writes_since(before);
            if written.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "no end of writes: {written:?}");
        }
    }

    fn all_writes(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.audit_log).unwrap_or_default();
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ours = events.filter(|event| {
            event["userAgent"] == OPERATOR && event["objectRef"]["resource"] != "leases"
        });
        let shown = ours.map(|event| {
            let of = |name: &str| {
                event["objectRef"][name]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let mut place = format!("{}/{}/{}", of("namespace"), of("resource"), of("name"));
            if event["objectRef"]["subresource"].is_string() {
                place = format!("{place}/{}", of("subresource"));
            }
            format!("{} {place}", event["verb"].as_str().unwrap_or_default())
        });
        shown.collect()
    }
}
