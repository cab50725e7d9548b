//! The scripts, and calls of them.
//! Invariant: scripts are loaded with every connection; a server that forgot one is given it again.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Script};

static SCRIPTS: LazyLock<[Script; 5]> = LazyLock::new(|| {
    let write = include_str!("write.lua");
    [
        Script::new(&format!("#!lua\n{write}")),
        Script::new(&format!("#!lua flags=allow-oom\n{write}")),
        Script::new(&format!("#!lua flags=allow-oom\n{}", include_str!("own.lua"))),
        Script::new(&format!("#!lua flags=allow-oom\n{}", include_str!("beat.lua"))),
        Script::new(&format!("#!lua flags=allow-oom\n{}", include_str!("release.lua"))),
    ]
});

/// Which there are.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Write,
    /// The same, also where memory is used up.
    WriteAlways,
    Own,
    Beat,
    Release,
}

/// The beginning of a call with so many keys.
pub(super) fn call(which: Which, keys: usize) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(SCRIPTS[which as usize].get_hash()).arg(keys);
    command
}

/// Gives the server all of them.
pub(super) async fn load_all(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    for script in SCRIPTS.iter() {
        script.load_async(connection).await?;
    }
    Ok(())
}
