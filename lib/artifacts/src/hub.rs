//! Fetching a model from the hub into the cache that the Python tools use too.
//!
//! ```text
//! revision --info--> commit --list--> files --download (resumable)--> blobs --links--> snapshot
//! ```
//!
//! Invariants: a snapshot holds only files that are complete (size, and SHA-256 where the hub
//! states one, checked); `refs/REVISION` is written when all that was
//! asked for is there, and whoever wants weights looks whether they are. A commit that only other
//! tools fetched is compared with the hub's list, for they may have fetched a part. What an
//! interrupted download left is `blobs/ID.incomplete`, and the next one goes on from it.

mod cache;
mod download;

use std::{
    env,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use futures::TryStreamExt;
use hf_hub::{
    HFClient, HFError,
    repository::{HFRepository, RepoTreeEntry, RepoTypeModel},
};

use self::cache::RepositoryCache;
use crate::{
    progress::Progress,
    template::ADDITIONAL,
    uri::{HubRepository, ModelUri},
};

/// Longest silence of a hub, as in the Python client.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the hub and its cache are. Fields left empty come from the usual environment variables
/// (`HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_HUB_DOWNLOAD_TIMEOUT`) or their defaults.
#[derive(Clone, Debug, Default)]
pub struct HubOptions {
    /// Address of the hub or of a mirror.
    pub endpoint: Option<String>,
    /// Folder of the cache.
    pub cache: Option<PathBuf>,
    /// Token for private and gated repositories.
    pub token: Option<String>,
    /// Leaves weights where they are, for whoever computes nothing: the rest of a model is small.
    pub without_weights: bool,
    /// How long the hub may say nothing before the connection is given up; another one goes on.
    pub patience: Option<Duration>,
}

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A plain path that is no folder.
    #[error("model folder {} does not exist or is not a folder", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// The client could not be set up, for example because of a malformed endpoint.
    #[error(
        "cannot set up the hub client (HF_ENDPOINT, if set, has to be a URL such as \
         https://hub.example): {source}"
    )]
    Setup {
        /// What it said.
        source: Box<HFError>,
    },
    /// The hub knows no such repository or revision, or hides it.
    #[error(
        "the hub at {endpoint} has no {repository}; check owner, name and revision, and set \
         HF_TOKEN if it is private"
    )]
    NotFound {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        repository: HubRepository,
    },
    /// The hub refuses.
    #[error(
        "the hub at {endpoint} refuses access to {repository}; accept its licence there and set \
         HF_TOKEN"
    )]
    Denied {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        repository: HubRepository,
    },
    /// The hub cannot be reached or breaks off again and again.
    #[error("cannot fetch {repository} from {endpoint} (set HF_ENDPOINT for a mirror): {source}")]
    Unreachable {
        /// The hub.
        endpoint: String,
        /// What was asked for.
        repository: HubRepository,
        /// What was seen.
        source: Box<HFError>,
    },
    /// The repository has no weights in a form that can be read.
    #[error("{repository} has no *.safetensors weights beside a config.json")]
    NoWeights {
        /// What was asked for.
        repository: HubRepository,
    },
    /// What arrived is not what the hub announced.
    #[error("{file} of {repository} arrived damaged ({detail}); try again")]
    Damaged {
        /// What was asked for.
        repository: HubRepository,
        /// The file.
        file: String,
        /// What differs.
        detail: String,
    },
    /// No room for the download.
    #[error(
        "the disk of {} is full: {missing_bytes} more bytes are needed; make room, or set \
         HF_HUB_CACHE to another disk, and start again (the download goes on where it stopped)",
        path.display()
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
        /// Bytes of the file that are still missing.
        missing_bytes: u64,
    },
    /// The cache cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A client of the hub with a cache.
pub struct Hub {
    client: HFClient,
    without_weights: bool,
    patience: Duration,
}

/// A file of a repository, as the hub lists it.
#[derive(Clone, Debug)]
struct RemoteFile {
    path: String,
    size: u64,
    /// Name of the blob in the cache: SHA-256 of large files, git's object id of small ones.
    id: String,
    sha256: Option<String>,
    /// Kept outside git, by its SHA-256.
    large: bool,
    /// Comes in blocks of up to 64 MiB, each all at once.
    in_blocks: bool,
}

