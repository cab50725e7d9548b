//! One check of the suite: a heading, a command, a time.
//!
//! Owns: the running of steps and the table at the end.
//! Invariant: after a step that failed no other one runs.
//! Never: hides what a step prints.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Passed,
    Failed(String),
    Skipped(String),
    NotRun,
}

struct Line {
    name: &'static str,
    end: End,
    took: Duration,
    note: String,
}

/// The steps so far.
#[derive(Default)]
pub(crate) struct Steps {
    lines: Vec<Line>,
}

impl Steps {
    /// Runs `work` unless an earlier step failed.
    pub(crate) fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        if self.failed().is_some() {
            return self.push(name, End::NotRun, Duration::ZERO);
        }
        println!("\n=== {name}");
        let start = Instant::now();
        let end = match work() {
            Ok(()) => End::Passed,
            Err(error) => End::Failed(format!("{error:#}")),
        };
        let took = start.elapsed();
        if let End::Failed(why) = &end {
            println!("{why}");
        }
        println!("=== {name}: {} in {:.1} s", word(&end), took.as_secs_f64());
        self.push(name, end, took);
    }

    /// Runs a command as a step.
    pub(crate) fn command(&mut self, name: &'static str, mut command: Command) {
        self.run(name, || {
            let shown = shown(&command);
            println!("$ {shown}");
            let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
            if !status.success() {
                bail!("`{shown}` ended with {status}");
            }
            Ok(())
        });
    }

    /// Notes that so many tests of the last step could not run.
    pub(crate) fn count_skipped(&mut self, tests: usize) {
        if let Some(line) = self.lines.last_mut().filter(|_| tests > 0) {
            line.note = format!("{tests} tests skipped for want of a tool");
        }
    }

    /// Notes a step that this machine cannot run.
    pub(crate) fn skip(&mut self, name: &'static str, why: &str) {
        println!("\n=== {name}: skipped, {why}");
        self.push(name, End::Skipped(why.to_owned()), Duration::ZERO);
    }

    /// The table of all steps; an error names the one that failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("\n=== summary");
        for line in &self.lines {
            let why = match &line.end {
                End::Skipped(why) => why.as_str(),
                _ => line.note.as_str(),
            };
            let seconds = line.took.as_secs_f64();
            println!("{:<10} {seconds:>7.1} s  {}  {why}", word(&line.end), line.name);
        }
        let total: Duration = self.lines.iter().map(|line| line.took).sum();
        println!("{:<10} {:>7.1} s", "total", total.as_secs_f64());
        match self.failed() {
            Some(name) => bail!("step `{name}` failed"),
            None => Ok(()),
        }
    }

    fn failed(&self) -> Option<&'static str> {
        let failed = |line: &&Line| matches!(line.end, End::Failed(_));
        self.lines.iter().find(failed).map(|line| line.name)
    }

    fn push(&mut self, name: &'static str, end: End, took: Duration) {
        self.lines.push(Line { name, end, took, note: String::new() });
    }
}

fn word(end: &End) -> &'static str {
    match end {
        End::Passed => "ok",
        End::Failed(_) => "FAILED",
        End::Skipped(_) => "skipped",
        End::NotRun => "not run",
    }
}

/// The command as one would type it, without the path of the program.
fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name).chain(command.get_args()).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_runs_after_a_failure_and_the_failure_is_named() {
        let mut steps = Steps::default();
        let mut ran = false;
        steps.run("first", || Ok(()));
        steps.run("second", || bail!("broken"));
        steps.run("third", || {
            ran = true;
            Ok(())
        });
        assert!(!ran);
        assert_eq!(steps.lines[2].end, End::NotRun);
        let error = steps.finish().expect_err("a failed step fails the suite");
        assert!(error.to_string().contains("second"));
    }

    #[test]
    fn a_command_that_ends_badly_fails_its_step() {
        let mut steps = Steps::default();
        steps.command("false", Command::new("false"));
        assert_eq!(steps.failed(), Some("false"));
    }

    #[test]
    fn a_skipped_step_does_not_fail_the_suite() {
        let mut steps = Steps::default();
        steps.skip("deny", "not installed");
        assert!(steps.finish().is_ok());
    }

    #[test]
    fn a_command_is_shown_without_the_path_of_its_program() {
        let mut command = Command::new("/opt/bin/cargo");
        command.args(["fmt", "--all"]);
        assert_eq!(shown(&command), "cargo fmt --all");
    }
}
