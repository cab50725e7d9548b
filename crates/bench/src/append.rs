//! The raw append: what a synced write alone costs.
//!
//! Owns: a file that grows by batches of records.
//! Invariant: a batch counts once `fdatasync` has returned.
//! Never: runs on a file system held in memory without saying so; the caller
//! chooses the folder.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::rate::Rate;

/// What is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// How many batches are written.
    pub batches: u64,
    /// Records in a batch, written by one call and synced by one.
    pub records_per_batch: usize,
    /// The size of a record.
    pub record_bytes: usize,
}

/// Writes and syncs every batch to a new file in `folder`; gives records per
/// second. Blocks: call it from a blocking task.
pub fn synced(folder: &Path, plan: Batches) -> Result<Rate> {
    let path = folder.join("append");
    let mut file = File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let batch = vec![b'x'; plan.records_per_batch * plan.record_bytes];
    let start = Instant::now();
    for _ in 0..plan.batches {
        file.write_all(&batch)?;
        file.sync_data()?;
    }
    let took = start.elapsed();
    std::fs::remove_file(&path)?;
    let records = plan.batches * plan.records_per_batch as u64;
    Ok(Rate::new(records, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_counts_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Batches { batches: 3, records_per_batch: 4, record_bytes: 16 };
        let rate = synced(folder.path(), plan).unwrap();
        assert_eq!(rate.count, 12);
        assert!(rate.seconds > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
