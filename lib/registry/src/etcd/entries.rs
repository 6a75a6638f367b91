//! What keys of etcd say, as a directory. Pure.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{Directory, EndpointEntry, TargetEntry};

/// Folder of targets below the prefix.
pub(super) const TARGETS: &str = "targets/";
/// Folder of endpoints below the prefix.
pub(super) const ENDPOINTS: &str = "endpoints/";

/// The keys below a prefix, and what was last understood of them.
#[derive(Debug, Default)]
pub(super) struct Entries {
    prefix: String,
    keys: BTreeMap<String, Key>,
}

#[derive(Debug)]
struct Key {
    /// When it was written last.
    revision: i64,
    /// What it said when it last made sense.
    good: Option<Said>,
}

#[derive(Debug)]
enum Said {
    Target(TargetEntry),
    Endpoint(EndpointEntry),
}

/// A key with a value that nobody can use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("etcd key {key:?} is of no use: {problem}")]
pub(super) struct BadEntry {
    key: String,
    problem: String,
}

impl Entries {
    /// None yet, below `prefix`.
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            keys: BTreeMap::new(),
        }
    }

    /// Takes in a list of all keys: key, value and revision. Which of those that changed are bad.
    pub(super) fn replace(
        &mut self,
        listed: impl IntoIterator<Item = (Vec<u8>, Vec<u8>, i64)>,
    ) -> Vec<BadEntry> {
        let mut before = std::mem::take(&mut self.keys);
        let mut bad = Vec::new();
        for (key, value, revision) in listed {
            let name = text(&key);
            if let Some(known) = before.remove(&name) {
                let is_same = known.revision == revision;
                self.keys.insert(name, known);
                if is_same {
                    continue;
                }
            }
            bad.extend(self.put(&key, &value, revision).err());
        }
        bad
    }

    /// A key was written. What cannot be used changes nothing of what it said before.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], revision: i64) -> Result<(), BadEntry> {
        let key = text(key);
        let said = self.read(&key, value);
        let known = match self.keys.entry(key.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Key {
                revision,
                good: None,
            }),
        };
        known.revision = revision;
        known.good = match said {
            Ok(said) => Some(said),
            Err(problem) => return Err(BadEntry { key, problem }),
        };
        Ok(())
    }

    /// A key was deleted, or its lease ran out.
    pub(super) fn delete(&mut self, key: &[u8]) {
        self.keys.remove(&text(key));
    }

    fn read(&self, key: &str, value: &[u8]) -> Result<Said, String> {
        let rest = key.strip_prefix(&self.prefix).unwrap_or(key);
        let said = if rest.starts_with(TARGETS) {
            serde_json::from_slice(value).map(Said::Target)
        } else if rest.starts_with(ENDPOINTS) {
            serde_json::from_slice(value).map(Said::Endpoint)
        } else {
            return Err(format!(
                "it is neither below {TARGETS} nor below {ENDPOINTS}"
            ));
        };
        let said = said.map_err(|error| error.to_string())?;
        let alone = match &said {
            Said::Target(target) => Directory {
                targets: vec![target.clone()],
                ..Directory::default()
            },
            Said::Endpoint(endpoint) => Directory {
                endpoints: vec![endpoint.clone()],
                ..Directory::default()
            },
        };
        alone.check().map_err(|error| error.to_string())?;
        Ok(said)
    }

    /// The directory that the keys make: of each name, what was written last.
    pub(super) fn directory(&self) -> Directory {
        let mut targets: BTreeMap<&str, (i64, &TargetEntry)> = BTreeMap::new();
        let mut endpoints: BTreeMap<&str, (i64, &EndpointEntry)> = BTreeMap::new();
        for Key { revision, good } in self.keys.values() {
            match good {
                Some(Said::Target(entry)) => {
                    keep_latest(&mut targets, &entry.name, *revision, entry);
                }
                Some(Said::Endpoint(entry)) => {
                    keep_latest(&mut endpoints, &entry.name, *revision, entry);
                }
                None => {}
            }
        }
        Directory {
            targets: targets.into_values().map(|(_, it)| it.clone()).collect(),
            endpoints: endpoints.into_values().map(|(_, it)| it.clone()).collect(),
            ..Directory::default()
        }
    }
}

