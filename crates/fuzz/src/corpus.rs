//! The corpus: a folder of inputs per target. What once failed stays there and is tried first for ever.

use std::path::{Path, PathBuf};

use crate::result;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

/// Every input that is kept, in the order of the names.
pub(crate) fn load(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder(name)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).collect()
}

/// Keeps an input that failed; where.
pub(crate) fn keep(name: &str, input: &[u8]) -> String {
    let path = folder(name).join(format!("failed-{:016x}", result(input)));
    let kept = std::fs::create_dir_all(folder(name)).and_then(|()| std::fs::write(&path, input));
    match kept {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("nothing: {error}"),
    }
}
