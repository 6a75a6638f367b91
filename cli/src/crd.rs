//! `foretoken crd`: the definitions of our kinds, as YAML.

use std::{fs, path::PathBuf};

use foretoken_crds::{Kind, page};

use crate::{failure::usage, output::print};

/// Arguments of `foretoken crd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One kind only
    #[arg(long, value_parser = kind_called, value_name = "KIND")]
    kind: Option<Kind>,
    /// Write one file for each kind into this folder, instead of printing
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Print the reference of the API instead, as Markdown
    #[arg(long, conflicts_with_all = ["kind", "dir"])]
    reference: bool,
}

/// Prints the definitions, or writes them.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args {
        kind,
        dir,
        reference,
    } = args;
    if *reference {
        return Ok(print(&page::reference())?);
    }
    let kinds = kind.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
    let Some(dir) = dir else {
        let documents: Vec<String> = kinds.into_iter().map(Kind::yaml).collect();
        return Ok(print(&documents.join("---\n"))?);
    };
    let failed = |path: &PathBuf, error| usage(format!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    let mut written = Vec::new();
    for kind in kinds {
        let path = dir.join(kind.file_name());
        fs::write(&path, kind.yaml()).map_err(|error| failed(&path, error))?;
        written.push(format!("{}\n", path.display()));
    }
    Ok(print(&written.concat())?)
}

fn kind_called(name: &str) -> Result<Kind, String> {
    let names = Kind::ALL.map(Kind::name).join(", ");
    Kind::called(name).ok_or_else(|| format!("must be one of {names}"))
}
