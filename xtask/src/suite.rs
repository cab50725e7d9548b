//! The suite: every check, in the order that fails soonest.
//!
//! Owns: which checks there are and with which arguments.
//! Invariant: one profile and one set of features, so that nothing is built
//! twice for the sake of another step.
//! Never: changes a file that git tracks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::step::Steps;
use crate::tools::{self, Missing};
use crate::{cargo, root, tidy};

/// Runs all checks; stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    let mut missing = Missing::default();
    steps.run("tools", || {
        missing = tools::ensure()?;
        Ok(())
    });
    steps.command("format", cargo(&["fmt", "--all", "--check"]));
    steps.command("clippy", clippy());
    steps.command("bare library", cargo(&["check", "-p", "entrega", "--no-default-features", "--locked"]));
    steps.command("bare gateway", cargo(&["check", "-p", "entrega-gateway", "--no-default-features", "--locked"]));
    let left_out = LeftOut::new(&root());
    steps.command("tests", tests(&missing, &left_out));
    steps.count_skipped(left_out.count());
    let doc = cargo(&["test", "--workspace", "--doc", "--locked"]);
    steps.command("doc tests", doc);
    steps.run("tidy", || tidy::check(&root()));
    deny(&mut steps);
    missing.print();
    steps.finish()
}

fn clippy() -> Command {
    let mut command = cargo(&["clippy", "--workspace", "--all-targets", "--locked"]);
    command.args(["--", "-D", "warnings"]);
    command
}

/// Without benches and examples: they would be built for nothing.
fn tests(missing: &Missing, left_out: &LeftOut) -> Command {
    let mut command = match tools::has_cargo("nextest") {
        true => {
            let mut command = cargo(&["nextest", "run"]);
            command.args(["--test-threads", &tests_at_once().to_string()]);
            command
        }
        false => cargo(&["test"]),
    };
    command.args(["--workspace", "--locked", "--lib", "--bins", "--tests"]).env(tools::WITHOUT, missing.names());
    command.env(LEFT_OUT, &left_out.0);
    command
}

/// More than there are cores: most tests wait most of the time, for a server, a process or a lease.
fn tests_at_once() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    cores + cores.div_ceil(2)
}

/// The variable with the file in which tests that are left out write themselves down.
const LEFT_OUT: &str = "ENTREGA_LEFT_OUT";

/// That file.
struct LeftOut(PathBuf);

impl LeftOut {
    fn new(root: &Path) -> LeftOut {
        let path = root.join("target/left-out");
        // What the last run wrote does not count; usually there is none.
        drop(std::fs::remove_file(&path));
        LeftOut(path)
    }

    /// How many tests are in it; one that asks for several tools counts once.
    fn count(&self) -> usize {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(|line| line.split(' ').next().unwrap_or(line)).collect::<BTreeSet<_>>().len()
    }
}

fn deny(steps: &mut Steps) {
    if tools::has_cargo("deny") {
        steps.command("licences", cargo(&["deny", "check"]));
    } else {
        steps.skip("licences", "cargo-deny is not installed");
    }
}
