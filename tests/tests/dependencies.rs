//! Which crate may know which, kept true by reading the workspace.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{collections::BTreeMap, fs, path::Path};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The allowed edges between our own crates, dependencies of tests and examples left aside.
/// `foretoken-tests` may know everything and nothing may know it.
const ALLOWED: [(&str, &[&str]); 16] = [
    ("foretoken-speculation", &[]),
    ("foretoken-artifacts", &["foretoken-speculation"]),
    ("foretoken-engine", &["foretoken-speculation"]),
    ("foretoken-pipe", &[]),
    (
        "foretoken-protocol",
        &["foretoken-pipe", "foretoken-speculation"],
    ),
    ("foretoken-service", &["foretoken-protocol"]),
    ("foretoken-telemetry", &["foretoken-speculation"]),
    ("foretoken-registry", &["foretoken-protocol"]),
    ("foretoken-crds", &["foretoken-speculation"]),
    (
        "foretoken-configuration",
        &[
            "foretoken-crds",
            "foretoken-draft",
            "foretoken-router",
            "foretoken-speculation",
            "foretoken-target",
        ],
    ),
    (
        "foretoken-operator",
        &[
            "foretoken-configuration",
            "foretoken-crds",
            "foretoken-draft",
            "foretoken-protocol",
            "foretoken-registry",
            "foretoken-router",
            "foretoken-service",
            "foretoken-target",
        ],
    ),
    (
        "foretoken-router",
        &[
            "foretoken-artifacts",
            "foretoken-protocol",
            "foretoken-registry",
            "foretoken-speculation",
            "foretoken-telemetry",
        ],
    ),
    ("foretoken-target", SERVICE),
    ("foretoken-draft", SERVICE),
    (
        "foretoken",
        &[
            "foretoken-artifacts",
            "foretoken-bench",
            "foretoken-configuration",
            "foretoken-crds",
            "foretoken-draft",
            "foretoken-engine",
            "foretoken-operator",
            "foretoken-protocol",
            "foretoken-registry",
            "foretoken-router",
            "foretoken-service",
            "foretoken-speculation",
            "foretoken-target",
            "foretoken-telemetry",
        ],
    ),
    (
        "foretoken-bench",
        &[
            "foretoken-artifacts",
            "foretoken-engine",
            "foretoken-protocol",
            "foretoken-speculation",
        ],
    ),
];

/// What a service may know: services meet in `protocol`, and never know each other.
const SERVICE: &[&str] = &[
    "foretoken-engine",
    "foretoken-service",
    "foretoken-protocol",
    "foretoken-registry",
    "foretoken-speculation",
    "foretoken-telemetry",
];

/// Who may say `unsafe`: kernels, and memory that other processes write to.
const UNSAFE: &[&str] = &["foretoken-engine", "foretoken-pipe"];

/// Who talks to the API server of a cluster.
const KUBERNETES: &[&str] = &["foretoken-crds", "foretoken-operator", "foretoken-registry"];

/// Third-party crates that only some of ours may name.
const WRAPPED: [(&str, &[&str]); 9] = [
    ("opentelemetry", &["foretoken-telemetry"]),
    ("opentelemetry_sdk", &["foretoken-telemetry"]),
    ("tonic", &["foretoken-protocol", "foretoken-registry"]),
    ("prost", &["foretoken-protocol", "foretoken-registry"]),
    ("axum", &["foretoken-router", "foretoken-service"]),
    ("memmap2", UNSAFE),
    ("rustix", &["foretoken-pipe"]),
    ("kube", KUBERNETES),
    ("k8s-openapi", KUBERNETES),
];

/// Features of `kube` that bring in a client, which types of objects do not need.
const CLIENT: [&str; 3] = ["client", "runtime", "cel"];

/// All that a crate without an operating system under it may bring in.
const PURE: [&str; 4] = ["libm", "thiserror", "serde", "hashbrown"];

/// What would bring threads of its own into the engine, which has its own.
const THREADS: [&str; 3] = ["tokio", "rayon", "async-std"];

