//! The lists of tables, checked before the engine opens them.
//! Invariant: the list that the engine is about to read is the one that it wrote: its checksum is in the file `current`.
//! Never: changes anything.
//!
//! The engine removes every table that its list does not name, and every folder without a list: with a damaged list that
//! would be the records themselves.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::LedgerError;

const FOLDERS: &str = "keyspaces";
const CURRENT: &str = "current";
/// Number of the list u64, its xxh3-128, kind of checksum u8.
const CURRENT_LEN: usize = 8 + 16 + 1;

/// Checks every list in `dir`.
pub(super) fn check(dir: &Path) -> Result<(), LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "checking the tables", reason: error.to_string() };
    let version = dir.join("version");
    if !version.exists() {
        return Err(damaged(&version, "it is missing, though there are records beside it"));
    }
    folders(dir).map_err(failed)?.iter().try_for_each(|folder| check_folder(folder))
}

/// The name of a folder whose list is damaged, if there is one.
pub(super) fn damaged_folder(dir: &Path) -> io::Result<Option<String>> {
    let damaged = folders(dir)?.into_iter().find(|folder| check_folder(folder).is_err());
    Ok(damaged.and_then(|folder| Some(folder.file_name()?.to_string_lossy().into_owned())))
}

fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir.join(FOLDERS))? {
        folders.extend(Some(entry?.path()).filter(|path| path.is_dir()));
    }
    Ok(folders)
}

fn damaged(file: &Path, reason: &'static str) -> LedgerError {
    LedgerError::Table { file: file.display().to_string(), reason }
}

fn check_folder(folder: &Path) -> Result<(), LedgerError> {
    let current = folder.join(CURRENT);
    match std::fs::read(&current) {
        Ok(bytes) => {
            let (number, sum) = parse(&bytes).ok_or_else(|| damaged(&current, "it names no list of tables"))?;
            let list = folder.join(format!("v{number}"));
            let bytes = std::fs::read(&list).map_err(|_| damaged(&list, "the list of tables cannot be read"))?;
            if xxh3_128(&bytes) != sum {
                return Err(damaged(&list, "the list of tables is damaged"));
            }
            Ok(())
        }
        // A power cut may leave a folder that was never filled.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_tables(folder) => Ok(()),
        Err(_) => Err(damaged(&current, "it cannot be read, though there are tables beside it")),
    }
}

fn parse(bytes: &[u8]) -> Option<(u64, u128)> {
    let bytes: &[u8; CURRENT_LEN] = bytes.try_into().ok()?;
    let number = u64::from_le_bytes(bytes[..8].try_into().ok()?);
    let sum = u128::from_le_bytes(bytes[8..24].try_into().ok()?);
    (bytes[24] == 0).then_some((number, sum))
}

fn has_tables(folder: &Path) -> bool {
    std::fs::read_dir(folder.join("tables")).is_ok_and(|mut tables| tables.next().is_some())
}
