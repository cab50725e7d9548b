//! Planted bugs: each breaks one rule at a border of the store on purpose (what the ledger holds, what policies say, what a
//! verb answers), so that the checkers are seen to notice.
//! Invariant: none is on unless a test switches it on; nothing here ships.

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// A caller is answered before its job is synced.
    AcknowledgeBeforeSync,
    /// A write that arrives late is applied although it was repeated since.
    RepeatAppliedTwice,
    /// What a settlement causes is not written with it.
    ForgetCauses,
    /// Two events of a mail bear the same number.
    DoubleEventNumber,
    /// One tenant's turns are longer than anybody said.
    SkipTenant,
    /// A tenant's turn never ends.
    EndlessTurn,
    /// Being held by a gate counts as an attempt.
    CountHeldAsAttempt,
    /// What was tried before is forgotten with a retry.
    ForgetHistory,
    /// A retry is written down but does not come back.
    LoseRetry,
    /// A retry comes back at once.
    RetryEarly,
    /// Jobs past their time to live are started.
    IgnoreTtl,
    /// Expired jobs leave without a trace.
    ExpireSilently,
    /// All jobs are equally urgent.
    IgnorePriority,
    /// Priorities that count within a tenant count over the whole lane.
    PriorityOverLane,
    /// What all jobs of a lane go to is called more often at once than it may be, once answers take long.
    SlowBeyondSlots,
    /// One start more than the throttle allows.
    ThrottleOffByOne,
    /// A restart forgets what the throttle let through.
    ThrottleForgotten,
    /// A breaker that opened stays open.
    BreakerNeverCloses,
    /// Ends are written without their reason.
    ForgetReason,
    /// The dispatcher is told to come back an hour late.
    WakeTooLate,
    /// Nobody is woken when work arrives.
    ForgetToWake,
    /// A job that had been attempted is gone after a restart.
    DropOnCrash,
    /// A key that makes a submission happen once is forgotten at once.
    ForgetOnce,
    /// A replayed job that was delivered leaves its dead letter open.
    ReplayWithoutRemoving,
    /// A replay does not count, so that it could go on for ever.
    ReplayUncounted,
    /// The end of a delivered job is not written.
    ForgetEnd,
    /// How far a replay got is written before it got there.
    ProgressFirst,
    /// A pause is written down, and the lane goes on.
    PauseUnheard,
    /// A restart forgets that a lane is paused.
    PauseForgotten,
    /// Nobody is woken when a lane is resumed.
    ResumeUnheard,
    /// A cancelled job keeps its place in the lane.
    CancelKeepsInLane,
    /// A job is cancelled while it is attempted.
    CancelRunning,
    /// A dead letter is discarded while its job is on its way again.
    DiscardReplaying,
    /// A cancel is answered before it is synced.
    CancelBeforeSync,
    /// A discarded dead letter comes back.
    DiscardReturns,
    /// A discard is answered before it is synced.
    DiscardBeforeSync,
    /// A discarded dead letter is thrown away.
    DiscardForgets,
    /// An unblocked job stays where it is.
    UnblockUnheard,
    /// A start passes over jobs from the future.
    SkipTheFuture,
    /// What a settlement causes is written after it, and the process may be killed in between.
    TornBatch,
    /// After an orderly stop, throttles believe the clock about how long it was.
    BelieveTheClock,
    /// A restart forgets that an endpoint has a throttle of its own.
    EndpointThrottleForgotten,
    /// A tenant gets more slots than it may have.
    TenantConcurrencyIgnored,
    /// No breaker opens.
    BreakerIgnored,
    /// What goes past an open breaker is not told so.
    PassUnsaid,
    /// Answers are kept and not found.
    CacheBlind,
    /// The answer to another question is given.
    CacheMixesUp,
    /// Answers that are kept do not age.
    CacheKeepsYoung,
    /// A restart forgets what the gate before an API let through.
    GateForgotten,
    /// The gate before an API lets one call more through than it may.
    GateOffByOne,
    /// The gate before an API hears nothing of what came of calls.
    GateDeaf,
    /// The gate before an API that closed once stays closed.
    GateNeverOpens,
    /// Calls that go without their turn do not count.
    AnywayUncounted,
    /// The gate before an API does not hear that it asks for a pause.
    GateImpatient,
    /// A node takes what another owns and holds.
    TwoOwners,
    /// What an owner that was replaced writes is applied.
    OldTokenApplied,
    /// Nobody sees that a node lives.
    LeaseNotRenewed,
    /// What a node owned that is gone, nobody takes over.
    DeadNodesKeep,
    /// What was left for an owner stays after it was taken.
    InboxTakenTwice,
    /// What is left for an owner, nobody finds.
    InboxNeverTaken,
    /// A job is handed in, and its owner is not told.
    HandedUnsaid,
    /// Whoever takes a lane over misses one of its jobs.
    LostInHandOver,
    /// Starts are made that were not written down before.
    StartsStale,
    /// Whoever takes a lane over knows nothing of its starts.
    ThrottlePerNode,
    /// Each node has a gate of its own before an API.
    GatePerNode,
    /// An order is carried out, and its operator is told that it is not.
    OrderAnswerUnseen,
    /// What operators tell one node, others never hear.
    RegistryUnheard,
    /// Nobody looks at the lease before the first byte of an attempt.
    LeaseUnlooked,
    /// An order is carried out after whoever gave it has given it up.
    ExpiredOrder,
    /// Whether the same call is under way, each node knows of itself.
    SingleFlightPerNode,
    /// A ledger that lost writes does not notice that others follow.
    RewindUnnoticed,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 71] = [
        Bug::AcknowledgeBeforeSync,
        Bug::RepeatAppliedTwice,
        Bug::ForgetCauses,
        Bug::DoubleEventNumber,
        Bug::SkipTenant,
        Bug::EndlessTurn,
        Bug::CountHeldAsAttempt,
        Bug::ForgetHistory,
        Bug::LoseRetry,
        Bug::RetryEarly,
        Bug::IgnoreTtl,
        Bug::ExpireSilently,
        Bug::IgnorePriority,
        Bug::PriorityOverLane,
        Bug::SlowBeyondSlots,
        Bug::ThrottleOffByOne,
        Bug::ThrottleForgotten,
        Bug::BreakerNeverCloses,
        Bug::ForgetReason,
        Bug::WakeTooLate,
        Bug::ForgetToWake,
        Bug::DropOnCrash,
        Bug::ForgetOnce,
        Bug::ReplayWithoutRemoving,
        Bug::ReplayUncounted,
        Bug::ForgetEnd,
        Bug::ProgressFirst,
        Bug::PauseUnheard,
        Bug::PauseForgotten,
        Bug::ResumeUnheard,
        Bug::CancelKeepsInLane,
        Bug::CancelRunning,
        Bug::DiscardReplaying,
        Bug::CancelBeforeSync,
        Bug::DiscardReturns,
        Bug::DiscardBeforeSync,
        Bug::DiscardForgets,
        Bug::UnblockUnheard,
        Bug::SkipTheFuture,
        Bug::TornBatch,
        Bug::BelieveTheClock,
        Bug::EndpointThrottleForgotten,
        Bug::TenantConcurrencyIgnored,
        Bug::BreakerIgnored,
        Bug::PassUnsaid,
        Bug::CacheBlind,
        Bug::CacheMixesUp,
        Bug::CacheKeepsYoung,
        Bug::GateForgotten,
        Bug::GateOffByOne,
        Bug::GateDeaf,
        Bug::GateNeverOpens,
        Bug::AnywayUncounted,
        Bug::GateImpatient,
        Bug::TwoOwners,
        Bug::OldTokenApplied,
        Bug::LeaseNotRenewed,
        Bug::DeadNodesKeep,
        Bug::InboxTakenTwice,
        Bug::InboxNeverTaken,
        Bug::HandedUnsaid,
        Bug::LostInHandOver,
        Bug::StartsStale,
        Bug::ThrottlePerNode,
        Bug::GatePerNode,
        Bug::OrderAnswerUnseen,
        Bug::RegistryUnheard,
        Bug::LeaseUnlooked,
        Bug::ExpiredOrder,
        Bug::SingleFlightPerNode,
        Bug::RewindUnnoticed,
    ];
}
