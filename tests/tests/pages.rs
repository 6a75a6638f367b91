//! Links from one page of the documentation to another lead somewhere.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use foretoken_tests::repository;

/// Markdown files in `folder` and below, but for what is built or hidden.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_hidden = path.file_name().unwrap().to_str().unwrap().starts_with('.');
        if path.is_dir() {
            if !is_hidden && path != repository().join("target") {
                found.extend(pages(&path));
            }
        } else if path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        }
    }
    found
}

/// Lines that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code
    })
}

/// What a heading is called in an address: letters, digits and `_` as they are, dashes for spaces.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Where the links of a page go.
fn targets(text: &str) -> Vec<&str> {
    let ends = prose(text).flat_map(|line| line.split("](").skip(1));
    ends.filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// Why a link of `page` leads nowhere.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let goal = match path {
        "" => page.to_owned(),
        path => page.parent().unwrap().join(path),
    };
    if !goal.exists() {
        return Some(format!("{}: {target} is not there", page.display()));
    }
    if fragment.is_empty() || goal.extension().is_none_or(|it| it != "md") {
        return None;
    }
    let text = fs::read_to_string(&goal).unwrap();
    let mut headings = prose(&text).filter(|line| line.starts_with('#'));
    if headings.any(|heading| anchor(heading) == fragment) {
        return None;
    }
    Some(format!("{}: {target} has no such heading", page.display()))
}

#[test]
fn links_between_pages_lead_somewhere() {
    let pages = pages(&repository());
    let mut count = 0;
    let mut faults = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let targets = targets(&text);
        count += targets.len();
        faults.extend(targets.iter().filter_map(|target| fault(page, target)));
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(
        pages.len() > 20 && count > 100,
        "{} pages, {count} links",
        pages.len()
    );
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = repository().join("README.md");
    assert!(fault(&page, "docs/decisions.md#speculation").is_none());
    assert!(fault(&page, "docs/decisions.md#speculations").is_some());
    assert!(fault(&page, "docs/decision.md").is_some());
    assert_eq!(
        targets("[a](b#c) [d](https://e)\n```\n[f](g)\n```"),
        ["b#c"]
    );
    assert_eq!(anchor("## What's *here*, in_full"), "whats-here-in_full");
}
