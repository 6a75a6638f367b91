//! The hub's cache on disk, laid out as the Python tools lay it out.
//!
//! ```text
//! models--OWNER--NAME/blobs/ID             complete files, by content
//! models--OWNER--NAME/blobs/ID.incomplete  what arrived so far
//! models--OWNER--NAME/snapshots/COMMIT/F   links to blobs
//! models--OWNER--NAME/refs/REVISION        the commit
//! ```

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::HubError;
use crate::{file::read_json, uri::HubRepository};

/// Part of the cache that belongs to one repository.
#[derive(Clone, Debug)]
pub(super) struct RepositoryCache {
    root: PathBuf,
}

/// The part of `model.safetensors.index.json` that names the shards.
#[derive(Deserialize)]
struct WeightIndex {
    weight_map: std::collections::BTreeMap<String, String>,
}

impl RepositoryCache {
    pub(super) fn new(cache: &Path, repository: &HubRepository) -> Self {
        let root = cache.join(format!("models--{}--{}", repository.owner, repository.name));
        Self { root }
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

    /// The snapshot, if `revision` is a commit and all of it is here: commits never change, so
    /// the hub need not be asked.
    pub(super) fn complete_commit(&self, revision: &str) -> Option<PathBuf> {
        let commit = revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit());
        let snapshot = self.snapshot(revision);
        (commit && is_complete(&snapshot)).then_some(snapshot)
    }

    /// The snapshot that `revision` meant when it was last downloaded, if all of it is here.
    pub(super) fn complete_ref(&self, revision: &str) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.root.join("refs").join(revision)).ok()?;
        let snapshot = self.snapshot(commit.trim());
        is_complete(&snapshot).then_some(snapshot)
    }

    /// Makes `snapshots/COMMIT/FILE` a link to a blob.
    pub(super) fn link(&self, commit: &str, file: &str, id: &str) -> Result<(), HubError> {
        let snapshot = self.snapshot(commit);
        let link = snapshot.join(file);
        let failed = |source| HubError::Write {
            path: link.clone(),
            source,
        };
        fs::create_dir_all(&snapshot).map_err(failed)?;
        if fs::symlink_metadata(&link).is_ok() {
            if link.exists() {
                return Ok(());
            }
            fs::remove_file(&link).map_err(failed)?;
        }
        let blob = Path::new("../../blobs").join(id);
        std::os::unix::fs::symlink(blob, &link).map_err(failed)
    }

    /// Remembers what a branch or tag means.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let path = self.root.join("refs").join(revision);
        let failed = |source| HubError::Write {
            path: path.clone(),
            source,
        };
        // Of a cache that somebody else filled, perhaps nothing can be written.
        if fs::read_to_string(&path).is_ok_and(|known| known.trim() == commit) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(&path, commit).map_err(failed)
    }
}

/// Whether the folder has a configuration and all its weights.
fn is_complete(snapshot: &Path) -> bool {
    if !snapshot.join("config.json").is_file() {
        return false;
    }
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
