//! The report: what was measured, against what, and whether it is enough.
//!
//! Owns: rows, their verdicts, the table and the JSON file.
//! Invariant: a verdict follows from the figures of its row alone; a row that
//! could not be measured has none.
//! Never: leaves out a row that fell short.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::Machine;

/// What a row is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// Measured ÷ peer is at least this.
    RatioAtLeast(f64),
    /// Measured ÷ peer is at most this.
    RatioAtMost(f64),
    /// Measured is at least this.
    AtLeast(f64),
    /// Measured is at most this.
    AtMost(f64),
}

impl Target {
    fn shown(self) -> String {
        match self {
            Self::RatioAtLeast(ratio) => format!("≥ {ratio} ×"),
            Self::RatioAtMost(ratio) => format!("≤ {ratio} ×"),
            Self::AtLeast(value) => format!("≥ {}", figure(value)),
            Self::AtMost(value) => format!("≤ {}", figure(value)),
        }
    }

    /// `None` when the row lacks the figure this is about.
    fn reached(self, measured: Option<f64>, ratio: Option<f64>) -> Option<bool> {
        Some(match self {
            Self::RatioAtLeast(least) => ratio? >= least,
            Self::RatioAtMost(most) => ratio? <= most,
            Self::AtLeast(least) => measured? >= least,
            Self::AtMost(most) => measured? <= most,
        })
    }
}

/// What a row is compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Peer {
    /// E.g. `bare hyper-util client`.
    pub name: String,
    /// In the row's unit.
    pub value: f64,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// E.g. `drain, embedded`.
    pub name: String,
    /// Of what was measured and of the peer.
    pub unit: String,
    /// Nothing when it could not be measured; the note says why.
    pub measured: Option<f64>,
    /// What it is compared with.
    pub peer: Option<Peer>,
    /// Measured ÷ peer.
    pub ratio: Option<f64>,
    /// What it is to reach.
    pub target: Option<String>,
    /// Whether it does.
    pub reached: Option<bool>,
    /// What the figures do not say.
    pub note: Option<String>,
}

impl Row {
    /// A figure by itself.
    pub fn new(name: &str, unit: &str, measured: f64) -> Self {
        let measured = Some(measured);
        Self { measured, ..Self::unmeasured(name, unit) }
    }

    /// A row that could not be measured, and why.
    pub fn unavailable(name: &str, why: &str) -> Self {
        Self::unmeasured(name, "").note(why)
    }

    fn unmeasured(name: &str, unit: &str) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            measured: None,
            peer: None,
            ratio: None,
            target: None,
            reached: None,
            note: None,
        }
    }

    /// Compares it with a peer's figure of the same unit.
    pub fn against(mut self, name: &str, value: f64) -> Self {
        let ratio = |measured: f64| (value > 0.0).then(|| measured / value);
        self.ratio = self.measured.and_then(ratio);
        let name = name.to_owned();
        self.peer = Some(Peer { name, value });
        self
    }

    /// Judges it; call this after [`Row::against`].
    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target.shown());
        self.reached = target.reached(self.measured, self.ratio);
        self
    }

    /// Says what the figures do not.
    pub fn note(mut self, note: &str) -> Self {
        self.note = Some(note.to_owned());
        self
    }

    fn cells(&self) -> [String; 8] {
        let peer = |peer: &Peer| format!("{} ({})", figure(peer.value), peer.name);
        let reached = |reached| if reached { "yes" } else { "NO" };
        [
            self.name.clone(),
            self.measured.map_or_else(dash, figure),
            self.unit.clone(),
            self.peer.as_ref().map_or_else(dash, peer),
            self.ratio.map_or_else(dash, |ratio| format!("{ratio:.2} ×")),
            self.target.clone().unwrap_or_else(dash),
            self.reached.map_or_else(dash, |r| reached(r).to_owned()),
            self.note.clone().unwrap_or_default(),
        ]
    }
}

/// All rows of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where they were measured.
    pub machine: Machine,
    /// Whether the counts were cut for speed: such figures are no evidence.
    pub quick: bool,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

const HEAD: [&str; 8] = ["row", "measured", "unit", "peer", "ratio", "target", "reached", "note"];

impl Report {
    /// A table in Markdown, with the machine below it.
    pub fn table(&self) -> String {
        let mut lines = vec![HEAD.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths: [usize; 8] = std::array::from_fn(|column| width(column).unwrap_or(0));
        let mut shown: Vec<String> = lines.iter().map(|line| bar(line, &widths)).collect();
        let rule = widths.map(|width| "-".repeat(width));
        shown.insert(1, bar(&rule, &widths));
        let m = &self.machine;
        let memory_gib = m.memory_mib as f64 / 1024.0;
        let load = m.load_before.map_or_else(dash, |load| load.to_string());
        shown.push(format!(
            "\n{}, {} cores, {memory_gib:.1} GiB, Linux {}, {}, {}, load before {load}{}",
            m.cpu,
            m.cores,
            m.kernel,
            m.rustc,
            m.date,
            if self.quick { ", QUICK" } else { "" },
        ));
        shown.join("\n")
    }

    /// Writes it all as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

fn bar(cells: &[String; 8], widths: &[usize; 8]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| {
        let missing = width - cell.chars().count();
        format!(" {cell}{} |", " ".repeat(missing))
    });
    format!("|{}", padded.collect::<String>())
}

fn dash() -> String {
    "–".to_owned()
}

/// Large numbers without a fraction, small ones with three digits of it.
fn figure(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_from_the_figures() {
        let row = |target| Row::new("a", "/s", 70.0).against("b", 100.0).target(target);
        for (target, reached) in [
            (Target::RatioAtLeast(0.7), true),
            (Target::RatioAtLeast(0.71), false),
            (Target::RatioAtMost(0.7), true),
            (Target::RatioAtMost(0.69), false),
            (Target::AtLeast(70.0), true),
            (Target::AtLeast(70.1), false),
            (Target::AtMost(70.0), true),
            (Target::AtMost(69.9), false),
        ] {
            assert_eq!(row(target).reached, Some(reached), "{target:?}");
        }
    }

    #[test]
    fn without_a_figure_there_is_no_verdict() {
        let alone = Row::new("a", "/s", 70.0).target(Target::RatioAtLeast(0.1));
        assert_eq!(alone.reached, None);
        let idle_peer = Row::new("a", "/s", 70.0).against("b", 0.0);
        assert_eq!(idle_peer.ratio, None);
        let missing = Row::unavailable("a", "no Node").target(Target::AtLeast(1.0));
        assert_eq!((missing.reached, missing.note.as_deref()), (None, Some("no Node")));
    }

    #[test]
    fn a_row_that_falls_short_is_in_the_table_and_in_the_file() {
        let row = Row::new("drain", "/s", 10.0).against("bare", 100.0).target(Target::RatioAtLeast(0.7));
        let machine = Machine::describe();
        let report = Report { machine, quick: true, rows: vec![row] };
        let table = report.table();
        assert!(table.contains("| NO "), "{table}");
        assert!(table.ends_with("QUICK"), "{table}");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/bench.json");
        report.write(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["rows"][0]["reached"], false);
        assert_eq!(value["rows"][0]["peer"]["value"], 100.0);
    }
}
