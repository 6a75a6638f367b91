//! `foretoken fetch`: a model of the hub, before anything needs it.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;

use foretoken_artifacts::progress::{Bar, Progress};
use foretoken_service::{
    observation::{Observation, Observed},
    report::{Board, FetchReport, ModelReport},
    rounds::Feed,
};
use tokio_util::sync::CancellationToken;

use crate::{
    child,
    model::{Part, resolve_telling},
    output,
};

/// Arguments of `foretoken fetch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: hf://owner/name or hf://owner/name@revision
    #[arg(value_name = "URI")]
    model: String,
    /// Make a link to the model's folder here, in place of an earlier one
    #[arg(long, value_name = "PATH")]
    link: Option<PathBuf>,
    /// Where /status says how far it is, HOST:PORT [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    observe: Option<String>,
    /// Leave weights where they are: for routers, and for simulated models
    #[arg(long)]
    without_weights: bool,
}

/// Tells people at a terminal, and whoever asks.
struct Telling {
    bar: Bar,
    board: Board,
    so_far: Mutex<FetchReport>,
}

impl Telling {
    fn tell(&self, change: impl FnOnce(&mut FetchReport)) {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut so_far);
        self.board.show_fetch(*so_far);
    }
}

impl Progress for Telling {
    fn begin(&self, name: &str, total_bytes: u64, present_bytes: u64) {
        self.bar.begin(name, total_bytes, present_bytes);
        self.tell(|so_far| {
            *so_far = FetchReport {
                done: present_bytes,
                total: total_bytes,
            };
        });
    }

    fn advance(&self, bytes: u64) {
        self.bar.advance(bytes);
        self.tell(|so_far| so_far.done = so_far.done.saturating_add(bytes));
    }

    fn lose(&self, bytes: u64) {
        self.bar.lose(bytes);
        self.tell(|so_far| so_far.done = so_far.done.saturating_sub(bytes));
    }

    fn finish(&self) {
        self.bar.finish();
    }
}

/// Downloads what is missing of the model and prints its folder.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args {
        model,
        link,
        observe,
        without_weights,
    } = args;
    let part = if *without_weights {
        Part::Text
    } else {
        Part::All
    };
    let folder = child::small_runtime()?.block_on(download(model, part, observe.as_deref()))?;
    if let Some(link) = link {
        point(link, &folder).with_context(|| format!("cannot make the link {}", link.display()))?;
    }
    Ok(output::print(&format!("{}\n", folder.display()))?)
}

/// Downloads what is missing, and says at `observe` how far that is.
async fn download(model: &str, part: Part, observe: Option<&str>) -> anyhow::Result<PathBuf> {
    let telling = Telling {
        bar: Bar::default(),
        board: Board::new("fetch", ModelReport::default()),
        so_far: Mutex::default(),
    };
    let observed = Observed {
        registry: Arc::default(),
        ready: Arc::default(),
        board: telling.board.clone(),
        feed: Feed::new("fetch", "fetch", false),
    };
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    match observe.map(Observation::bind).transpose() {
        Ok(Some(port)) => drop(tokio::spawn(port.serve(observed, stop))),
        Ok(None) => {}
        // A download that nobody watches is one all the same.
        Err(error) => tracing::warn!(%error, "nobody can ask how far the download is"),
    }
    resolve_telling(model, part, &telling).await
}

/// Makes `link` point to `folder`. Only an earlier link is replaced.
fn point(link: &Path, folder: &Path) -> io::Result<()> {
    if link.is_symlink() {
        fs::remove_file(link)?;
    }
    symlink(fs::canonicalize(folder)?, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_says_when_a_model_is_not_to_be_had_is_understood_by_the_operator() {
        use foretoken_artifacts::{hub::HubError, uri::HubRepository};
        use foretoken_operator::status::cause;

        let repository = || HubRepository {
            owner: "a".into(),
            name: "b".into(),
            revision: "main".into(),
        };
        let endpoint = || "https://hub.test".to_owned();
        for (error, reason) in [
            (
                HubError::NoFolder {
                    path: "/models/x".into(),
                },
                "ModelNotFound",
            ),
            (
                HubError::NotFound {
                    endpoint: endpoint(),
                    repository: repository(),
                },
                "ModelNotFound",
            ),
            (
                HubError::NoWeights {
                    repository: repository(),
                },
                "ModelNotFound",
            ),
            (
                HubError::Denied {
                    endpoint: endpoint(),
                    repository: repository(),
                },
                "ModelForbidden",
            ),
            (
                HubError::DiskFull {
                    path: "/models/hub".into(),
                    missing_bytes: 7,
                },
                "VolumeFull",
            ),
        ] {
            assert_eq!(cause("model", &error.to_string()), reason, "{error}");
        }
    }

    #[test]
    fn an_earlier_link_is_replaced_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let [old, new, link] = ["old", "new", "link"].map(|name| place.path().join(name));
        fs::create_dir(&old).unwrap();
        fs::create_dir(&new).unwrap();
        point(&link, &old).unwrap();
        point(&link, &new).unwrap();
        assert_eq!(
            fs::read_link(&link).unwrap(),
            fs::canonicalize(&new).unwrap()
        );
        assert!(point(&old, &new).is_err(), "a folder stays");
    }
}
