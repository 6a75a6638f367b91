//! What crosses crates: the rules that hold the workspace together, and the whole system from
//! outside.
//!
//! The tests are in `tests/`; here is what they share. Nothing may depend on this crate.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long tests wait for what has to come.
pub const PATIENT: Duration = Duration::from_secs(60);

/// The folder of the repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The folder of a model that the project ships, `target` or `draft`.
pub fn shipped_model(name: &str) -> PathBuf {
    repository().join("models").join(name)
}

/// All `.rs` files under a crate's folder, build output and nested crates left aside.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        let Ok(entries) = fs::read_dir(&current) else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_output = current == folder && path.ends_with("target");
            let is_other = is_output || path.join("Cargo.toml").exists();
            if path.is_dir() && !is_other {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// What a try comes to, the first time that it comes to something: tries are numbered from 0 on. What an
/// endpoint does in time depends on what else this machine does, so a single try tells nothing.
///
/// # Panics
/// If none does within twice [`PATIENT`], so that what hangs in a try may say so itself.
#[expect(clippy::panic, reason = "tests fail by it")]
pub async fn eventually<T>(what: &str, mut try_once: impl AsyncFnMut(u64) -> Option<T>) -> T {
    let tries = async {
        let mut number = 0;
        loop {
            if let Some(result) = try_once(number).await {
                return result;
            }
            number += 1;
        }
    };
    let result = tokio::time::timeout(2 * PATIENT, tries).await;
    result.unwrap_or_else(|_| panic!("never {what}"))
}
