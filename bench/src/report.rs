//! Results as a table for the terminal and as JSON for plots and later comparison.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::Context;
use serde::Serialize;

use crate::machine::{self, Machine};

/// One benchmark's results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the benchmark; names the file too.
    pub name: String,
    /// What was measured, how, and what was left out (warm-up rounds, for example).
    pub method: String,
    /// Where; none for results that do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Column names.
    pub columns: Vec<String>,
    /// Rows of cells, as printed.
    pub rows: Vec<Vec<String>>,
    /// Everything measured, for machines.
    pub data: serde_json::Value,
}

impl Report {
    /// An empty report on this machine.
    pub fn new(name: &str, method: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            machine: Some(machine::describe()),
            ..Self::computed(name, method, columns)
        }
    }

    /// An empty report of what is the same on every machine.
    pub fn computed(name: &str, method: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            method: method.into(),
            machine: None,
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            rows: Vec::new(),
            data: serde_json::Value::Null,
        }
    }

    /// Adds a row; cells in the order of the columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes `<dir>/<name>.json` and prints the table, in this order: whatever the output is sent to
    /// may be gone by then, and the figures would be with it.
    pub fn publish(&self, dir: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(format!("{}.json", self.name));
        let json = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
        let mut out = io::stdout().lock();
        self.print(&mut out)
            .and_then(|()| writeln!(out, "\nwritten to {}", path.display()))
            .with_context(|| format!("cannot print what {} has", path.display()))
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n## {}\n\n{}\n", self.name, self.method)?;
        writeln!(out, "| {} |", self.columns.join(" | "))?;
        writeln!(out, "|{}", " --- |".repeat(self.columns.len()))?;
        self.rows
            .iter()
            .try_for_each(|row| writeln!(out, "| {} |", row.join(" | ")))
    }
}
