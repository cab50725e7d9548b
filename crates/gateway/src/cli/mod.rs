//! The command line: `entrega …`.
//! Invariant: results go to stdout, everything else to stderr, and the exit code tells a script what happened.
//! Never: holds rules of its own; it asks the server, or the configuration, and shows the answer.
//!
//! # Layout
//! - `api`: calls to a running server; `target`: their addresses
//! - `out`: tables for people, JSON for programs; `error`: what went wrong, and the exit code;
//!   `text`: foreign text
//! - `jobs`, `dlq`, `lanes`, `tenants`, `nodes`, `keys`: the commands, by noun
//! - `serve`: the gateway itself; `demo`: the gateway with a destination that misbehaves
//! - `doctor`, `salvage`, `settings`: what can be done without a server; `webhook`: signatures, which need none either, and
//!   endpoints

mod api;
mod demo;
mod dlq;
mod doctor;
mod error;
mod jobs;
mod keys;
mod lanes;
mod nodes;
mod out;
mod private;
mod salvage;
mod serve;
mod settings;
mod target;
mod tenants;
#[cfg(test)]
mod tests;
mod text;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

pub use self::error::CliError;

use self::api::Connection;
use self::out::Out;
use crate::config::{Config, ConfigSources, Options};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it failed
  2  the command was not written correctly
  3  there is no such thing
  4  the server cannot be reached
  5  the server refused: no key, an unknown key, or one without the scope
  6  the configuration is wrong
  7  the store cannot be opened or written
  8  the address to listen on cannot be had
  9  not everything could be saved: what could not be read is listed";

/// An outbound gateway: jobs go in, are made durable, and are delivered.
#[derive(Debug, Parser)]
#[command(name = "entrega", version, about, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Try it out: a gateway, and a destination that fails now and then
    Demo(DemoArgs),
    /// Send jobs, look at them, cancel them
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Dead letters: look, replay, discard, export
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Lanes: sizes and gates; pause and resume
    Lanes(lanes::LanesArgs),
    /// Tenants: who takes turns, and their weights
    Tenants(tenants::TenantsArgs),
    /// Who shares the store, and who owns which lanes
    Nodes(nodes::NodesArgs),
    /// API keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Webhooks: secrets and signatures, without a server; tests, and what waits, with one
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Check that everything is as it should be; works without a server
    Doctor(DoctorArgs),
    /// Save what can be read of a damaged store into a new data directory
    Salvage(salvage::SalvageArgs),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(settings::ConfigCommand),
    /// Print the description of the API (OpenAPI)
    Openapi,
    /// Print completions for a shell
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigArgs {
    /// The configuration file [default: ./entrega.toml, where it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The directory of the store and the admin key [default: ./entrega-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where jobs are kept: embedded, memory or redis://host:port [default: embedded]
    #[arg(long, value_name = "KIND")]
    pub store: Option<String>,
    /// Use a Redis that may lose jobs: without an append-only file, or one that evicts keys
    #[arg(long)]
    pub allow_unsafe_redis: bool,
    /// Allow a public address without TLS; put a proxy that speaks TLS in front
    #[arg(long)]
    pub insecure_listen: bool,
    /// For development: allow destinations on this machine, and plain HTTP
    #[arg(long)]
    pub dev: bool,
}

impl ConfigArgs {
    /// The file, this process's environment and these flags.
    pub fn sources(&self) -> ConfigSources {
        let options = Options {
            data: self.data.clone(),
            listen: self.listen,
            store: self.store.clone(),
            allow_unsafe_redis: self.allow_unsafe_redis,
            insecure_listen: self.insecure_listen,
            dev: self.dev,
        };
        ConfigSources::of_process(self.config.clone(), options)
    }
}

/// What to check.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Read everything in the store and compare it with what was written; the gateway must be stopped
    #[arg(long)]
    pub deep: bool,
}

/// How to run the gateway.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// How to try it out.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// How many jobs to send
    #[arg(long, value_name = "COUNT", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: u32,
}

/// Does what was asked, prints the result, and says how it went.
pub async fn run(cli: Cli) -> ExitCode {
    let mut out = Out::stdout(cli.json);
    match execute(cli, &mut out).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

async fn execute(cli: Cli, out: &mut Out) -> Result<(), CliError> {
    let Cli { connection, command, .. } = cli;
    match command {
        Command::Serve(args) => serve::run(Config::load(args.config.sources())?).await,
        Command::Demo(args) => demo::run(args, out).await,
        Command::Jobs(command) => jobs::run(command, &connection.open()?, out).await,
        Command::Dlq(command) => dlq::run(command, &connection.open()?, out).await,
        Command::Lanes(args) => lanes::run(args, &connection.open()?, out).await,
        Command::Tenants(args) => tenants::run(args, &connection.open()?, out).await,
        Command::Nodes(args) => nodes::run(args, &connection.open()?, out).await,
        Command::Keys(command) => keys::run(command, &connection.open()?, out).await,
        Command::Webhook(command) => webhook::run(command, &connection, out).await,
        Command::Doctor(args) => doctor::run(&args, &connection, out).await,
        Command::Salvage(args) => salvage::run(&args, out).await,
        Command::Config(command) => settings::run(&command, out),
        Command::Openapi => out.json(&serde_json::to_value(crate::api::openapi()).map_err(CliError::failed)?),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "entrega", &mut script);
            out.bytes(&script)
        }
    }
}
