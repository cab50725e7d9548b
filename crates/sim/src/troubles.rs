//! Troubles of a run, counted: a run in which nothing goes wrong proves nothing.

/// How often things went wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Crashes of the process.
    pub crashes: u32,
    /// Those of them that came between two polls of the scheduler.
    pub cuts: u32,
    /// Orderly stops before the end.
    pub stops: u32,
    /// Writes that happened although nobody was told so.
    pub answers_lost: u32,
    /// Writes that arrived after whoever sent them had given up.
    pub late_writes: u32,
    /// Reads that were not answered.
    pub unread: u32,
    /// Submissions that the store refused.
    pub refused: u32,
    /// Jobs that were pushed out or expired.
    pub dropped: u32,
    /// Dead letters that were sent on their way again.
    pub replayed: u32,
    /// Attempts that a destination did not answer in time.
    pub hung: u32,
    /// Submissions that were known by their key.
    pub repeated: u32,
    /// Events that reached a listener.
    pub events: u32,
    /// Lanes that an operator paused.
    pub paused: u32,
    /// Jobs that an operator cancelled.
    pub cancelled: u32,
    /// Jobs that could not be cancelled any more, or not just then.
    pub not_cancelled: u32,
    /// Blocked jobs that an operator let go on in the middle of it.
    pub unblocked: u32,
    /// Dead letters that an operator gave up.
    pub discarded: u32,
    /// Dead letters that could not be given up any more, or not just then.
    pub not_discarded: u32,
    /// Calls of the upstream.
    pub asked: u32,
    /// Answers of the upstream that were given again.
    pub from_cache: u32,
    /// Jobs that were let past an open breaker.
    pub past_breaker: u32,
    /// Calls of the API behind the connector.
    pub called: u32,
    /// Those of them that waited for their turn for too long.
    pub went_anyway: u32,
    /// Callers who waited for the API's answer.
    pub waited: u32,
    /// Those of them who got one.
    pub answered: u32,
    /// Starts at which the clock was another than before.
    pub clocks_set: u32,
    /// Lanes that another node took over.
    pub taken_over: u32,
    /// Times that a node stood still.
    pub stalls: u32,
    /// Calls of a ledger that did not answer the node.
    pub cut_off: u32,
    /// Signals that nobody heard.
    pub signals_lost: u32,
    /// Attempts that were cut off because a lease was over.
    pub given_back: u32,
    /// Orders that no node took in time.
    pub expired_orders: u32,
    /// Attempts that looked at their lease and sent their first byte after their node had stood still.
    pub late_bytes: u32,
    /// Times that the ledger lost what it had acknowledged.
    pub rewinds: u32,
    /// Jobs that were lost with it.
    pub lost: u32,
    /// Attempts of nodes of which the ledger had forgotten that they own a lane, and that did not know it yet.
    pub overlapped: u32,
}

impl Troubles {
    /// Each with its name.
    pub fn all(&self) -> [(&'static str, u32); 26] {
        [
            ("a crash", self.crashes),
            ("a cut between two polls", self.cuts),
            ("a stop", self.stops),
            ("a lost answer", self.answers_lost),
            ("a late write", self.late_writes),
            ("a read without an answer", self.unread),
            ("a refusal", self.refused),
            ("a drop", self.dropped),
            ("a replay", self.replayed),
            ("a hanging call", self.hung),
            ("a repeated submission", self.repeated),
            ("an event", self.events),
            ("a pause", self.paused),
            ("a cancelled job", self.cancelled),
            ("a cancel in vain", self.not_cancelled),
            ("an unblocked job", self.unblocked),
            ("a discarded dead letter", self.discarded),
            ("a discard in vain", self.not_discarded),
            ("a call of the upstream", self.asked),
            ("an answer given again", self.from_cache),
            ("a job past a breaker", self.past_breaker),
            ("a call of the API", self.called),
            ("a call without its turn", self.went_anyway),
            ("a caller who waits", self.waited),
            ("an answer for somebody who waits", self.answered),
            ("a clock that was set", self.clocks_set),
        ]
    }

    /// What happens only among nodes that share a ledger, often enough to be met in a few seeds. A first byte after a stall
    /// is rarer: a lease with little left starts nothing.
    pub fn among_nodes(&self) -> [(&'static str, u32); 6] {
        [
            ("a lane taken over", self.taken_over),
            ("a stall", self.stalls),
            ("a call that is cut off", self.cut_off),
            ("a lost signal", self.signals_lost),
            ("an attempt cut off", self.given_back),
            ("an order not carried out", self.expired_orders),
        ]
    }

    /// What happens only where the ledger loses what it had acknowledged.
    pub fn where_writes_are_lost(&self) -> [(&'static str, u32); 2] {
        [("a ledger that lost writes", self.rewinds), ("a job lost with them", self.lost)]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Troubles) {
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.stops += other.stops;
        self.answers_lost += other.answers_lost;
        self.late_writes += other.late_writes;
        self.unread += other.unread;
        self.refused += other.refused;
        self.dropped += other.dropped;
        self.replayed += other.replayed;
        self.hung += other.hung;
        self.repeated += other.repeated;
        self.events += other.events;
        self.paused += other.paused;
        self.cancelled += other.cancelled;
        self.not_cancelled += other.not_cancelled;
        self.unblocked += other.unblocked;
        self.discarded += other.discarded;
        self.not_discarded += other.not_discarded;
        self.asked += other.asked;
        self.from_cache += other.from_cache;
        self.past_breaker += other.past_breaker;
        self.called += other.called;
        self.went_anyway += other.went_anyway;
        self.waited += other.waited;
        self.answered += other.answered;
        self.clocks_set += other.clocks_set;
        self.taken_over += other.taken_over;
        self.stalls += other.stalls;
        self.cut_off += other.cut_off;
        self.signals_lost += other.signals_lost;
        self.given_back += other.given_back;
        self.expired_orders += other.expired_orders;
        self.late_bytes += other.late_bytes;
        self.rewinds += other.rewinds;
        self.lost += other.lost;
        self.overlapped += other.overlapped;
    }
}
