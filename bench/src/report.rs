//! Results as a table for the terminal and as JSON for plots and later comparison.

use std::{fs, path::Path};

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

    /// Prints the table and writes `<dir>/<name>.json`.
    pub fn publish(&self, dir: &Path) -> anyhow::Result<()> {
        println!("\n## {}\n\n{}\n", self.name, self.method);
        println!("| {} |", self.columns.join(" | "));
        println!("|{}", " --- |".repeat(self.columns.len()));
        for row in &self.rows {
            println!("| {} |", row.join(" | "));
        }
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(format!("{}.json", self.name));
        let json = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
        println!("\nwritten to {}", path.display());
        Ok(())
    }
}
