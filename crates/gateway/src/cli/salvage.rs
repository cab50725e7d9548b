//! `entrega salvage`: what can be read of a damaged store goes into a new data directory.
//! Invariant: the exit code says whether everything could be read.
//! Never: changes the damaged one.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use entrega::store::local::{SalvageReport, salvage_store};
use serde_json::json;

use super::error::CliError;
use super::out::Out;
use super::text::clean;

/// The folder of the store itself, and of one that was never finished.
const STORE: [&str; 2] = ["store", "store.new"];

/// From where to where.
#[derive(Clone, Debug, Args)]
pub struct SalvageArgs {
    /// The damaged data directory; no gateway may be running on it
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// The new data directory
    #[arg(long, value_name = "NEWDIR")]
    pub to: PathBuf,
}

pub(super) async fn run(args: &SalvageArgs, out: &mut Out) -> Result<(), CliError> {
    let report = salvage_store(&args.from, &args.to).await.map_err(|error| CliError::Store(error.to_string()))?;
    // The key of the operator, the key that secrets are sealed with, exports.
    copy_rest(&args.from, &args.to)?;
    let answer = json!({
        "from": args.from.display().to_string(),
        "to": args.to.display().to_string(),
        "isWhole": report.is_whole(),
        "waiting": report.waiting,
        "ended": report.ended,
        "deadLetters": report.dead,
        "reindexed": report.reindexed,
        "journalWrites": report.ledger.writes,
        "records": report.ledger.rows.iter().map(|(table, rows)| json!({ "table": table, "records": rows })).collect::<Vec<_>>(),
        "damaged": report.ledger.damaged,
        "lost": report.lost.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    out.answer(&answer, |out| told(&report, args, out))?;
    match report.is_whole() {
        true => Ok(()),
        false => Err(CliError::NotWhole { damaged: report.ledger.damaged.len(), lost: report.lost.len() }),
    }
}

fn told(report: &SalvageReport, args: &SalvageArgs, out: &Out) -> String {
    let records = |(table, rows): &(&str, u64)| [(*table).to_owned(), rows.to_string()];
    let mut text = out.table(["table", "records"], report.ledger.rows.iter().map(records).collect());
    text += &format!(
        "\nsaved: {} waiting jobs, {} ended ones, {} dead letters; {} index entries made anew\n",
        report.waiting, report.ended, report.dead, report.reindexed
    );
    for place in &report.ledger.damaged {
        text += &format!("cannot be read: {}\n", clean(place));
    }
    for id in &report.lost {
        text += &format!("lost: {id}\n");
    }
    text + &format!("start with it: entrega serve --data {}", args.to.display())
}

fn copy_rest(from: &Path, to: &Path) -> Result<(), CliError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| CliError::File { path, source }
    };
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let path = entry.map_err(failed(from))?.path();
        let Some(name) = path.file_name().filter(|name| STORE.iter().all(|store| *name != *store)) else { continue };
        let target = to.join(name);
        if path.is_dir() {
            std::fs::create_dir_all(&target).map_err(failed(&target))?;
            copy_rest(&path, &target)?;
        } else if path.is_file() {
            std::fs::copy(&path, &target).map_err(failed(&path))?;
        }
    }
    Ok(())
}
