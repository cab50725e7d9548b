//! `entrega tenants`: who takes turns, and their weights.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::api::Api;
use super::error::CliError;
use super::jobs::{Rows, more};
use super::out::{Out, items, text};
use super::target::Target;

/// What to do with tenants.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TenantsArgs {
    #[command(subcommand)]
    command: Option<TenantsCommand>,
    #[command(flatten)]
    rows: Rows,
}

/// What to do with a tenant.
#[derive(Debug, Subcommand)]
pub enum TenantsCommand {
    /// Set a tenant's share of turns: with 2, twice as many jobs in a row
    Weight {
        /// The tenant.
        tenant: String,
        /// From 1.
        weight: u32,
    },
    /// Set what a tenant may use up; `default` takes a quota back
    Quota {
        /// The tenant.
        tenant: String,
        /// Which: places, dead-letters, waiting-calls, stored-bytes or requests-per-second.
        #[arg(value_enum)]
        quota: QuotaName,
        /// How much, or `default`.
        value: String,
    },
}

/// The quotas of a tenant.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum QuotaName {
    /// Waiting jobs in one lane.
    Places,
    /// Dead letters that one lane keeps.
    DeadLetters,
    /// Calls that wait at once.
    WaitingCalls,
    /// Bytes of jobs that have not ended, and of dead letters.
    StoredBytes,
    /// Calls of the API in any second.
    RequestsPerSecond,
}

impl QuotaName {
    /// The field of the API.
    fn field(self) -> &'static str {
        match self {
            QuotaName::Places => "places",
            QuotaName::DeadLetters => "deadLetters",
            QuotaName::WaitingCalls => "waitingCalls",
            QuotaName::StoredBytes => "storedBytes",
            QuotaName::RequestsPerSecond => "requestsPerSecond",
        }
    }
}

/// A quota as it is typed; nothing for the default.
fn quota_value(text: &str) -> Result<Option<u64>, CliError> {
    match text {
        "default" => Ok(None),
        number => number.parse().map(Some).map_err(|_| CliError::Usage {
            what: "value",
            problem: format!("'{number}' is no quota; write a whole number, or 'default'"),
        }),
    }
}

pub(super) async fn run(args: TenantsArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match args.command {
        None => list(args.rows, api, out).await,
        Some(TenantsCommand::Weight { tenant, weight }) => {
            let target = Target::new("/v1/tenants").part(&tenant);
            let answer = api.put(&target, &json!({ "weight": weight })).await?;
            out.answer(&answer, |_| format!("{tenant} has the weight {weight}"))
        }
        Some(TenantsCommand::Quota { tenant, quota, value }) => {
            let target = Target::new("/v1/tenants").part(&tenant);
            let changes = json!({ "quotas": { quota.field(): quota_value(&value)? } });
            let answer = api.put(&target, &changes).await?;
            out.answer(&answer, |_| format!("{tenant} has the quota {} {value}", quota.field()))
        }
    }
}

async fn list(rows: Rows, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let answer = rows.list(api, &Target::new("/v1/tenants")).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|tenant| {
            [
                text(tenant, "companyId"),
                text(tenant, "lane"),
                text(tenant, "weight"),
                text(tenant, "running"),
                text(tenant, "currentPriority"),
                text(tenant, "roundsWithoutProcessing"),
                text(tenant, "consecutiveBatchCount"),
                text(tenant, "totalProcessed"),
                out.age(tenant, "lastProcessedAt"),
            ]
        });
        let head = ["TENANT", "LANE", "WEIGHT", "RUNNING", "PRIORITY", "ROUNDS", "BATCH", "PROCESSED", "LAST"];
        out.table(head, rows.collect()) + &more(&answer)
    })
}
