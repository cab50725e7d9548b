//! What a local store needs of a disk: seven tables, atomic synced batches, ordered scans.
//! Invariant: when `commit` returns `Ok`, the whole batch survives a power cut; otherwise nothing of it is promised.
//! Never: interprets a record.

use std::ops::ControlFlow;

/// The tables. Keys and values are described in `records`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// What jobs carry until they end, and what is known of them after.
    Jobs,
    /// The index of jobs that have not ended; read whole at start-up.
    Live,
    /// Attempts of jobs that failed and have not ended.
    History,
    /// Dead letters.
    Dead,
    /// Keys, tenants, pauses, replays, the format's version.
    Registry,
    /// Submissions that must not happen twice.
    Once,
    /// Addresses that are not written to any more, and what came back about mails.
    Mail,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 7] =
        [Table::Jobs, Table::Live, Table::History, Table::Dead, Table::Registry, Table::Once, Table::Mail];

    /// Its name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Jobs => "jobs",
            Table::Live => "live",
            Table::History => "history",
            Table::Dead => "dead",
            Table::Registry => "registry",
            Table::Once => "once",
            Table::Mail => "mail",
        }
    }
}

/// One change.
#[derive(Debug)]
pub struct Op {
    /// Where.
    pub table: Table,
    /// Which.
    pub key: Key,
    /// The new value; `None` removes.
    pub value: Option<Vec<u8>>,
}

/// A key: nearly always a job's id, which needs no allocation.
#[derive(Debug)]
pub enum Key {
    /// A job's id.
    Id([u8; 16]),
    /// Any other.
    Text(String),
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        match self {
            Key::Id(bytes) => bytes,
            Key::Text(text) => text.as_bytes(),
        }
    }
}

/// Changes that happen together or not at all.
#[derive(Debug, Default)]
pub struct Batch {
    /// In the order they take effect.
    pub ops: Vec<Op>,
}

impl Batch {
    /// Sets a value.
    pub fn put(&mut self, table: Table, key: Key, value: Vec<u8>) {
        self.ops.push(Op { table, key, value: Some(value) });
    }

    /// Removes a key.
    pub fn remove(&mut self, table: Table, key: Key) {
        self.ops.push(Op { table, key, value: None });
    }
}

/// A disk that did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// Another process owns the directory.
    #[error(
        "the data directory {path} is in use by another process; stop that one, or choose another with --data \
         (leave a lock file alone: it is the other process's)"
    )]
    InUse {
        /// Which directory.
        path: String,
    },
    /// It cannot be opened.
    #[error("the data directory {path} cannot be opened: {reason}")]
    Open {
        /// Which directory.
        path: String,
        /// What the engine said.
        reason: String,
    },
    /// The journal is damaged in a way that no power cut explains.
    #[error("the journal {file} cannot be mended at byte {offset}: {reason}; nothing was changed")]
    Journal {
        /// Which file.
        file: String,
        /// Up to where it is sound.
        offset: usize,
        /// What is wrong, and what an operator can do.
        reason: &'static str,
    },
    /// A read or write failed.
    #[error("{doing} failed: {reason}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the engine said.
        reason: String,
    },
    /// A record that cannot be understood.
    #[error("a record of table {table} cannot be read: {reason}")]
    Record {
        /// Which table.
        table: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Called for each row of a scan; `Break` ends it.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// The disk.
pub trait Disk: Send + Sync + 'static {
    /// Shows the value of a key to `see`; whether there was one.
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError>;

    /// Visits rows in key order, from the first key on, or backwards from the last key before `below`.
    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError>;

    /// Writes all of a batch, synced.
    fn commit(&self, batch: Batch) -> Result<(), DiskError>;

    /// Bytes left to write, where there is a limit.
    fn free_bytes(&self) -> Option<u64>;

    /// What kind of store this makes.
    fn kind(&self) -> &'static str;

    /// What a synced write means.
    fn durability(&self) -> &'static str;
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug)]
pub enum Order<'a> {
    /// From this key on, upwards.
    UpFrom(&'a [u8]),
    /// From just below this key (`None`: the end), downwards.
    DownFrom(Option<&'a [u8]>),
}
