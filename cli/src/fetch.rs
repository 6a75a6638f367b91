//! `foretoken fetch`: a model of the hub, before anything needs it.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::{child, model::resolve};

/// Arguments of `foretoken fetch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: hf://owner/name or hf://owner/name@revision
    #[arg(value_name = "URI")]
    model: String,
    /// Make a link to the model's folder here, in place of an earlier one
    #[arg(long, value_name = "PATH")]
    link: Option<PathBuf>,
}

/// Downloads what is missing of the model and prints its folder.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { model, link } = args;
    let folder = child::small_runtime()?.block_on(resolve(model))?;
    if let Some(link) = link {
        point(link, &folder).with_context(|| format!("cannot make the link {}", link.display()))?;
    }
    println!("{}", folder.display());
    Ok(())
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
