//! The suite: every check, in the order that fails soonest.
//!
//! Owns: which checks there are and with which arguments.
//! Invariant: one profile and one set of features, so that nothing is built
//! twice for the sake of another step.
//! Never: changes a file that git tracks.

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
    steps.command("tests", tests(&missing));
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
fn tests(missing: &Missing) -> Command {
    let mut command = if tools::has_cargo("nextest") { cargo(&["nextest", "run"]) } else { cargo(&["test"]) };
    command.args(["--workspace", "--locked", "--lib", "--bins", "--tests"]).env(tools::WITHOUT, missing.names());
    command
}

fn deny(steps: &mut Steps) {
    if tools::has_cargo("deny") {
        steps.command("licences", cargo(&["deny", "check"]));
    } else {
        steps.skip("licences", "cargo-deny is not installed");
    }
}
