//! The hub's cache on disk, laid out as the Python tools lay it out.
//!
//! ```text
//! models--OWNER--NAME/blobs/ID             complete files, by content
//! models--OWNER--NAME/blobs/ID.incomplete  what arrived so far
//! models--OWNER--NAME/snapshots/COMMIT/F   links to blobs
//! models--OWNER--NAME/refs/REVISION        the commit; of a revision that is one itself, that nothing is missing
//! ```
//!
//! Links and references are made beside their place and then moved there, so that processes that
//! fetch the same never see half of one, nor stumble over each other's.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use serde::Deserialize;

use super::HubError;
use crate::{file::read_json, uri::HubRepository};

/// Part of the cache that belongs to one repository.
#[derive(Clone, Debug)]
pub(super) struct RepositoryCache {
    root: PathBuf,
    without_weights: bool,
}

/// The part of `model.safetensors.index.json` that names the shards.
#[derive(Deserialize)]
struct WeightIndex {
    weight_map: std::collections::BTreeMap<String, String>,
}

impl RepositoryCache {
    /// The part of `repository`; complete `without_weights`, or only with them.
    pub(super) fn new(cache: &Path, repository: &HubRepository, without_weights: bool) -> Self {
        let root = cache.join(format!("models--{}--{}", repository.owner, repository.name));
        Self {
            root,
            without_weights,
        }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, id: &str) -> PathBuf {
        self.root.join("blobs").join(id)
    }

    pub(super) fn partial(&self, id: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{id}.incomplete"))
    }

    pub(super) fn has_blob(&self, id: &str) -> bool {
        self.blob(id).is_file()
    }

    /// Bytes of the blob that an earlier download left.
    pub(super) fn partial_len(&self, id: &str) -> u64 {
        fs::metadata(self.partial(id)).map_or(0, |meta| meta.len())
    }

    /// The snapshot, if `revision` is a commit that was fetched with all that belongs to it: commits
    /// never change, so the hub need not be asked. What other tools fetched may lack anything.
    pub(super) fn complete_commit(&self, revision: &str) -> Option<PathBuf> {
        let is_whole = is_commit(revision) && self.read_ref(revision)? == revision;
        if is_whole {
            self.usable(revision)
        } else {
            None
        }
    }

    /// The snapshot that `revision` meant when it was last downloaded, if a model can be made of it.
    pub(super) fn last_known(&self, revision: &str) -> Option<PathBuf> {
        let itself = || is_commit(revision).then(|| revision.to_owned());
        let commit = self.read_ref(revision).or_else(itself)?;
        self.usable(&commit)
    }

    /// The snapshot of `commit`, if it has what no model can be without.
    fn usable(&self, commit: &str) -> Option<PathBuf> {
        let snapshot = self.snapshot(commit);
        let has = |file: &str| snapshot.join(file).is_file();
        let has_rest = if self.without_weights {
            has("tokenizer.json")
        } else {
            has_weights(&snapshot)
        };
        (has("config.json") && has_rest).then_some(snapshot)
    }

    fn read_ref(&self, revision: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Makes `snapshots/COMMIT/FILE` a link to a blob.
    pub(super) fn link(&self, commit: &str, file: &str, id: &str) -> Result<(), HubError> {
        let snapshot = self.snapshot(commit);
        let link = snapshot.join(file);
        let failed = |source| HubError::Write {
            path: link.clone(),
            source,
        };
        match (fs::read_link(&link), fs::canonicalize(&link)) {
            // A file of its own is what Python makes where there are no links.
            (Err(_), Ok(_)) => return Ok(()),
            (Ok(_), Ok(there)) if fs::canonicalize(self.blob(id)).is_ok_and(|b| b == there) => {
                return Ok(());
            }
            _ => {}
        }
        fs::create_dir_all(link.parent().unwrap_or(&snapshot)).map_err(failed)?;
        let up = "../".repeat(file.matches('/').count());
        let blob = Path::new(&up).join("../../blobs").join(id);
        self.put(&link, |staged| std::os::unix::fs::symlink(blob, staged))
            .map_err(failed)
    }

    /// Remembers what a branch or tag means.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let path = self.root.join("refs").join(revision);
        let failed = |source| HubError::Write {
            path: path.clone(),
            source,
        };
        // Of a cache that somebody else filled, perhaps nothing can be written.
        if self.read_ref(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        self.put(&path, |staged| fs::write(staged, commit))
            .map_err(failed)
    }

    /// Puts what `make` makes at `path`, in the place of what was there, in one move.
    fn put(&self, path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let staged = self.root.join(format!(".{}-{made}", process::id()));
        // Left by a process of this number that was killed, if it is there.
        let _ = fs::remove_file(&staged);
        make(&staged)?;
        fs::rename(&staged, path)
    }
}

/// Whether `revision` is a commit, in full.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether the folder has all its weights.
fn has_weights(snapshot: &Path) -> bool {
    if snapshot.join("model.safetensors").is_file() {
        return true;
    }
    match read_json::<WeightIndex>(snapshot, "model.safetensors.index.json") {
        Ok(Some(index)) => {
            let shards: BTreeSet<&String> = index.weight_map.values().collect();
            !shards.is_empty() && shards.iter().all(|shard| snapshot.join(shard).is_file())
        }
        Ok(None) | Err(_) => false,
    }
}