fn workspace() -> Metadata {
    MetadataCommand::new()
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap()
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    let mut packages = metadata.workspace_packages().into_iter();
    packages
        .find(|package| package.name.as_str() == name)
        .unwrap()
}

/// Names of what `package` needs outside of its own tests.
fn dependencies(package: &Package) -> impl Iterator<Item = &str> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
}

#[test]
fn our_crates_know_only_whom_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let metadata = workspace();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if name == "foretoken-tests" {
            continue;
        }
        let Some(may) = allowed.get(name) else {
            wrong.push(format!("{name} is not in the table"));
            continue;
        };
        let ours = dependencies(package).filter(|name| name.starts_with("foretoken"));
        wrong.extend(
            ours.filter(|known| !may.contains(known))
                .map(|known| format!("{name} -> {known}")),
        );
    }
    assert!(wrong.is_empty(), "not allowed: {wrong:#?}");
}

#[test]
fn third_party_crates_stay_where_they_belong() {
    let metadata = workspace();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        for name in dependencies(package) {
            for (wrapped, may) in WRAPPED {
                let is_it = name == wrapped || name.starts_with(&format!("{wrapped}-"));
                if is_it && !may.contains(&package.name.as_str()) {
                    wrong.push(format!("{} -> {name}", package.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not allowed: {wrong:#?}");
}

#[test]
fn types_of_objects_come_without_a_client() {
    let metadata = workspace();
    let crds = package(&metadata, "foretoken-crds");
    let kube = crds
        .dependencies
        .iter()
        .find(|known| known.name == "kube")
        .unwrap();
    let heavy: Vec<&String> = kube
        .features
        .iter()
        .filter(|feature| CLIENT.contains(&feature.as_str()))
        .collect();
    assert!(heavy.is_empty() && !kube.uses_default_features, "{heavy:?}");
}

#[test]
fn the_engine_computes_on_threads_of_its_own() {
    let metadata = workspace();
    let engine = package(&metadata, "foretoken-engine");
    let foreign: Vec<&str> = dependencies(engine)
        .filter(|name| THREADS.contains(name))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?} in the engine");
}

#[test]
fn the_speculation_core_has_no_operating_system() {
    let metadata = workspace();
    let package = package(&metadata, "foretoken-speculation");
    let impure: Vec<&str> = dependencies(package)
        .filter(|name| !PURE.contains(name))
        .collect();
    assert!(impure.is_empty(), "{impure:?} may not be pure");
    let root = package.manifest_path.with_file_name("src").join("lib.rs");
    let text = fs::read_to_string(&root).unwrap();
    assert!(
        text.lines().any(|line| line == "#![no_std]"),
        "{root} is no_std no more"
    );
}

#[test]
fn unsafe_code_is_where_it_belongs() {
    let metadata = workspace();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        if UNSAFE.contains(&package.name.as_str()) {
            continue;
        }
        let folder = package.manifest_path.parent().unwrap();
        for file in foretoken_tests::rust_files(folder.as_std_path()) {
            let text = fs::read_to_string(&file).unwrap();
            wrong.extend(unsafe_lines(&file, &text));
        }
    }
    assert!(wrong.is_empty(), "unsafe outside {UNSAFE:?}: {wrong:#?}");
}

/// Lines of code that say `unsafe`, comments and texts left aside.
fn unsafe_lines(file: &Path, text: &str) -> Vec<String> {
    let has_word = |code: &str| {
        code.split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| word == "unsafe")
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| {
            let line = line.replace("\\\"", "");
            let code = line.split("//").next().unwrap_or_default();
            has_word(code.split('"').step_by(2).collect::<String>().as_str())
        })
        .map(|(index, _)| format!("{}:{}", file.display(), index + 1))
        .collect()
}

#[test]
fn the_search_for_unsafe_finds_code_and_no_talk() {
    let found = |text| unsafe_lines(Path::new("f"), text).len();
    assert_eq!(found("unsafe { f() }"), 1);
    assert_eq!(found("#![allow(unsafe_code)] // unsafe"), 0);
    assert_eq!(found("let s = \"unsafe\";"), 0);
}
