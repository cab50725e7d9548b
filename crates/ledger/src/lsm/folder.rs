//! Making a store's directory.
//! Invariant: it gets its name when all of it is on the disk: the engine does not open one that a power cut left half made.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::tables::Tables;
use crate::{LedgerError, Table};

/// Where the engine keeps its files, in the data directory.
pub(super) const STORE: &str = "store";
/// The same until all of it is there.
const DRAFT: &str = "store.new";

pub(super) fn cannot_open(path: &Path) -> impl Fn(String) -> LedgerError {
    move |reason| LedgerError::Open { path: path.display().to_string(), reason }
}

/// Makes an empty store.
pub(super) fn make(path: &Path, tables: &[Table], cached_files_max: usize) -> Result<(), LedgerError> {
    let failed = |error: io::Error| cannot_open(path)(error.to_string());
    let changed = make_folder(path).map_err(failed)?;
    // Whoever else starts here at this moment must not take our draft for one that was left.
    let folder = File::open(path).map_err(failed)?;
    folder.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => LedgerError::InUse { path: path.display().to_string() },
        TryLockError::Error(error) => failed(error),
    })?;
    if path.join(STORE).exists() {
        return Ok(());
    }
    let draft = path.join(DRAFT);
    match std::fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {
            drop(Tables::open(&draft, tables, cached_files_max).map_err(|error| cannot_open(path)(error.to_string()))?)
        }
    }
    // The engine syncs what is in the folders of its tables, but not their names.
    sync_names(&draft.join("keyspaces")).map_err(failed)?;
    sync_names(&draft).map_err(failed)?;
    std::fs::rename(&draft, path.join(STORE)).map_err(failed)?;
    [path].into_iter().chain(changed.iter().map(PathBuf::as_path)).try_for_each(sync_names).map_err(failed)
}

/// Makes a folder and those it lies in. Gives the folders that have a new name in them.
fn make_folder(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = std::path::absolute(path)?;
    let missing = path.ancestors().take_while(|folder| !folder.exists());
    let changed = missing.filter_map(Path::parent).map(Path::to_owned).collect();
    // What records carry is nobody else's business on this machine.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(changed)
}

/// Makes the names in a folder survive a power cut: a synced file whose folder has no name is lost with it.
fn sync_names(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Ok(folder) => folder.sync_all(),
        // One may be allowed to make a folder in another without being allowed to read that one.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}