impl ModelUri {
    /// The folder of the model, downloaded first if it lies on the hub.
    ///
    /// # Errors
    /// See [`HubError`].
    pub async fn resolve(
        &self,
        options: &HubOptions,
        progress: &dyn Progress,
    ) -> Result<PathBuf, HubError> {
        match self {
            Self::Folder(path) if path.is_dir() => Ok(path.clone()),
            Self::Folder(path) => Err(HubError::NoFolder { path: path.clone() }),
            Self::Hub(repository) => Hub::new(options)?.fetch(repository, progress).await,
        }
    }
}

impl Hub {
    /// Sets up the client; nothing is sent yet.
    ///
    /// # Errors
    /// [`HubError::Setup`] if an address is malformed.
    pub fn new(options: &HubOptions) -> Result<Self, HubError> {
        let mut builder = HFClient::builder();
        if let Some(endpoint) = &options.endpoint {
            builder = builder.endpoint(endpoint);
        }
        if let Some(cache) = &options.cache {
            builder = builder.cache_dir(cache);
        }
        if let Some(token) = &options.token {
            builder = builder.token(token);
        }
        let client = builder.build().map_err(|source| HubError::Setup {
            source: Box::new(source),
        })?;
        Ok(Self {
            client,
            without_weights: options.without_weights,
            patience: options.patience.unwrap_or_else(usual_patience),
        })
    }

    /// What the hub answers, unless it says nothing for too long.
    async fn heard<T>(
        &self,
        answer: impl Future<Output = Result<T, HFError>>,
    ) -> Result<T, HFError> {
        within(self.patience, answer).await
    }

    /// Downloads what a server needs of `repository` (weights as safetensors, unless they are to be
    /// left, JSON files, chat templates) unless the cache has it, and returns the snapshot's folder. With the hub out of
    /// reach, an earlier complete download of the same revision serves.
    ///
    /// # Errors
    /// See [`HubError`].
    pub async fn fetch(
        &self,
        repository: &HubRepository,
        progress: &dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let cache = RepositoryCache::new(self.client.cache_dir(), repository, self.without_weights);
        if let Some(snapshot) = cache.complete_commit(&repository.revision) {
            return Ok(snapshot);
        }
        let remote = self.client.model(&repository.owner, &repository.name);
        let (commit, files) = match self.list(&remote, repository).await {
            Ok(listing) => listing,
            Err(error @ HubError::Unreachable { .. }) => {
                let Some(snapshot) = cache.last_known(&repository.revision) else {
                    return Err(error);
                };
                tracing::warn!(%error, folder = %snapshot.display(), "using the cached model");
                return Ok(snapshot);
            }
            Err(error) => return Err(error),
        };
        let missing: Vec<&RemoteFile> = files.iter().filter(|f| !cache.has_blob(&f.id)).collect();
        let total: u64 = missing.iter().map(|f| f.size).sum();
        let present: u64 = missing
            .iter()
            .map(|f| cache.partial_len(&f.id).min(f.size))
            .sum();
        progress.begin(&repository.to_string(), total, present);
        let result = async {
            for file in missing {
                let download = download::Download {
                    hub: self,
                    repository,
                    remote: &remote,
                    commit: &commit,
                    file,
                };
                download.run(&cache, progress).await?;
            }
            Ok(())
        }
        .await;
        progress.finish();
        result?;
        for file in &files {
            cache.link(&commit, &file.path, &file.id)?;
        }
        cache.write_ref(&repository.revision, &commit)?;
        Ok(cache.snapshot(&commit))
    }

    /// Commit of the revision, and the files that a server needs.
    async fn list(
        &self,
        remote: &HFRepository<RepoTypeModel>,
        repository: &HubRepository,
    ) -> Result<(String, Vec<RemoteFile>), HubError> {
        let failed = |source| self.error(repository, source);
        let info = remote.info().revision(&repository.revision).send();
        let info = self.heard(info).await.map_err(failed)?;
        // A mirror may not tell the commit; its revision then names the snapshot. So it does where a hub tells
        // something else, since it is the name of a folder.
        let is_digest =
            |sha: &String| !sha.is_empty() && sha.bytes().all(|b| b.is_ascii_hexdigit());
        let commit = info
            .sha
            .filter(is_digest)
            .unwrap_or_else(|| repository.revision.replace('/', "--"));
        let (mut files, folders) = self
            .list_folder(remote, &commit, None)
            .await
            .map_err(failed)?;
        if folders.iter().any(|path| path == ADDITIONAL) {
            let templates = self.list_folder(remote, &commit, Some(ADDITIONAL)).await;
            files.extend(templates.map_err(failed)?.0);
        }
        for file in files
            .iter_mut()
            .filter(|file| file.large && file.sha256.is_none())
        {
            // The listing names the pointer file; the download's tag is the content's SHA-256.
            let meta = remote
                .get_file_metadata()
                .filepath(&file.path)
                .revision(&commit);
            if let Ok(meta) = self.heard(meta.send()).await
                && is_sha256(&meta.etag)
            {
                file.id.clone_from(&meta.etag);
                file.sha256 = Some(meta.etag);
            }
        }
        files.sort_by_key(|file| file.size);
        let has = |test: &dyn Fn(&str) -> bool| files.iter().any(|f| test(&f.path));
        if !has(&|p| p == "config.json") || !has(&|p| is_weights(p)) {
            return Err(HubError::NoWeights {
                repository: repository.clone(),
            });
        }
        if self.without_weights {
            files.retain(|file| !is_weights(&file.path));
        }
        Ok((commit, files))
    }

