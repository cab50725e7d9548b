//! The tables of the store. Their keys and values are described in `records`.
//! Invariant: a table's number is its place in [`TABLES`].

use entrega_ledger::Table;

/// What jobs carry until they end, and what is known of them after.
pub const JOBS: Table = Table { number: 0, name: "jobs" };
/// The index of jobs that have not ended, lane by lane; read whole when a lane is loaded.
pub const LIVE: Table = Table { number: 1, name: "live" };
/// Attempts of jobs that failed and have not ended.
pub const HISTORY: Table = Table { number: 2, name: "history" };
/// Dead letters.
pub const DEAD: Table = Table { number: 3, name: "dead" };
/// Keys, tenants, pauses, replays, the format's version.
pub const REGISTRY: Table = Table { number: 4, name: "registry" };
/// Submissions and requests that must not happen twice.
pub const ONCE: Table = Table { number: 5, name: "once" };
/// Addresses that are not written to any more, and what came back about mails.
pub const MAIL: Table = Table { number: 6, name: "mail" };

/// All of them: what a ledger is opened with.
pub const TABLES: [Table; 7] = [JOBS, LIVE, HISTORY, DEAD, REGISTRY, ONCE, MAIL];
