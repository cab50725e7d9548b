//! The lists of tables, checked before the engine opens them.
//! Invariant: the list that the engine is about to read is the one that it wrote: its checksum is in the file `current`.
//! Never: changes anything.
//!
//! The engine removes every table that its list does not name, and every folder without a list: with a damaged list that
//! would be the records themselves.

use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::LedgerError;

const FOLDERS: &str = "keyspaces";
const CURRENT: &str = "current";
/// Number of the list u64, its xxh3-128, kind of checksum u8.
const CURRENT_LEN: usize = 8 + 16 + 1;

/// Checks every list in `dir`.
pub(super) fn check(dir: &Path) -> Result<(), LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "checking the tables", reason: error.to_string() };
    let damaged = |file: &Path, reason: &'static str| LedgerError::Table { file: file.display().to_string(), reason };
    let version = dir.join("version");
    if !version.exists() {
        return Err(damaged(&version, "it is missing, though there are records beside it"));
    }
    for entry in std::fs::read_dir(dir.join(FOLDERS)).map_err(failed)? {
        let folder = entry.map_err(failed)?.path();
        if !folder.is_dir() {
            continue;
        }
        let current = folder.join(CURRENT);
        match std::fs::read(&current) {
            Ok(bytes) => {
                let (number, sum) = parse(&bytes).ok_or_else(|| damaged(&current, "it names no list of tables"))?;
                let list = folder.join(format!("v{number}"));
                let bytes = std::fs::read(&list).map_err(|_| damaged(&list, "the list of tables cannot be read"))?;
                if xxh3_128(&bytes) != sum {
                    return Err(damaged(&list, "the list of tables is damaged"));
                }
            }
            // A power cut may leave a folder that was never filled.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !has_tables(&folder) => {}
            Err(_) => return Err(damaged(&current, "it cannot be read, though there are tables beside it")),
        }
    }
    Ok(())
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
