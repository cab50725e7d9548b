//! Files and directories that nobody else may read: keys, and what jobs carry.
//! Invariant: what passed here is its owner's alone, or the program does not start.
//! Never: takes a directory away from others that is meant for everybody, such as `/tmp`.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::CliError;

const MODE_BITS: u32 = 0o7777;
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Makes a directory its owner's alone, if it is there. A new one is made so by whoever puts something durable into it, and
/// sees to it that its name outlives a power cut: made here, it would be taken for one that was always there.
pub(super) fn folder(path: &Path) -> Result<(), CliError> {
    close_if_there(path, 0o700)
}

/// Makes a file its owner's alone, if it is there.
pub(super) fn file(path: &Path) -> Result<(), CliError> {
    close_if_there(path, 0o600)
}

fn close_if_there(path: &Path, to: u32) -> Result<(), CliError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(CliError::File { path: path.to_owned(), source }),
        Ok(there) => close(path, there.permissions().mode(), to),
    }
}

fn close(path: &Path, mode: u32, to: u32) -> Result<(), CliError> {
    let mode = mode & MODE_BITS;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let open =
        |problem: String, way_out: String| CliError::OpenToOthers { path: path.to_owned(), mode, problem, way_out };
    if mode & STICKY != 0 || path.parent().is_none() {
        return Err(open("it is meant for everybody".into(), "give a directory of its own with --data".into()));
    }
    std::fs::set_permissions(path, Permissions::from_mode(to)).map_err(|error| {
        open(format!("that could not be changed ({error})"), format!("run chmod {to:04o} {} first", path.display()))
    })?;
    tracing::warn!(path = %path.display(), was = format!("{mode:04o}"), is = format!("{to:04o}"),
        "Others could read it; they cannot any more");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & MODE_BITS
    }

    /// An admin key in an empty file that was there stayed readable for everybody, and so did a directory.
    #[test]
    fn what_is_there_is_closed_and_what_is_everybodys_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (data, key) = (dir.path().join("data"), dir.path().join("data/admin-key"));
        folder(&data).unwrap();
        assert!(!data.exists(), "whoever makes it syncs its name");
        std::fs::create_dir(&data).unwrap();
        std::fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&key, "").unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        folder(&data).unwrap();
        file(&key).unwrap();
        assert_eq!((mode(&data), mode(&key)), (0o700, 0o600));
        file(&dir.path().join("nothing")).unwrap();
        std::fs::set_permissions(&data, Permissions::from_mode(0o1777)).unwrap();
        let refused = folder(&data).unwrap_err().to_string();
        assert!(refused.contains("mode 1777") && refused.contains("--data"), "{refused}");
        assert_eq!(mode(&data), 0o1777);
    }
}
