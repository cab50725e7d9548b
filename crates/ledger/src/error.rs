//! What can go wrong with a ledger.
//! Invariant: an error says whether anything happened: after `Full` and `Bad` nothing did, after `Unclear` nobody knows.

const WAY_OUT: &str = "restore a backup, or save what can be read with: entrega salvage --from DIR --to NEWDIR";

/// What can be read in a journal from its damage on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// Sound writes.
    pub batches: usize,
    /// The ids that they, and what is left of the damaged one, speak of; each once, in order.
    pub ids: Vec<[u8; 16]>,
}

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} writes about {} ids can be read from there on", self.batches, self.ids.len())
    }
}

/// A ledger that did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
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
    #[error("the journal {file} cannot be mended at byte {offset}: {reason}; {behind}; nothing was changed; {WAY_OUT}")]
    Journal {
        /// Which file.
        file: String,
        /// Up to where it is sound.
        offset: usize,
        /// What is wrong.
        reason: &'static str,
        /// What can be read in spite of it.
        behind: Box<Behind>,
    },
    /// The store has fewer writes than were acknowledged.
    #[error("the store in {path} ends with write {found}, but {acknowledged} were acknowledged; {WAY_OUT}")]
    Short {
        /// Which directory.
        path: String,
        /// How many writes there are.
        found: u64,
        /// How many there should be.
        acknowledged: u64,
    },
    /// A file that says which records there are is damaged.
    #[error("{file}: {reason}; nothing was changed; {WAY_OUT}")]
    Table {
        /// Which file.
        file: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// There is no room for more; nothing happened.
    #[error("there is no room left: {reason}")]
    Full {
        /// What the ledger said.
        reason: String,
    },
    /// The call makes no sense; nothing happened.
    #[error("{doing} was refused: {reason}")]
    Bad {
        /// What was being done.
        doing: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody knows whether it happened: the same may be tried again.
    #[error("{doing} was not answered: {reason}")]
    Unclear {
        /// What was being done.
        doing: &'static str,
        /// What was seen.
        reason: String,
    },
    /// It failed. A failed write is final: what a failed sync leaves behind is not known, and trying again would hide it.
    #[error("{doing} failed: {reason}")]
    Broken {
        /// What was being done.
        doing: &'static str,
        /// What the engine said.
        reason: String,
    },
}
