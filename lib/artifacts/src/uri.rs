//! How a user names a model.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Where a model lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ModelUri {
    /// A folder on this machine: a plain path, or `file:///path`.
    Folder(PathBuf),
    /// A repository of the Hugging Face hub: `hf://owner/name` or `hf://owner/name@revision`.
    Hub(HubRepository),
}

/// A repository of the hub at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubRepository {
    /// User or organisation.
    pub owner: String,
    /// Name of the repository.
    pub name: String,
    /// Branch, tag or commit; `main` if the user named none.
    pub revision: String,
}

/// Why a text names no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseUriError {
    /// Nothing there.
    #[error(
        "the model is empty; write a folder such as /models/llama, file:///models/llama, or \
         hf://owner/name"
    )]
    Empty,
    /// A scheme that is not known.
    #[error("unknown scheme '{scheme}://' in model '{uri}'; allowed are file:// and hf://")]
    Scheme {
        /// What stands before `://`.
        scheme: String,
        /// The whole text.
        uri: String,
    },
    /// `file://` with a host or a relative path.
    #[error("model '{uri}' must have three slashes and an absolute path: file:///path")]
    File {
        /// The whole text.
        uri: String,
    },
    /// Not `owner/name[@revision]`.
    #[error(
        "model '{uri}' must be hf://owner/name or hf://owner/name@revision, of letters, digits, \
         '-', '_' and '.'"
    )]
    Hub {
        /// The whole text.
        uri: String,
    },
}

impl FromStr for ModelUri {
    type Err = ParseUriError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri = text.trim();
        if uri.is_empty() {
            return Err(ParseUriError::Empty);
        }
        let Some((scheme, rest)) = uri.split_once("://") else {
            return Ok(Self::Folder(PathBuf::from(uri)));
        };
        match scheme {
            "file" if rest.starts_with('/') => Ok(Self::Folder(PathBuf::from(rest))),
            "file" => Err(ParseUriError::File {
                uri: uri.to_owned(),
            }),
            "hf" => HubRepository::parse(rest)
                .map(Self::Hub)
                .ok_or_else(|| ParseUriError::Hub {
                    uri: uri.to_owned(),
                }),
            _ => Err(ParseUriError::Scheme {
                scheme: scheme.to_owned(),
                uri: uri.to_owned(),
            }),
        }
    }
}

impl HubRepository {
    /// Parses `owner/name[@revision]`.
    fn parse(text: &str) -> Option<Self> {
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, revision),
            None => (text, "main"),
        };
        let (owner, name) = path.split_once('/')?;
        // The names become folders of the cache: `..` must not leave it.
        let word = |s: &str| {
            !s.is_empty()
                && !s.starts_with('.')
                && s.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let good = word(owner) && word(name) && revision.split('/').all(word);
        good.then(|| Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: revision.to_owned(),
        })
    }
}

impl ModelUri {
    /// The folder, if it is one already.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(path) => Some(path),
            Self::Hub(_) => None,
        }
    }

    /// A short name for people: the last part of the path or repository.
    pub fn short_name(&self) -> String {
        match self {
            Self::Folder(path) => path.file_name().map_or_else(
                || path.display().to_string(),
                |n| n.to_string_lossy().into_owned(),
            ),
            Self::Hub(repository) => repository.name.clone(),
        }
    }
}

impl fmt::Display for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Hub(repository) => repository.fmt(f),
        }
    }
}

impl fmt::Display for HubRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}/{}", self.owner, self.name)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(owner: &str, name: &str, revision: &str) -> ModelUri {
        ModelUri::Hub(HubRepository {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: revision.to_owned(),
        })
    }

    #[test]
    fn every_form_of_the_documentation_parses() {
        for (text, want) in [
            ("/models/a", ModelUri::Folder("/models/a".into())),
            ("models/a", ModelUri::Folder("models/a".into())),
            ("file:///models/a", ModelUri::Folder("/models/a".into())),
            ("hf://owner/name", hub("owner", "name", "main")),
            ("hf://owner/name@v1.0", hub("owner", "name", "v1.0")),
            (
                "hf://owner/name@refs/pr/3",
                hub("owner", "name", "refs/pr/3"),
            ),
        ] {
            assert_eq!(text.parse::<ModelUri>(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_printed_parses_back() {
        for text in ["/models/a", "hf://owner/name", "hf://owner/name@v1"] {
            let uri: ModelUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn names_that_would_leave_the_cache_are_refused() {
        for text in [
            "hf://owner",
            "hf://owner/",
            "hf:///name",
            "hf://../name",
            "hf://owner/..",
            "hf://a/b/c",
            "hf://a/b@../x",
            "hf://a/b@",
            "hf://a b/c",
        ] {
            let error = text.parse::<ModelUri>().unwrap_err();
            assert!(error.to_string().contains("owner/name"), "{text}: {error}");
        }
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let scheme = "s3://bucket/a".parse::<ModelUri>().unwrap_err().to_string();
        assert!(
            scheme.contains("s3://") && scheme.contains("hf://"),
            "{scheme}"
        );
        let file = "file://models".parse::<ModelUri>().unwrap_err().to_string();
        assert!(file.contains("file:///path"), "{file}");
        assert_eq!("  ".parse::<ModelUri>(), Err(ParseUriError::Empty));
    }
}
