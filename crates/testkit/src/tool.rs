//! Tools that tests need and that a machine may not have.
//! Invariant: a test that is left out for want of a tool is written down where the suite counts it; it never passes for one
//! that ran.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The tools that this run goes without, by name, with commas between.
const WITHOUT: &str = "ENTREGA_WITHOUT";
/// The file in which tests that are left out are written down, one a line.
const LEFT_OUT: &str = "ENTREGA_LEFT_OUT";

/// Whether this run goes without a tool; a test that needs it then returns.
pub fn is_left_out(tool: &str) -> bool {
    let without = std::env::var(WITHOUT).unwrap_or_default();
    let is_left_out = without.split(',').any(|name| name.trim() == tool);
    if is_left_out {
        println!("left out: there is no {tool} here ({WITHOUT}={without})");
        write_down(tool);
    }
    is_left_out
}

fn write_down(tool: &str) {
    let Some(path) = std::env::var_os(LEFT_OUT) else { return };
    let thread = std::thread::current();
    let line = format!("{} {tool}\n", thread.name().unwrap_or("a test"));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the list of tests that are left out can be written");
}

/// The project's own Python.
pub fn python() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin/python3");
    std::env::var_os("ENTREGA_PYTHON").map_or_else(installed, PathBuf::from)
}
