//! The shapes of what the store and the core give, for the OpenAPI document.
//! Invariant: each mirrors a type that serializes itself; `tests/api` compares answers with these shapes.
//! Never: made or read; only described.
#![expect(dead_code, reason = "these types exist for their schemas")]

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// One, or an array of them.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    /// One.
    One(T),
    /// 1 to 1000.
    Many(Vec<T>),
}

/// How urgent a job is within its lane.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum Priority {
    High,
    Normal,
    Low,
}

/// Where a job stands.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(super) enum JobState {
    Idle,
    Queued,
    Running,
    RetryWait,
    Done,
    Blocked,
    Dlq,
    Replaying,
    Dropped,
    Cancelled,
}

/// What is happening to a dead letter.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum DeadLetterStatus {
    Pending,
    Replaying,
    Replayed,
    Discarded,
}

/// What dead letters are counted by.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum CountBy {
    Code,
    Tenant,
    Lane,
    Hour,
}

/// What a key may do.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum KeyScope {
    Send,
    Read,
    Metrics,
    Admin,
}

/// Whether a gate stands before the whole lane or before each tenant.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum GateScope {
    Lane,
    Tenant,
}

/// At most so many calls start in any interval of this length.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Rate {
    #[schema(minimum = 1, maximum = 10000, example = 10)]
    max_requests: u32,
    #[schema(minimum = 1, maximum = 86400000, example = 1000)]
    per_ms: u64,
}

/// What running out of attempts means.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum OnExhausted {
    Dlq,
    Blocked,
}

/// How many destinations the jobs of a lane go to.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum Destinations {
    One,
    Many,
}

/// What a full lane does with a newcomer.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum OnFull {
    Refuse,
    Preempt,
}

/// How a replay stands.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum ReplayStatus {
    Running,
    Finished,
}

/// A text, or `{"base64": …}` where the bytes are none.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Binary { base64: String },
}

/// One try of a job.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct Attempt {
    /// From 1; it starts again with each replay.
    number: u32,
    #[schema(format = DateTime)]
    started_at: String,
    duration_ms: u64,
    /// `http_503`, `timeout`, … or `ok`.
    code: String,
    /// What went wrong; `null` for a success.
    #[schema(required = true)]
    reason: Option<String>,
    /// Of a webhook: the first part of what the endpoint answered, with control characters shown as pictures.
    answer: Option<String>,
}

/// What is kept of a destination's answer.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct KeptAnswer {
    status: u16,
    #[schema(required = true)]
    content_type: Option<String>,
    /// Up to a cap.
    body: Content,
    /// Whether the cap cut it off.
    truncated: bool,
    /// Said of an answer that had been given before.
    #[schema(required = true)]
    cache: Option<CacheMark>,
}

/// What is said of an answer that had been given before.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct CacheMark {
    /// How old it was when it was given again.
    age_seconds: u64,
    /// Whether it was past its time, and had to do because the upstream gave none.
    stale: bool,
    /// Why the upstream gave none: `timeout`, `erro_5xx`, `breaker_aberto`, …
    #[schema(required = true)]
    motivo: Option<String>,
}

/// A job.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct JobView {
    #[schema(example = "job_01J9Z3K5V84NQW6R7T2Y0X1ABC")]
    job_id: String,
    lane: String,
    /// The tenant.
    company_id: String,
    /// For which of their endpoints, if it is for one.
    endpoint: Option<String>,
    priority: Priority,
    state: JobState,
    /// Why, where that needs saying.
    reason: Option<String>,
    /// Method and URL.
    destination: Option<String>,
    labels: BTreeMap<String, String>,
    #[schema(format = DateTime)]
    accepted_at: String,
    /// When it is next due, while it waits.
    #[schema(format = DateTime)]
    due_at: Option<String>,
    /// When it would be dropped.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(format = DateTime)]
    ended_at: Option<String>,
    /// Replays so far.
    generation: u8,
    /// Every attempt, oldest first.
    attempts: Vec<Attempt>,
    /// The destination's answer, once delivered.
    result: Option<KeptAnswer>,
}

/// A job that gave up.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct DeadLetter {
    job_id: String,
    /// The tenant.
    company_id: String,
    lane: String,
    /// The whole job.
    #[schema(value_type = Object)]
    original_data: serde_json::Value,
    /// Over all replays.
    failed_attempts: u32,
    #[schema(min_length = 1)]
    last_failure_reason: String,
    last_failure_code: Option<String>,
    #[schema(format = DateTime)]
    last_failure_timestamp: String,
    #[schema(format = DateTime)]
    enqueued_at: String,
    #[schema(rename = "movedToDLQAt", format = DateTime)]
    moved_to_dlq_at: String,
    /// How long it is kept, in ms.
    ttl: u64,
    status: DeadLetterStatus,
    /// Every attempt, oldest first.
    attempts: Vec<Attempt>,
    /// How often it was replayed.
    generation: u8,
    discard_reason: Option<String>,
}

/// One row of a count.
#[derive(ToSchema)]
pub(super) struct Count {
    lane: String,
    /// The value that they share.
    key: String,
    count: u64,
}

/// Which dead letters.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct DeadLetterFilter {
    lane: Option<String>,
    /// Another tenant than the key's own needs the scope `admin`.
    tenant: Option<String>,
    /// With this failure code.
    code: Option<String>,
    /// Ignored: only pending entries can be replayed.
    status: Option<DeadLetterStatus>,
    /// Dead for at least this long.
    #[schema(format = "uint64")]
    older_than_seconds: Option<u64>,
    /// With this text in the reason.
    text: Option<String>,
}

/// A replay of many dead letters.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct ReplayRun {
    #[schema(example = "replay_01J9Z3K5V84NQW6R7T2Y0X1ABC")]
    replay_id: String,
    filter: DeadLetterFilter,
    rate_per_sec: u32,
    #[schema(format = DateTime)]
    created_at: String,
    status: ReplayStatus,
    /// How many fitted when it was asked for.
    total: u64,
    /// Sent on their way.
    replayed: u64,
    /// Replayed too often, or changed in between.
    skipped: u64,
    /// The last entry looked at: when it died, and its id.
    #[schema(required = true)]
    cursor: Option<Vec<String>>,
}

/// Whether an endpoint is called.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum EndpointState {
    Enabled,
    Paused,
    Disabled,
}

/// Who set an endpoint up.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum EndpointOrigin {
    Config,
    Api,
}
