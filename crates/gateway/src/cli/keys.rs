//! `entrega keys`: who may do what.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::api::Api;
use super::error::CliError;
use super::jobs::{Rows, more};
use super::out::{Out, items, text};
use super::target::Target;

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// List them; the keys themselves are kept nowhere
    List(ListArgs),
    /// Make one, shown this once
    Create {
        /// Whose work it may do
        #[arg(long)]
        tenant: String,
        /// What it may do; may be given several times
        #[arg(long, required = true, value_delimiter = ',')]
        scope: Vec<KeyScope>,
    },
    /// Take one away; it no longer opens anything
    Delete {
        /// The key's id, as listed.
        id: String,
    },
}

/// Which keys.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    rows: Rows,
}

/// What a key may do.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KeyScope {
    /// Make and cancel work, replay.
    Send,
    /// Look.
    Read,
    /// Scrape the metrics.
    Metrics,
    /// Everything, for every tenant.
    Admin,
}

impl KeyScope {
    fn as_str(self) -> &'static str {
        match self {
            KeyScope::Send => "send",
            KeyScope::Read => "read",
            KeyScope::Metrics => "metrics",
            KeyScope::Admin => "admin",
        }
    }
}

pub(super) async fn run(command: KeysCommand, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match command {
        KeysCommand::List(args) => list(args.rows, api, out).await,
        KeysCommand::Create { tenant, scope } => {
            let scopes: Vec<&str> = scope.into_iter().map(KeyScope::as_str).collect();
            let answer = api.post(&Target::new("/v1/keys"), &json!({ "tenant": tenant, "scopes": scopes })).await?;
            // The key alone, so that it can be put into a variable; the rest is in `keys list`.
            out.answer(&answer, |_| text(&answer, "key"))
        }
        KeysCommand::Delete { id } => {
            let answer = api.delete(&Target::new("/v1/keys").part(&id)).await?;
            out.answer(&answer, |_| format!("deleted {id}"))
        }
    }
}

async fn list(rows: Rows, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let answer = rows.list(api, &Target::new("/v1/keys")).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|key| {
            let scopes = key.get("scopes").and_then(Value::as_array).into_iter().flatten();
            let scopes: Vec<&str> = scopes.filter_map(Value::as_str).collect();
            [text(key, "id"), text(key, "tenant"), scopes.join(", "), text(key, "createdAt")]
        });
        out.table(["KEY", "TENANT", "SCOPES", "CREATED"], rows.collect()) + &more(&answer)
    })
}
