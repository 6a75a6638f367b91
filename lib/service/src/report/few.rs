//! Lists of a report, read up to a length: what a service says of itself takes no more memory of who
//! reads it than an honest one's would.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

/// Most entries that are kept: a target dials fewer replicas, and a draft has fewer consumers.
const MOST: usize = 1024;

/// Reads a list and keeps its first [`MOST`] entries.
pub(super) fn few<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(Few(PhantomData))
}

struct Few<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MOST {
            match list.next_element()? {
                Some(entry) => kept.push(entry),
                None => return Ok(kept),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Report, TargetReport};
    use super::*;

    #[test]
    fn a_list_without_an_end_to_speak_of_is_read_to_its_end_and_kept_in_part() {
        for (said, kept) in [(0, 0), (3, 3), (MOST, MOST), (100_000, MOST)] {
            let entries = vec!["{}"; said].join(",");
            let text = format!(r#"{{"target": {{"endpoints": [{entries}]}}, "ready": true}}"#);
            let report: Report = serde_json::from_str(&text).expect("a report");
            let found = report
                .target
                .as_ref()
                .map(|TargetReport { endpoints, .. }| endpoints.len());
            assert_eq!((found, report.ready), (Some(kept), true));
        }
    }
}
