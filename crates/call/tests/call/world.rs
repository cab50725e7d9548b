//! A world for retries: time that stands still unless waited for, known chance, and ears for what is told.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use entrega_call::{Answer, AttemptEnded, Chance, Clock, GivenUp, Observer, Retrier, ThrottleWaited, Waiting};
use entrega_core::time::Time;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tracing::subscriber::DefaultGuard;

/// Tue, 14 Nov 2023 22:13:20 GMT.
pub(crate) const START: Time = Time::from_millis(1_700_000_000_000);

/// Starts at [`START`]; draws the same for the same seed.
pub(crate) fn world(seed: u64) -> Retrier {
    Retrier { clock: Clock::starting_at(START), chance: Chance::from_seed(seed), ..Retrier::default() }
}

pub(crate) fn answer(status: u16, headers: &[(&str, &str)]) -> Answer {
    let headers = headers
        .iter()
        .map(|(name, value)| (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap()));
    Answer {
        status: StatusCode::from_u16(status).unwrap(),
        headers: headers.collect::<HeaderMap>(),
        body: Bytes::from_static(b"a body that no log may show"),
        truncated: false,
        retry_after: None,
    }
}

/// Writes down what an observer is told.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) Mutex<Vec<String>>);

impl Notes {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Notes {
    fn attempt_ended(&self, ended: AttemptEnded<'_>) {
        let (status, attempt) = (ended.description.http_status, ended.attempt);
        self.note(format!(
            "attempt {attempt} {status:?} retryable={} success={}",
            ended.is_retryable, ended.is_success
        ));
    }

    fn waiting(&self, waiting: Waiting<'_>) {
        let (base, wait) = (waiting.base_delay, waiting.final_delay);
        assert!(wait >= base.mul_f64(0.75) && wait <= base.mul_f64(1.25), "{wait:?} around {base:?}");
        self.note(format!("waiting around {base:?}"));
    }

    fn gave_up(&self, given_up: GivenUp<'_>) {
        self.note(format!("{} gave up after {}: {}", given_up.operation, given_up.attempts, given_up.stopped));
    }

    fn throttle_waited(&self, waited: ThrottleWaited<'_>) {
        self.note(format!("throttle {:?} timed_out={}", waited.took, waited.timed_out));
    }
}

/// The log lines of this thread, as long as it is kept.
pub(crate) struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn listen() -> Log {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish();
        Log { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.lines.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines with this message.
    pub(crate) fn with(&self, message: &str) -> Vec<serde_json::Value> {
        let lines = self.text();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["message"] == message).collect()
    }
}

/// How long that takes, on the clock of the runtime.
pub(crate) async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let clock = Clock::system();
    let started = clock.now();
    let done = work.await;
    (done, clock.now().since(started))
}
