//! What no compiler checks: stray files, sizes, names.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::MetadataCommand;
use foretoken_tests::rust_files;

/// Most lines of a file, its tests left aside.
const MAX_LINES: usize = 500;
/// Most lines of a `main.rs`.
const MAX_MAIN_LINES: usize = 40;
/// Names that say nothing about what is in a file.
const EMPTY_NAMES: [&str; 7] = [
    "mod.rs",
    "utils.rs",
    "util.rs",
    "common.rs",
    "helpers.rs",
    "misc.rs",
    "types.rs",
];

/// Folder and roots (library, executables, tests, examples) of every crate.
fn crates() -> Vec<(PathBuf, Vec<PathBuf>)> {
    let metadata = MetadataCommand::new()
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    let roots = |package: &cargo_metadata::Package| {
        package
            .targets
            .iter()
            .map(|target| target.src_path.clone().into_std_path_buf())
            .collect()
    };
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| {
            (
                package
                    .manifest_path
                    .parent()
                    .unwrap()
                    .as_std_path()
                    .to_owned(),
                roots(package),
            )
        })
        .collect()
}

#[test]
fn every_file_is_part_of_a_crate() {
    for (folder, roots) in crates() {
        let mut reached = BTreeSet::new();
        for root in &roots {
            reach(root, true, &mut reached);
        }
        let stray: Vec<PathBuf> = rust_files(&folder)
            .into_iter()
            .filter(|file| !reached.contains(file))
            .collect();
        assert!(stray.is_empty(), "no `mod` names {stray:?}");
    }
}

/// Follows `mod` lines from a file.
fn reach(file: &Path, is_root: bool, reached: &mut BTreeSet<PathBuf>) {
    let Ok(text) = fs::read_to_string(file) else {
        return;
    };
    reached.insert(file.to_owned());
    let folder = file.parent().unwrap();
    let inside = if is_root {
        folder.to_owned()
    } else {
        file.with_extension("")
    };
    for name in text.lines().filter_map(module_name) {
        for candidate in [
            inside.join(format!("{name}.rs")),
            inside.join(name).join("mod.rs"),
        ] {
            if !reached.contains(&candidate) {
                reach(&candidate, false, reached);
            }
        }
    }
}

/// The name in `mod name;`, with any visibility.
fn module_name(line: &str) -> Option<&str> {
    let line = line.trim().strip_suffix(';')?;
    let (before, name) = line.rsplit_once("mod ")?;
    let is_visibility = before.is_empty() || (before.starts_with("pub") && before.ends_with(' '));
    is_visibility.then_some(name)
}

#[test]
fn files_are_short_enough_to_read() {
    let mut long = Vec::new();
    for file in crates().iter().flat_map(|(folder, _)| rust_files(folder)) {
        let lines = code_lines(&file);
        let limit = if file.ends_with("main.rs") {
            MAX_MAIN_LINES
        } else {
            MAX_LINES
        };
        if lines > limit {
            long.push(format!(
                "{}: {lines} lines, at most {limit}",
                file.display()
            ));
        }
    }
    assert!(long.is_empty(), "split {long:#?}");
}

/// Lines before the tests at the end of the file; none of a file that is all tests.
fn code_lines(file: &Path) -> usize {
    let is_test = file.file_stem().is_some_and(|stem| stem == "tests")
        || file
            .components()
            .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "benches");
    if is_test && !file.ends_with("lib.rs") {
        return 0;
    }
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests");
    lines.windows(2).position(tests).unwrap_or(lines.len())
}

#[test]
fn names_of_files_say_what_is_in_them() {
    let empty: Vec<PathBuf> = crates()
        .iter()
        .flat_map(|(folder, _)| rust_files(folder))
        .filter(|file| EMPTY_NAMES.iter().any(|name| file.ends_with(name)))
        .collect();
    assert!(empty.is_empty(), "rename {empty:?}");
}

#[test]
fn nothing_is_left_unfinished() {
    // Spelled apart, so that this file does not find itself.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
        concat!("un", "implemented!("),
    ];
    let mut found = Vec::new();
    for file in crates().iter().flat_map(|(folder, _)| rust_files(folder)) {
        let text = fs::read_to_string(&file).unwrap();
        for (index, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                found.push(format!("{}:{}: {}", file.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_module_line_is_recognised_with_any_visibility() {
    assert_eq!(module_name("mod a;"), Some("a"));
    assert_eq!(module_name("    pub(crate) mod a_b;"), Some("a_b"));
    assert_eq!(module_name("mod a {"), None);
    assert_eq!(module_name("// see mod a;"), None);
}
