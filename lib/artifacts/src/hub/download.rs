//! One file: resumed where it stopped, checked, and only then given its name.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use futures::TryStreamExt;
use hf_hub::{
    HFError,
    repository::{HFRepository, RepoTypeModel},
};
use sha2::{Digest, Sha256};

use super::{Hub, HubError, RemoteFile, cache::RepositoryCache, within};
use crate::{progress::Progress, uri::HubRepository};

/// Connections that may break without one byte of progress before the download gives up.
const BARREN_ATTEMPTS: u32 = 5;
/// Wait before the next connection, times the number of barren ones so far.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait before the next connection, however long the hub asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often the usual patience a block may take that comes all at once.
const BLOCK_PATIENCE: u32 = 10;
/// Read at a time when a file's digest is taken.
const DIGEST_CHUNK: usize = 1 << 20;

/// A file to download.
pub(super) struct Download<'a> {
    pub(super) hub: &'a Hub,
    pub(super) repository: &'a HubRepository,
    pub(super) remote: &'a HFRepository<RepoTypeModel>,
    pub(super) commit: &'a str,
    pub(super) file: &'a RemoteFile,
}

/// How one connection ended.
enum Attempt {
    /// The file has its size.
    Complete,
    /// The connection broke after some (or no) bytes.
    Broken { received: u64, source: Box<HFError> },
    /// The server sent something else than the rest of the file.
    NotTheRest,
    /// The server sent so much and no more, which is less than the rest, so that none of it is.
    Stray { received: u64 },
}

