//! Journals: the newest file of the embedded store, as a disk may give it back.
//! Invariant: the store opens on it or says why not; a length that was damaged is not believed.

use std::path::{Path, PathBuf};

use entrega::store::local::{Batch, Disk as _, DiskError, Key, LsmDisk, Order, Table};
use tempfile::TempDir;

use crate::{Target, result};

/// Below the data directory.
const JOURNAL: &str = "store/0.jnl";

/// What a start makes of a journal.
pub fn journal() -> Target {
    let (template, written) = written();
    let attempt = move |input: &[u8]| {
        let folder = scratch();
        copy(template.path(), folder.path());
        std::fs::write(folder.path().join(JOURNAL), input).expect("the journal can be written");
        let opened = LsmDisk::open(folder.path());
        let rows = |disk: &LsmDisk, table| {
            let mut rows = 0;
            let mut count = |_: &[u8], _: &[u8]| {
                rows += 1;
                std::ops::ControlFlow::Continue(())
            };
            disk.scan(table, Order::UpFrom(b""), &mut count).map(|()| rows).ok()
        };
        match opened {
            Ok(disk) => result(Table::ALL.map(|table| rows(&disk, table))),
            Err(DiskError::Journal { reason, .. }) => result(reason),
            Err(error) => result(std::mem::discriminant(&error)),
        }
    };
    Target { name: "journal", seeds: vec![written], attempt: Box::new(attempt) }
}

/// A store with some batches, closed, and what is in its journal.
fn written() -> (TempDir, Vec<u8>) {
    let folder = scratch();
    let disk = LsmDisk::open(folder.path()).expect("an empty store opens");
    for number in 0..6u8 {
        let mut batch = Batch::default();
        batch.put(Table::Jobs, Key::Id([number; 16]), vec![number; 40 * usize::from(number)]);
        batch.put(Table::Registry, Key::Text(format!("key/{number}")), b"{}".to_vec());
        batch.remove(Table::Jobs, Key::Id([number.saturating_sub(3); 16]));
        disk.commit(batch).expect("it can be written");
    }
    drop(disk);
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
