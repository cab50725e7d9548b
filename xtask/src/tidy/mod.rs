//! Tidy: the house rules that the compiler does not know.
//!
//! Owns: the list of rules and the walk over the files they look at.
//! Invariant: a finding names a file and a line; every rule has a test in
//! which it fails.
//! Never: changes a file, or looks at one that git ignores.
//!
//! # Layout
//! `source` splits a file into code and comments, `size`, `words` and `time`
//! are rules about one file, `reach` is the rule about files nobody names,
//! `circles` the one about modules that import each other,
//! `named` the one about functions that a guide names.

mod circles;
mod named;
mod reach;
mod size;
mod source;
mod time;
mod words;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use source::Source;

/// A place where a rule is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(source: &Source, line: usize, what: impl Into<String>) -> Self {
        let path = source.path.clone();
        Self { path, line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

type Rule = fn(&Source) -> Vec<Finding>;

const RUST_RULES: &[Rule] = &[
    size::file_too_long,
    size::function_too_long,
    words::unfinished,
    words::allow_without_reason,
    words::module_without_opening,
    words::endless_channel,
    words::vague_name,
    time::clock_read,
    time::sleep_in_test,
];

/// Applies every rule to every file of the workspace at `root`.
pub(crate) fn check(root: &Path) -> Result<()> {
    let sources = read(root)?;
    let findings = findings(&sources);
    if findings.is_empty() {
        println!("{} files, all tidy", sources.len());
        return Ok(());
    }
    let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
    bail!("{} findings\n{}", lines.len(), lines.join("\n"))
}

fn findings(sources: &[Source]) -> Vec<Finding> {
    let mut findings: Vec<_> = sources.iter().flat_map(words::machine_path).collect();
    for source in sources.iter().filter(|source| source.is_rust()) {
        findings.extend(RUST_RULES.iter().flat_map(|rule| rule(source)));
    }
    findings.extend(reach::unreached(sources));
    findings.extend(circles::circles(sources));
    findings.extend(named::gone(sources));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// The texts git tracks, and those it would track at the next `git add`.
fn read(root: &Path) -> Result<Vec<Source>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    if !listing.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listing.stderr));
    }
    let names = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
    names
        .split_terminator('\0')
        .filter(|path| is_text(path) && root.join(path).is_file())
        .map(|path| {
            let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
            Ok(Source::new(path, &text))
        })
        .collect()
}

fn is_text(path: &str) -> bool {
    let extensions = [".md", ".rs", ".toml", ".sh"];
    path.starts_with(".ci/") || extensions.iter().any(|ext| path.ends_with(ext))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        if let Err(error) = check(&crate::root()) {
            panic!("{error:#}");
        }
    }

    #[test]
    fn every_kind_of_rule_is_applied() {
        let lib = Source::new("crates/a/src/lib.rs", "fn f() { todo!() }\n");
        let lost = Source::new("crates/a/src/lost.rs", "//! Lost.\n");
        let manifest = Source::new("crates/a/Cargo.toml", "[package]\n");
        let note = Source::new("notes.md", concat!("see /ro", "ot/x\n"));
        let found = findings(&[lib, lost, manifest, note]);
        let shown: Vec<_> = found.iter().map(Finding::to_string).collect();
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert!(shown[0].starts_with("crates/a/src/lib.rs:1: "));
        assert!(shown[2].starts_with("crates/a/src/lost.rs:1: "));
        assert!(shown[3].starts_with("notes.md:1: "));
    }

    #[test]
    fn the_walk_sees_this_file_and_no_build_output() {
        let sources = read(&crate::root()).unwrap();
        let has = |path: &str| sources.iter().any(|source| source.path == path);
        assert!(has("xtask/src/tidy/mod.rs"));
        assert!(!sources.iter().any(|s| s.path.starts_with("target/")));
    }
}