fn keep_latest<'a, T>(
    kept: &mut BTreeMap<&'a str, (i64, &'a T)>,
    name: &'a str,
    revision: i64,
    entry: &'a T,
) {
    let known = kept.entry(name).or_insert((revision, entry));
    if known.0 < revision {
        *known = (revision, entry);
    }
}

/// Keys are text to people; one that is not is shown as well as it can be.
fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: &[u8] = br#"{"name": "t", "model": "m", "address": "http://10.0.0.1:7000"}"#;
    const T2: &[u8] = br#"{"name": "t", "model": "m", "address": "http://10.0.0.2:7000"}"#;
    const D: &[u8] = br#"{"name": "d", "address": "http://10.0.0.3:7100", "weight": 2}"#;

    fn entries() -> Entries {
        let mut entries = Entries::new("p/".into());
        assert_eq!(entries.put(b"p/targets/t/1", T, 1), Ok(()));
        assert_eq!(entries.put(b"p/endpoints/d", D, 2), Ok(()));
        entries
    }

    fn hosts(entries: &Entries) -> Vec<String> {
        let Directory {
            targets, endpoints, ..
        } = entries.directory();
        let targets = targets.iter().map(|it| it.address.to_string());
        let endpoints = endpoints.iter().map(|it| it.address.to_string());
        targets.chain(endpoints).collect()
    }

    #[test]
    fn of_entries_of_one_name_the_latest_counts_as_long_as_it_is_there() {
        let mut entries = entries();
        assert_eq!(entries.put(b"p/targets/t/0", T2, 3), Ok(()));
        let (first, second) = ("http://10.0.0.1:7000", "http://10.0.0.2:7000");
        let endpoint = "http://10.0.0.3:7100";
        assert_eq!(hosts(&entries), [second, endpoint]);
        entries.delete(b"p/targets/t/0");
        assert_eq!(hosts(&entries), [first, endpoint]);
    }

    #[test]
    fn a_value_of_no_use_changes_nothing_and_is_named() {
        let mut entries = entries();
        let before = entries.directory();
        for (key, value, word) in [
            ("p/targets/t/1", &b"nonsense"[..], "line 1"),
            ("p/targets/t/1", D, "unknown field `weight`"),
            (
                "p/endpoints/d",
                br#"{"name": "", "address": "http://a:1"}"#,
                "empty name",
            ),
            ("p/else", T, "neither"),
        ] {
            let bad = entries
                .put(key.as_bytes(), value, 9)
                .expect_err(key)
                .to_string();
            assert!(bad.contains(key) && bad.contains(word), "{bad}");
            assert_eq!(entries.directory(), before);
        }
    }

    #[test]
    fn a_list_replaces_everything_and_repeats_no_complaint() {
        let mut entries = entries();
        let row = |key: &[u8], value: &[u8], revision| (key.to_vec(), value.to_vec(), revision);
        let bad = entries.replace([row(b"p/endpoints/d", b"?", 3), row(b"p/targets/u", T, 4)]);
        assert_eq!(bad.len(), 1);
        assert_eq!(
            hosts(&entries),
            ["http://10.0.0.1:7000", "http://10.0.0.3:7100"],
            "what was known of it stays"
        );
        let bad = entries.replace([row(b"p/endpoints/d", b"?", 3)]);
        assert_eq!(bad, []);
        assert_eq!(hosts(&entries), ["http://10.0.0.3:7100"]);
        entries.replace([]);
        assert_eq!(entries.directory(), Directory::default());
    }
}
