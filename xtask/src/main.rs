//! The project's chores, one command each.
//!
//! Owns: the order of the checks, the tools they need, the house rules.
//! Invariant: what the CI runs is what `cargo xtask test` runs on a desk.
//! Never: is part of what ships, or of what ships depends on.
//!
//! # Layout
//! `suite` is the list of checks, `step` runs one of them and times it,
//! `tools` is the table of programs they need, `tidy` the rules the compiler
//! does not know. `crash` says what can be killed, and which test does it.
#![expect(clippy::disallowed_methods, reason = "a chore times itself; nothing here is simulated")]

mod crash;
mod step;
mod suite;
mod tidy;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything the CI checks: format, lints, tests, house rules, licences
    Test,
    /// Only the house rules
    Tidy,
    /// Kill the gateway, or the Redis under it, again and again and look for lost or doubled work
    Crash(crash::CrashArgs),
    /// Call the API with what its own description allows and forbids
    Schema {
        /// How many calls to make up for each operation
        #[arg(long, default_value_t = 500)]
        examples: u32,
        /// Which ones
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Throw made-up bytes at every parser of foreign bytes
    Fuzz {
        /// Only this one, e.g. `url`
        #[arg(long)]
        target: Option<String>,
        /// How long each
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// With which chance
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Damage the files of a store at random, and see that no acknowledged job is lost in silence
    Damage {
        /// How often, of each kind: a bit, 64 bytes, a sector, a page, a piece copied elsewhere, a cut
        #[arg(long, default_value_t = 1000)]
        each: u32,
        /// Another gives other places
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Cut the power and break the disk under the gateway, at every moment of a run
    Power {
        /// At how many calls the disk fails
        #[arg(long, default_value_t = 40)]
        faults: u32,
        /// At how many moments the power is cut in a run with so much work that the store rotates its files
        #[arg(long, default_value_t = 60)]
        cuts: u32,
    },
    /// Run the engine under simulated time, crashes and faults, one seed after the other
    Sim {
        /// How many seeds
        #[arg(long, default_value_t = 10_000)]
        seeds: u64,
        /// From which on
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Build the program that ships: whole-program optimized, stripped, its symbols in a file beside it
    Dist,
    /// Measure, side by side with the peers; arguments go to entrega-bench
    Bench {
        /// E.g. `--quick bare bullmq`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Cli::parse().chore {
        Chore::Test => suite::run(),
        Chore::Tidy => tidy::check(&root()),
        Chore::Crash(args) => crash::run(&args),
        Chore::Schema { examples, seed } => schema(examples, seed),
        Chore::Fuzz { target, seconds, seed } => fuzz(target.as_deref(), seconds, seed),
        Chore::Damage { each, seed } => damage(each, seed),
        Chore::Power { faults, cuts } => power(faults, cuts),
        Chore::Sim { seeds, from } => sim(seeds, from),
        Chore::Dist => dist(),
        Chore::Bench { args } => bench(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn schema(examples: u32, seed: u64) -> Result<()> {
    let mut command =
        cargo(&["test", "-p", "entrega-gateway", "--locked", "--test", "process", "schema::", "--", "--nocapture"]);
    command.env("ENTREGA_SCHEMA_EXAMPLES", examples.to_string()).env("ENTREGA_SCHEMA_SEED", seed.to_string());
    stream(command)
}

/// In the profile of the tests: it checks sums for overflow, which finds more than speed would.
fn fuzz(target: Option<&str>, seconds: u64, seed: u64) -> Result<()> {
    let mut command = cargo(&["test", "-p", "entrega-fuzz", "--locked", "--test", "fuzz", "--", "--nocapture"]);
    command.args(["--test-threads", "1"]).args(target.map(|target| target.replace('-', "_")));
    command.env("ENTREGA_FUZZ_SECONDS", seconds.to_string()).env("ENTREGA_FUZZ_SEED", seed.to_string());
    stream(command)
}

fn damage(each: u32, seed: u64) -> Result<()> {
    let mut command =
        cargo(&["test", "-p", "entrega", "--locked", "--test", "engine", "random_damage", "--", "--nocapture"]);
    command.env("ENTREGA_DAMAGE_EACH", each.to_string()).env("ENTREGA_DAMAGE_SEED", seed.to_string());
    stream(command)
}

/// Small jobs with a cut at every moment, then large ones with some.
fn power(faults: u32, cuts: u32) -> Result<()> {
    let test =
        |which| cargo(&["test", "-p", "entrega-gateway", "--locked", "--test", "process", which, "--", "--nocapture"]);
    let mut small = test("power::");
    small.env("ENTREGA_POWER_CUTS", u32::MAX.to_string()).env("ENTREGA_POWER_FAULTS", faults.to_string());
    stream(small)?;
    let mut large = test("whenever");
    large.env("ENTREGA_POWER_CUTS", cuts.to_string());
    large.env("ENTREGA_POWER_JOBS", "220").env("ENTREGA_POWER_BYTES", "450000");
    stream(large)
}

fn sim(seeds: u64, from: u64) -> Result<()> {
    let mut command = cargo(&["run", "-p", "entrega-sim", "--release", "--locked", "--"]);
    command.args(["--seeds", &seeds.to_string(), "--from", &from.to_string()]);
    stream(command)
}

/// `entrega` and `entrega.debug`: a debugger finds the one from the other, as long as they lie together.
fn dist() -> Result<()> {
    stream(cargo(&["build", "-p", "entrega-gateway", "--profile", "dist", "--locked"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = target.join("dist");
    let objcopy = |args: &[&str]| {
        let mut command = Command::new("objcopy");
        command.args(args).current_dir(&folder);
        stream(command)
    };
    objcopy(&["--only-keep-debug", "entrega", "entrega.debug"])?;
    objcopy(&["--strip-all", "--add-gnu-debuglink=entrega.debug", "entrega", "entrega.stripped"])?;
    std::fs::rename(folder.join("entrega.stripped"), folder.join("entrega")).context("cannot replace the program")?;
    println!("{}", folder.join("entrega").display());
    Ok(())
}

/// In the profile that ships.
fn bench(args: &[String]) -> Result<()> {
    let mut command = cargo(&["run", "-p", "entrega-bench", "--profile", "dist", "--locked", "--"]);
    command.args(args);
    stream(command)
}

/// Runs a command with this terminal as its own.
fn stream(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{:?} ended with {status}", command.get_program());
    }
    Ok(())
}

/// Cargo at the workspace's root: the one that runs us, so that a toolchain
/// chosen with `+name` holds for every step.
fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// The workspace's root, wherever the command was called from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
