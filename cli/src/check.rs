//! `foretoken check`: is a file valid, and where not?
//!
//! Three kinds of findings: what no reader of the file accepts is an error; what only one machine
//! lacks (a policy of a later version, an endpoint or a folder that a cluster may have elsewhere) is
//! a warning, and an error of `foretoken up` and of `check --up`; what is worth knowing is a note.

use std::{
    fs,
    path::{Path, PathBuf},
};

use foretoken_artifacts::ModelUri;
use foretoken_crds::{Manifest, Problem, object::ModelSource, problem::Lines, reference, served};

use crate::{
    failure::{Reported, usage},
    output,
    up::uri,
};

/// Arguments of `foretoken check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File of one or more YAML documents
    file: PathBuf,
    /// Check also what `foretoken up` needs on this machine: warnings about that are errors
    #[arg(long)]
    up: bool,
}

/// Prints every problem as `FILE:LINE: FIELD: MESSAGE`.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { file, up } = args;
    let print = |problem: &Problem, kind: &str| output::remark(describe(file, problem, kind));
    let text = read(file)?;
    let manifest = Manifest::parse(&text).map_err(|invalid| {
        for problem in &invalid.problems {
            print(problem, "");
        }
        Reported::Usage
    })?;
    let needs = needs_of_up(&manifest, folder_of(file));
    for problem in &needs {
        print(problem, if *up { "" } else { "warning: " });
    }
    for problem in &manifest.skipped {
        print(problem, "warning: ");
    }
    for problem in local_paths(&manifest) {
        print(&problem, "note: ");
    }
    if *up && !needs.is_empty() {
        return Err(Reported::Usage.into());
    }
    let Manifest {
        deployments,
        endpoints,
        profiles,
        namespaces: _,
        skipped: _,
    } = &manifest;
    let profiles = match profiles.len() {
        0 => String::new(),
        number => format!(", {}", count(number, "accelerator profile")),
    };
    Ok(output::print(&format!(
        "{}: valid, {} and {}{profiles}\n",
        file.display(),
        count(deployments.len(), "deployment"),
        count(endpoints.len(), "endpoint")
    ))?)
}

/// The text of a file of objects.
pub(crate) fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file)
        .map_err(|error| usage(format!("cannot read {}: {error}", file.display())))
}

/// Where relative paths of a file start.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// What one machine lacks for a valid file, by line. Relative paths start at `folder`.
pub(crate) fn needs_of_up(manifest: &Manifest, folder: &Path) -> Vec<Problem> {
    let mut problems = served::gaps(manifest);
    problems.extend(reference::unresolved(manifest));
    problems.extend(models(manifest).filter_map(|(path, model, lines)| {
        let Ok(ModelUri::Folder(model)) = uri(model, folder).parse() else {
            return None;
        };
        let lacks = match fs::metadata(&model) {
            Ok(found) if !found.is_dir() => "is no folder".to_owned(),
            Ok(_) if !model.join("config.json").exists() => "has no config.json".to_owned(),
            Ok(_) => return None,
            Err(error) => format!("cannot be opened: {error}"),
        };
        let message = format!("model folder {} {lacks}", model.display());
        Some(lines.problem(path, message))
    }));
    problems.sort_by_key(|problem| problem.line);
    problems
}

/// A problem the way compilers print theirs, so that editors jump to it.
pub(crate) fn describe(file: &Path, problem: &Problem, kind: &str) -> String {
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
    models(manifest)
        .filter(|(_, model, _)| model.is_local_path())
        .map(|(path, _, lines)| lines.problem(path, MESSAGE))
        .collect()
}

/// All models of a file, with the field and where it stands.
fn models(manifest: &Manifest) -> impl Iterator<Item = (String, &ModelSource, &Lines)> {
    let own = || "spec.model.uri".to_owned();
    let deployments = manifest.deployments.iter().flat_map(move |document| {
        let spec = &document.object.spec;
        let sources = spec.speculation.iter().flat_map(|s| &s.endpoints);
        let templates = sources.enumerate().filter_map(|(index, source)| {
            let field = format!("spec.speculation.endpoints[{index}].template.model.uri");
            Some((field, &source.template.as_ref()?.model, &document.lines))
        });
        std::iter::once((own(), &spec.model, &document.lines)).chain(templates)
    });
    let endpoints = manifest
        .endpoints
        .iter()
        .map(move |document| (own(), &document.object.spec.model, &document.lines));
    deployments.chain(endpoints)
}
