//! The tables of the store. Their keys and values are described in `records`.
//! Invariant: a table's number is its place in [`TABLES`].

use entrega_core::id::JobId;
use entrega_ledger::{Key, Table};

/// What jobs carry until they end, and what is known of them after.
pub const JOBS: Table = Table { number: 0, name: "jobs", scanned: true };
/// The index of jobs that have not ended, lane by lane; read whole when a lane is loaded.
pub const LIVE: Table = Table { number: 1, name: "live", scanned: true };
/// Attempts of jobs that failed and have not ended.
pub const HISTORY: Table = Table { number: 2, name: "history", scanned: false };
/// Dead letters.
pub const DEAD: Table = Table { number: 3, name: "dead", scanned: true };
/// Keys, tenants, pauses, replays, the format's version.
pub const REGISTRY: Table = Table { number: 4, name: "registry", scanned: true };
/// Submissions and requests that must not happen twice.
pub const IDEMPOTENCY: Table = Table { number: 5, name: "idempotency", scanned: true };
/// Addresses that are not written to any more, and what came back about mails.
pub const MAIL: Table = Table { number: 6, name: "mail", scanned: true };

/// What is known of dead letters without reading them, lane by lane and by age.
pub const MARKS: Table = Table { number: 7, name: "marks", scanned: true };
/// Answers to orders, until whoever gave the order has read them.
pub const ORDERS: Table = Table { number: 8, name: "orders", scanned: true };
/// How the lanes stand, as their owners show it.
pub const FIGURES: Table = Table { number: 9, name: "figures", scanned: false };
/// What nodes that share the ledger share beside: gates of connectors, answers of upstreams, calls under way.
pub const CALLS: Table = Table { number: 10, name: "calls", scanned: true };
/// The nodes that share the ledger, as each shows itself.
pub const NODES: Table = Table { number: 11, name: "nodes", scanned: true };

/// All of them: what a ledger is opened with.
pub const TABLES: [Table; 12] =
    [JOBS, LIVE, HISTORY, DEAD, REGISTRY, IDEMPOTENCY, MAIL, MARKS, ORDERS, FIGURES, CALLS, NODES];

/// The key of what is kept of one job.
pub(super) fn id_key(id: JobId) -> Key {
    Key::Id(*id.as_bytes())
}
