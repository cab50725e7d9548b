//! The export of dead letters that leave: one file a day, one entry a line.
//! Invariant: when it returns, the entries are synced; who forgets them afterwards loses nothing.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::job::Job;
use entrega_core::payload::Payload;
use entrega_core::time::Time;

use super::{StoreError, records};

/// An entry in which people can read what the job carries.
pub fn readable(dead: &DeadLetter, show: fn(&Payload) -> serde_json::Value) -> serde_json::Value {
    let original_data = Job { payload: Payload::opaque(Bytes::new()), ..dead.original_data.clone() };
    let mut entry = serde_json::json!(DeadLetter { original_data, ..dead.clone() });
    let job = &mut entry["originalData"];
    job["payload"] = show(&dead.original_data.payload);
    if dead.original_data.earlier.accepted.is_empty() {
        job.as_object_mut().map(|job| job.remove("earlier"));
    }
    entry
}

/// Adds entries to the file of the day.
pub(super) fn write_down<'a>(
    dir: &Path,
    now: Time,
    leaving: impl Iterator<Item = &'a DeadLetter>,
    show: fn(&Payload) -> serde_json::Value,
) -> Result<(), StoreError> {
    let day: String = now.to_string().chars().take(10).collect();
    let path = dir.join(format!("dlq-{day}.jsonl"));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        for dead in leaving {
            let mut line = records::encode_json(&readable(dead, show));
            line.push(b'\n');
            file.write_all(&line)?;
        }
        file.sync_data()
    };
    write().map_err(|error| StoreError::Export { file: path.display().to_string(), reason: error.to_string() })
}
