//! The pair of models that the executable carries, for whoever names none.
//!
//! In the user's cache its files lie as in the source tree, models beside a file that serves them, and
//! are then files like any others:
//!
//! ```text
//! $XDG_CACHE_HOME/foretoken/pair-DIGEST/examples/laptop.yaml
//!                                       models/README.md  target/..  draft/..
//! ```
//!
//! They are compared with what is carried at every use, written under another name and renamed: nobody
//! sees half of one, and what was damaged or deleted is put right.

use std::{
    env,
    ffi::OsString,
    fs::{self, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// Files by their paths in the source tree, with their bytes.
macro_rules! carried {
    ($($path:literal),+ $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../", $path)))),+]
    };
}

/// All that is carried. The README has the licence of what the models were trained on.
static FILES: &[(&str, &[u8])] = carried![
    "examples/laptop.yaml",
    "models/README.md",
    "models/draft/config.json",
    "models/draft/generation_config.json",
    "models/draft/model.safetensors",
    "models/draft/tokenizer.json",
    "models/draft/tokenizer_config.json",
    "models/target/config.json",
    "models/target/generation_config.json",
    "models/target/model.safetensors",
    "models/target/tokenizer.json",
    "models/target/tokenizer_config.json",
];

/// The pair, in the cache.
#[derive(Debug)]
pub(crate) struct Shipped {
    folder: PathBuf,
}

impl Shipped {
    /// Puts into the cache what is not there yet.
    pub(crate) fn unpack() -> anyhow::Result<Self> {
        let cache = cache(|name| env::var_os(name)).context(
            "no place for the models that come with foretoken: neither XDG_CACHE_HOME nor HOME is set \
             to an absolute path",
        )?;
        let folder = folder(&cache);
        fill(&folder).with_context(|| {
            format!(
                "cannot put the models that come with foretoken into {}; set XDG_CACHE_HOME to a folder \
                 that can be written, or name models",
                folder.display()
            )
        })?;
        Ok(Self { folder })
    }

    /// The file that `foretoken up` serves them by.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join("examples/laptop.yaml")
    }

    /// The folder that has both models.
    pub(crate) fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// The model that decides.
    pub(crate) fn target(&self) -> anyhow::Result<String> {
        self.model("target")
    }

    /// The model that proposes.
    pub(crate) fn draft(&self) -> anyhow::Result<String> {
        self.model("draft")
    }

    fn model(&self, name: &str) -> anyhow::Result<String> {
        let folder = self.models().join(name);
        let folder = folder.to_str().map(str::to_owned);
        folder.context("the path of the cache must be UTF-8")
    }
}

/// The user's cache, by the rules for it on Linux.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// Where the pair lies in a cache: each content has a place of its own.
fn folder(cache: &Path) -> PathBuf {
    let mut digest = blake3::Hasher::new();
    for (path, bytes) in FILES {
        for part in [path.as_bytes(), bytes] {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part);
        }
    }
    let digest = digest.finalize().to_hex();
    cache.join(format!("foretoken/pair-{}", &digest[..16]))
}

/// Makes `folder` hold all files.
fn fill(folder: &Path) -> io::Result<()> {
    FILES
        .iter()
        .try_for_each(|(path, bytes)| place(&folder.join(path), bytes))
}

/// Makes `path` hold these bytes, unless it does.
fn place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_users_have_theirs() {
        let cache = |cache: Option<&str>, home: Option<&str>| {
            super::cache(|name| match name {
                "XDG_CACHE_HOME" => cache.map(Into::into),
                _ => home.map(Into::into),
            })
        };
        assert_eq!(cache(Some("/c"), Some("/h")), Some("/c".into()));
        for unset in [None, Some(""), Some("c")] {
            assert_eq!(cache(unset, Some("/h")), Some("/h/.cache".into()));
        }
        assert_eq!(cache(None, None), None);
    }

    #[test]
    fn what_was_damaged_or_deleted_is_put_right_and_the_rest_is_left() {
        let cache = tempfile::tempdir().unwrap();
        let folder = folder(cache.path());
        fill(&folder).unwrap();
        let [whole, cut, gone] =
            ["target", "draft", "draft"].map(|name| folder.join("models").join(name));
        let whole = whole.join("model.safetensors");
        let written = fs::metadata(&whole).unwrap().modified().unwrap();
        let (cut, gone) = (cut.join("model.safetensors"), gone.join("config.json"));
        fs::write(&cut, &fs::read(&cut).unwrap()[1..]).unwrap();
        fs::remove_file(gone).unwrap();
        fill(&folder).unwrap();
        for (path, bytes) in FILES {
            assert!(fs::read(folder.join(path)).unwrap() == *bytes, "{path}");
        }
        assert_eq!(fs::metadata(&whole).unwrap().modified().unwrap(), written);
        let names = fs::read_dir(folder.join("models/draft")).unwrap();
        assert_eq!(names.count(), 5, "nothing but the files stays");
    }

    #[test]
    fn all_files_of_a_model_are_carried() {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../models"));
        for model in ["target", "draft"] {
            for entry in fs::read_dir(source.join(model)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let path = format!("models/{model}/{name}");
                assert!(FILES.iter().any(|(known, _)| *known == path), "{path}");
            }
        }
    }
}
