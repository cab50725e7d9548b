//! `entrega tenants`: who takes turns, and their weights.

use clap::{Args, Subcommand};
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
}

pub(super) async fn run(args: TenantsArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match args.command {
        None => list(args.rows, api, out).await,
        Some(TenantsCommand::Weight { tenant, weight }) => {
            let target = Target::new("/v1/tenants").part(&tenant);
            let answer = api.put(&target, &json!({ "weight": weight })).await?;
            out.answer(&answer, |_| format!("{tenant} has the weight {weight}"))
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