    /// Files of a folder that a server needs, and the folders in it.
    async fn list_folder(
        &self,
        remote: &HFRepository<RepoTypeModel>,
        commit: &str,
        folder: Option<&str>,
    ) -> Result<(Vec<RemoteFile>, Vec<String>), HFError> {
        let listed = remote.list_tree().revision(commit);
        let mut entries = pin!(listed.maybe_path_in_repo(folder).send()?);
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        while let Some(entry) = self.heard(entries.try_next()).await? {
            match entry {
                RepoTreeEntry::Directory { path, .. } => folders.push(path),
                file @ RepoTreeEntry::File { .. } => files.extend(needed(file)),
            }
        }
        Ok((files, folders))
    }

    /// What an error of the client means to the user.
    fn error(&self, repository: &HubRepository, source: HFError) -> HubError {
        let endpoint = self.client.endpoint().to_owned();
        let repository = repository.clone();
        match source {
            HFError::RepoNotFound { .. }
            | HFError::RevisionNotFound { .. }
            | HFError::EntryNotFound { .. } => HubError::NotFound {
                endpoint,
                repository,
            },
            HFError::Http { context } if context.status.as_u16() == 404 => HubError::NotFound {
                endpoint,
                repository,
            },
            HFError::AuthRequired { .. } | HFError::Forbidden { .. } => HubError::Denied {
                endpoint,
                repository,
            },
            source => HubError::Unreachable {
                endpoint,
                repository,
                source: Box::new(source),
            },
        }
    }
}

/// What the hub answers, unless it says nothing for so long.
async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, HFError>>,
) -> Result<T, HFError> {
    let silent = |_| {
        let cause = format!("the hub has said nothing for {patience:?}");
        Err(io::Error::new(io::ErrorKind::TimedOut, cause).into())
    };
    tokio::time::timeout(patience, answer)
        .await
        .unwrap_or_else(silent)
}

/// `HF_HUB_DOWNLOAD_TIMEOUT` in whole seconds, as the Python client reads it.
fn usual_patience() -> Duration {
    let seconds = env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds
        .filter(|&seconds| seconds > 0)
        .map_or(PATIENCE, Duration::from_secs)
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_weights(path: &str) -> bool {
    // `consolidated*` repeats the weights in another naming.
    Path::new(path)
        .extension()
        .is_some_and(|e| e == "safetensors")
        && !path.starts_with("consolidated")
}

/// The entry as a file, if a server needs it.
fn needed(entry: RepoTreeEntry) -> Option<RemoteFile> {
    let RepoTreeEntry::File {
        oid,
        size,
        path,
        lfs,
        xet_hash,
        ..
    } = entry
    else {
        return None;
    };
    let extension = Path::new(&path)
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    let wanted = match path.rsplit_once('/') {
        None => {
            !path.starts_with('.') && (is_weights(&path) || matches!(extension, "json" | "jinja"))
        }
        Some((folder, name)) => {
            folder == ADDITIONAL && !name.starts_with('.') && extension == "jinja"
        }
    };
    let large = lfs.is_some();
    let sha256 = lfs
        .and_then(|lfs| lfs.sha256)
        .filter(|sha256| is_sha256(sha256));
    // The id becomes a file name, so a hub that lies must not choose its folder.
    let id = sha256.clone().unwrap_or(oid);
    let plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit());
    (wanted && plain).then_some(RemoteFile {
        path,
        size,
        id,
        sha256,
        large,
        in_blocks: xet_hash.is_some(),
    })
}

#[cfg(test)]
mod tests;
