//! Operations: what is done, under which names, and how its results are judged.
//! Invariant: every attempt of an operation carries the same idempotency key.
//! Never: holds a secret or a body; all of it may be logged.

use std::sync::Arc;

use tokio::time::Instant;

use super::classifier::Rules;

/// Names that every log line of an operation carries, where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFields {
    /// `requestId`.
    pub request_id: Option<String>,
    /// `traceId`.
    pub trace_id: Option<String>,
    /// `userId`.
    pub user_id: Option<String>,
    /// `orgId`.
    pub org_id: Option<String>,
    /// `companyId`.
    pub company_id: Option<String>,
    /// `lane`.
    pub lane: Option<String>,
    /// `jobId`.
    pub job_id: Option<String>,
    /// `eventId`.
    pub event_id: Option<String>,
    /// `connector_id`.
    pub connector_id: Option<String>,
    /// `method` of an HTTP request.
    pub method: Option<String>,
    /// `path` of an HTTP request, without its query.
    pub path: Option<String>,
}

/// Something that is attempted until it works. A text alone names an HTTP operation.
#[derive(Clone, Debug)]
pub struct Operation<C = Rules> {
    pub(crate) name: Arc<str>,
    pub(crate) classifier: C,
    pub(crate) idempotency_key: Option<Arc<str>>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) tenant: Arc<str>,
    pub(crate) fields: Arc<LogFields>,
}

impl Operation<Rules> {
    /// HTTP calls, judged by [`Rules::http`].
    #[must_use]
    pub fn http(name: &str) -> Operation<Rules> {
        Operation::new(name, Rules::http())
    }

    /// Calls of a connector, judged by [`Rules::connector`].
    #[must_use]
    pub fn connector(name: &str) -> Operation<Rules> {
        Operation::new(name, Rules::connector())
    }
}

impl<C> Operation<C> {
    /// Anything, judged by a classifier of your own, such as a closure over `&Result<T, E>`.
    #[must_use]
    pub fn new(name: &str, classifier: C) -> Operation<C> {
        let (tenant, fields) = (Arc::default(), Arc::default());
        Operation { name: name.into(), classifier, idempotency_key: None, deadline: None, tenant, fields }
    }

    /// The key that all attempts carry. Without one, a key is made for each run.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<Arc<str>>) -> Operation<C> {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Nothing starts or goes on after this moment; the policy's `total` holds as well.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Operation<C> {
        self.deadline = Some(deadline);
        self
    }

    /// For whom it is done: tenants take turns before a throttle. All operations without one are the same tenant's.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<Arc<str>>) -> Operation<C> {
        self.tenant = tenant.into();
        self
    }

    /// Names for its log lines.
    #[must_use]
    pub fn fields(mut self, fields: LogFields) -> Operation<C> {
        self.fields = Arc::new(fields);
        self
    }
}

impl From<&str> for Operation<Rules> {
    fn from(name: &str) -> Operation<Rules> {
        Operation::http(name)
    }
}

/// What an attempt is told.
#[derive(Clone, Debug)]
pub struct AttemptContext {
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// How many there may be.
    pub attempts_max: u32,
    /// When it is cut off: its own timeout or the end of the whole, whichever comes first.
    pub deadline: Instant,
    /// The same for every attempt.
    pub idempotency_key: Arc<str>,
    /// The operation's name.
    pub operation: Arc<str>,
    /// The operation's names for log lines, for those that the attempt writes itself.
    pub fields: Arc<LogFields>,
}
