//! `foretoken check`: is a file valid, and where not?

use std::{fs, path::PathBuf};

use foretoken_crds::{Manifest, Problem, served};

use crate::failure::{Reported, usage};

/// Arguments of `foretoken check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File of one or more YAML documents
    file: PathBuf,
}

/// Prints every problem as `FILE:LINE: FIELD: MESSAGE`. What is valid but not served by this
/// version is a warning.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { file } = args;
    let text = fs::read_to_string(file)
        .map_err(|error| usage(format!("cannot read {}: {error}", file.display())))?;
    let print = |problem: &Problem, kind: &str| eprintln!("{}", describe(file, problem, kind));
    let manifest = Manifest::parse(&text).map_err(|invalid| {
        for problem in &invalid.problems {
            print(problem, "");
        }
        Reported
    })?;
    for problem in served::gaps(&manifest).iter().chain(&manifest.skipped) {
        print(problem, "warning: ");
    }
    for problem in local_paths(&manifest) {
        print(&problem, "note: ");
    }
    let Manifest {
        deployments,
        endpoints,
        skipped: _,
    } = &manifest;
    println!(
        "{}: valid, {} and {}",
        file.display(),
        count(deployments.len(), "deployment"),
        count(endpoints.len(), "endpoint")
    );
    Ok(())
}

/// A problem the way compilers print theirs, so that editors jump to it.
pub(crate) fn describe(file: &std::path::Path, problem: &Problem, kind: &str) -> String {
    let Problem {
        line,
        field,
        message,
    } = problem;
    let place = if *line > 0 {
        format!("{}:{line}", file.display())
    } else {
        file.display().to_string()
    };
    let field = if field.is_empty() {
        String::new()
    } else {
        format!("{field}: ")
    };
    format!("{place}: {kind}{field}{message}")
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Models that only this machine has.
fn local_paths(manifest: &Manifest) -> Vec<Problem> {
    const MESSAGE: &str = "is a path of this machine: for `foretoken up`, not for a cluster";
    let deployments = manifest
        .deployments
        .iter()
        .filter(|document| document.object.spec.model.is_local_path())
        .map(|document| document.lines.problem("spec.model.uri", MESSAGE));
    let endpoints = manifest
        .endpoints
        .iter()
        .filter(|document| document.object.spec.model.is_local_path())
        .map(|document| document.lines.problem("spec.model.uri", MESSAGE));
    deployments.chain(endpoints).collect()
}