impl Download<'_> {
    /// Downloads the file into the cache's blobs.
    pub(super) async fn run(
        &self,
        cache: &RepositoryCache,
        progress: &dyn Progress,
    ) -> Result<(), HubError> {
        let path = cache.partial(&self.file.id);
        let failed = |source| HubError::Write {
            path: path.clone(),
            source,
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut out = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&path)
            .map_err(failed)?;
        // Another process may be at the same file: wait for it, then see what it left.
        let out = tokio::task::spawn_blocking(move || {
            out.lock()?;
            out.flush().map(|()| out)
        })
        .await
        .map_err(|e| failed(io::Error::other(e)))?;
        let mut out = out.map_err(failed)?;
        if cache.has_blob(&self.file.id) {
            return Ok(());
        }
        self.receive(&mut out, cache, progress).await?;
        self.check(&path, &out)?;
        out.sync_all()
            .map_err(|source| self.write_error(cache, &out, source))?;
        fs::rename(&path, cache.blob(&self.file.id)).map_err(failed)
    }

    /// Receives until the file has its size, over as many connections as it takes.
    async fn receive(
        &self,
        out: &mut File,
        cache: &RepositoryCache,
        progress: &dyn Progress,
    ) -> Result<(), HubError> {
        let (mut barren, mut begun_anew, mut strays) = (0, 0, 0);
        loop {
            match self.attempt(out, cache, progress).await? {
                Attempt::Complete => return Ok(()),
                Attempt::Stray { received } if strays < BARREN_ATTEMPTS => {
                    strays += 1;
                    let had = length(out).saturating_sub(received);
                    out.set_len(had)
                        .map_err(|source| self.write_error(cache, out, source))?;
                    progress.lose(received);
                    tokio::time::sleep(RETRY_PAUSE * strays).await;
                }
                Attempt::NotTheRest if begun_anew < BARREN_ATTEMPTS => {
                    // The server knows no ranges, or the file is another one.
                    begun_anew += 1;
                    let had = length(out);
                    out.set_len(0)
                        .map_err(|source| self.write_error(cache, out, source))?;
                    // More than the file has was never told.
                    progress.lose(had.min(self.file.size));
                }
                Attempt::NotTheRest | Attempt::Stray { .. } => {
                    let detail = format!("it has not the {} bytes announced", self.file.size);
                    return Err(self.damaged(detail));
                }
                Attempt::Broken { received, source } => {
                    barren = if received > 0 { 0 } else { barren + 1 };
                    if barren >= BARREN_ATTEMPTS {
                        return Err(self.hub.error(self.repository, *source));
                    }
                    tracing::debug!(file = self.file.path, %source, "download broke, resuming");
                    let asked = match *source {
                        HFError::RateLimited { retry_after, .. } => retry_after,
                        _ => None,
                    };
                    let pause = asked.unwrap_or(RETRY_PAUSE * (barren + 1));
                    tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
                }
            }
        }
    }

    /// One connection.
    async fn attempt(
        &self,
        out: &mut File,
        cache: &RepositoryCache,
        progress: &dyn Progress,
    ) -> Result<Attempt, HubError> {
        let size = self.file.size;
        let have = length(out);
        if have > size {
            return Ok(Attempt::NotTheRest);
        }
        if have == size && (size > 0 || self.file.sha256.is_none()) {
            return Ok(Attempt::Complete);
        }
        let range = (have > 0).then_some(have..size);
        let request = self
            .remote
            .download_file_stream()
            .filename(&self.file.path)
            .revision(self.commit)
            .maybe_range(range);
        let mut received = 0;
        let mut stream = match self.hub.heard(request.send()).await {
            Ok((_, stream)) => stream,
            // It ends before this.
            Err(HFError::Http { context }) if context.status.as_u16() == 416 => {
                return Ok(Attempt::NotTheRest);
            }
            Err(
                source @ (HFError::Request { .. }
                | HFError::Http { .. }
                | HFError::RateLimited { .. }
                | HFError::Xet { .. }
                | HFError::Io(_)),
            ) => {
                return Ok(Attempt::Broken {
                    received,
                    source: Box::new(source),
                });
            }
            Err(source) => return Err(self.hub.error(self.repository, source)),
        };
        let blocks = if self.file.in_blocks {
            BLOCK_PATIENCE
        } else {
            1
        };
        let patience = self.hub.patience * blocks;
        loop {
            match within(patience, stream.try_next()).await {
                Ok(Some(bytes)) => {
                    received += bytes.len() as u64;
                    if have + received > size {
                        return Ok(Attempt::NotTheRest);
                    }
                    out.write_all(&bytes)
                        .map_err(|e| self.write_error(cache, out, e))?;
                    progress.advance(bytes.len() as u64);
                }
                Ok(None) if have + received == size => return Ok(Attempt::Complete),
                // One that breaks says so, if it has said how much it sends.
                Ok(None) => return Ok(Attempt::Stray { received }),
                Err(source) => {
                    return Ok(Attempt::Broken {
                        received,
                        source: Box::new(source),
                    });
                }
            }
        }
    }

    /// Checks the digest; a damaged file is emptied, so that the next attempt begins anew. It stays, since others
    /// may have it open and wait for it.
    fn check(&self, path: &Path, out: &File) -> Result<(), HubError> {
        let Some(want) = &self.file.sha256 else {
            return Ok(());
        };
        let have = digest(path).map_err(|source| HubError::Write {
            path: path.to_owned(),
            source,
        })?;
        if have.eq_ignore_ascii_case(want) {
            return Ok(());
        }
        out.set_len(0).map_err(|source| HubError::Write {
            path: path.to_owned(),
            source,
        })?;
        Err(self.damaged(format!("its SHA-256 is {have} and should be {want}")))
    }

    fn damaged(&self, detail: String) -> HubError {
        HubError::Damaged {
            repository: self.repository.clone(),
            file: self.file.path.clone(),
            detail,
        }
    }

    fn write_error(&self, cache: &RepositoryCache, out: &File, source: io::Error) -> HubError {
        let path = cache.partial(&self.file.id);
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => {
                let have = length(out);
                HubError::DiskFull {
                    path,
                    missing_bytes: self.file.size.saturating_sub(have),
                }
            }
            _ => HubError::Write { path, source },
        }
    }
}

/// Bytes of a file; 0 if that cannot be told.
fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |meta| meta.len())
}

/// SHA-256 of a file, in hex.
fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; DIGEST_CHUNK];
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        hash.update(&chunk[..n]);
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        for nibble in [byte >> 4, byte & 15] {
            hex.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
    Ok(hex)
}
