//! `entrega config`: what the gateway would run with.

use clap::Subcommand;
use serde_json::{Value, json};

use super::ConfigArgs;
use super::error::CliError;
use super::out::Out;
use crate::config::{Config, ConfigSources, DEFAULTS};

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether it can be run, and what is wrong if not
    Check(ConfigArgs),
    /// Print all of it, defaults included
    Print(ConfigArgs),
    /// Print every key with its default and what it is for; a file to start from
    Defaults,
}

pub(super) fn run(command: &ConfigCommand, out: &mut Out) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check(args) => {
            let sources = args.sources();
            let from = origin(&sources);
            let config = Config::load(sources)?;
            let lanes: Vec<&str> = config.lanes.keys().map(|lane| lane.as_str()).collect();
            let answer = json!({ "file": from, "lanes": lanes });
            out.answer(&answer, |_| {
                let place = from.as_deref().unwrap_or("no file, so the defaults hold");
                format!("good: {place}; lanes: {}", lanes.join(", "))
            })
        }
        ConfigCommand::Print(args) => {
            let config = Config::load(args.sources())?;
            let text = config.to_toml();
            // What is printed is TOML, so it reads as a table.
            let value: Value = toml::from_str(&text).map_err(CliError::failed)?;
            out.answer(&value, |_| text)
        }
        ConfigCommand::Defaults => out.bytes(DEFAULTS.as_bytes()),
    }
}

/// The file that was read, if any.
pub(super) fn origin(sources: &ConfigSources) -> Option<String> {
    sources.file.path().map(|path| path.display().to_string())
}
