//! Journals: the newest file of the embedded store, as a disk may give it back.
//! Invariant: the store opens on it or says why not; a length that was damaged is not believed.

use std::path::{Path, PathBuf};

use entrega::store::local::tables::{JOBS, REGISTRY, TABLES};
use entrega_ledger::{Group, Key, Ledger as _, LedgerError, LsmLedger, Room, Scan, Unit};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::{Target, result};

/// Below the data directory.
const JOURNAL: &str = "store/0.jnl";

/// What a start makes of a journal.
pub fn journal() -> Target {
    let (template, written) = written();
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let attempt = move |input: &[u8]| {
        let folder = scratch();
        copy(template.path(), folder.path());
        std::fs::write(folder.path().join(JOURNAL), input).expect("the journal can be written");
        match LsmLedger::open(folder.path(), &TABLES) {
            Ok(ledger) => result(TABLES.map(|table| {
                let rows = runtime.block_on(ledger.scan(table, Scan::UpFrom(b""), usize::MAX, usize::MAX));
                rows.map(|rows| rows.len()).ok()
            })),
            Err(LedgerError::Journal { reason, .. }) => result(reason),
            Err(error) => result(std::mem::discriminant(&error)),
        }
    };
    Target { name: "journal", seeds: vec![written], attempt: Box::new(attempt) }
}

/// A store with some batches, closed, and what is in its journal.
fn written() -> (TempDir, Vec<u8>) {
    let folder = scratch();
    let ledger = LsmLedger::open(folder.path(), &TABLES).expect("an empty store opens");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    for number in 0..6u8 {
        let mut unit = Unit::default();
        unit.put(JOBS, Key::Id([number; 16]), vec![number; 40 * usize::from(number)]);
        unit.put(REGISTRY, Key::Text(format!("key/{number}")), &b"{}"[..]);
        unit.remove(JOBS, Key::Id([number.saturating_sub(3); 16]));
        let group = [Group { fences: Vec::new(), units: vec![unit] }];
        runtime.block_on(ledger.write(&group, Room::New)).expect("it can be written");
    }
    drop(ledger);
    let bytes = std::fs::read(folder.path().join(JOURNAL)).expect("there is a journal");
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    (folder, bytes[..end].to_vec())
}

/// In memory where that is possible: every input opens a store, which syncs.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder for the store")
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the template is there") {
        let path: PathBuf = entry.expect("the template can be read").path();
        let target = to.join(path.file_name().expect("it has a name"));
        if path.is_dir() {
            std::fs::create_dir(&target).expect("a folder can be made");
            copy(&path, &target);
        } else if !path.ends_with(JOURNAL) {
            std::fs::copy(&path, &target).expect("a file can be copied");
        }
    }
}
