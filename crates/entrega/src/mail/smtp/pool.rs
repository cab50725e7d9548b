//! The pool: connections that wait for the next mail.
//! Invariant: at most so many as configured, and none is given out that waited too long; servers cut off idle clients.
//! Never: speaks on a connection.

use std::time::Duration;

use entrega_core::time::Time;
use parking_lot::Mutex;

use super::opening::Connection;

/// Servers wait for a command for minutes; what is in between (NAT, firewalls) often less.
const IDLE_MAX: Duration = Duration::from_secs(60);

struct Idle {
    connection: Connection,
    since: Time,
}

/// Those that wait, the one that came last on top.
pub(super) struct Pool {
    idle: Mutex<Vec<Idle>>,
    size_max: usize,
}

impl Pool {
    pub(super) fn new(size_max: usize) -> Pool {
        Pool { idle: Mutex::new(Vec::new()), size_max }
    }

    /// The connection that waited least. If that was too long, it was for all.
    pub(super) fn take(&self, now: Time) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let newest = idle.pop()?;
        if now.since(newest.since) <= IDLE_MAX {
            return Some(newest.connection);
        }
        let outdated = std::mem::take(&mut *idle);
        // Closing takes system calls; nobody should wait for them.
        drop(idle);
        drop((newest, outdated));
        None
    }

    /// Keeps a connection; gives it back if there are enough.
    pub(super) fn put(&self, connection: Connection, now: Time) -> Option<Connection> {
        let mut idle = self.idle.lock();
        if idle.len() >= self.size_max {
            return Some(connection);
        }
        idle.push(Idle { connection, since: now });
        None
    }
}
