//! The log: lines on their way to stderr, written by a thread of their own.
//! Invariant: whoever logs never waits for whoever reads. At most [`WAITING_BYTES_MAX`] wait; a line that finds no room is
//! dropped and counted, and the number is logged as soon as something can be written again.
//! Never: keeps the process from ending; a reader that is stuck is waited for within a limit.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write as _};
use std::mem;
use std::panic::PanicHookInfo;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogConfig, LogFormat};

/// Bytes of lines that wait while nobody reads: some ten thousand lines.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// How long the end of the process waits for the last lines to be taken.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// How long a panic waits for the same: the thread may be one that serves others.
const PANIC_FLUSH_MAX: Duration = Duration::from_millis(100);

/// Lines that wait for the thread that writes them. Clones share them.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// Something waits to be written, or nothing more will come.
    arrived: Condvar,
    /// Everything that waited was written.
    written: Condvar,
    /// Its own lines, which say how many were dropped, find room always: there is at most one for each write.
    writer: OnceLock<ThreadId>,
}

#[derive(Default)]
struct Waiting {
    /// Whole lines, one after the other.
    lines: Vec<u8>,
    is_writing: bool,
    is_closed: bool,
    /// Dropped and not yet told.
    untold: u64,
    dropped: u64,
}

impl Log {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(out: impl io::Write + Send + 'static) -> io::Result<Log> {
        let (arrived, written) = (Condvar::new(), Condvar::new());
        let log =
            Log { shared: Arc::new(Shared { waiting: Mutex::default(), arrived, written, writer: OnceLock::new() }) };
        let writer = log.clone();
        let thread = thread::Builder::new().name("log".into()).spawn(move || writer.write_all_that_comes(out))?;
        log.shared.writer.get_or_init(|| thread.thread().id());
        Ok(log)
    }

    /// Starts the log of this process on stderr: JSON, or for people on a terminal; panics are lines of it like any other.
    /// A second one in the same process leaves the first one's lines where they go.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn of_process(config: &LogConfig) -> io::Result<Log> {
        let log = Log::start(io::stderr())?;
        let filter = EnvFilter::try_new(&config.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone());
        let is_terminal = io::stderr().is_terminal();
        let is_pretty = match config.format {
            LogFormat::Auto => is_terminal,
            LogFormat::Json => false,
            LogFormat::Pretty => true,
        };
        let started = match is_pretty {
            true => lines.with_ansi(is_terminal).compact().try_init(),
            false => lines.json().flatten_event(true).with_current_span(false).try_init(),
        };
        if started.is_ok() {
            let log = log.clone();
            std::panic::set_hook(Box::new(move |panic| log.panicked(panic)));
        }
        Ok(log)
    }

    /// Hands in whole lines; they are dropped where there is no room.
    pub fn push(&self, lines: &[u8]) {
        let mut waiting = self.shared.waiting.lock();
        if waiting.lines.len() + lines.len() > WAITING_BYTES_MAX && !self.is_writer() {
            waiting.untold += 1;
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(lines);
        self.shared.arrived.notify_one();
    }

    /// How many lines were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.shared.waiting.lock().dropped
    }

    /// Waits until what was handed in is written, or somebody would have to wait for too long.
    pub fn flush(&self) {
        self.flush_within(FLUSH_MAX);
    }

    fn flush_within(&self, limit: Duration) {
        if self.is_writer() {
            return;
        }
        let mut waiting = self.shared.waiting.lock();
        let is_under_way = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        self.shared.written.wait_while_for(&mut waiting, is_under_way, limit);
    }

    /// Ends the thread after what was handed in.
    pub fn close(&self) {
        self.shared.waiting.lock().is_closed = true;
        self.shared.arrived.notify_one();
    }

    fn is_writer(&self) -> bool {
        self.shared.writer.get() == Some(&thread::current().id())
    }

    fn panicked(&self, panic: &PanicHookInfo<'_>) {
        let reason = panic.payload_as_str().unwrap_or("a panic without words");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        // Captured only where the environment asks for it.
        let trace = Backtrace::capture();
        let trace = (trace.status() == BacktraceStatus::Captured).then(|| trace.to_string());
        tracing::error!(errorReason = reason, place, backtrace = trace, "A thread panicked");
        self.flush_within(PANIC_FLUSH_MAX);
    }

    fn write_all_that_comes(&self, mut out: impl io::Write) {
        // Handed in by `start` as well; whichever comes first.
        self.shared.writer.get_or_init(|| thread::current().id());
        while let Some((lines, dropped)) = self.next() {
            // Whoever read them is gone, and there is nobody else to tell.
            drop(out.write_all(&lines).and_then(|()| out.flush()));
            if dropped > 0 {
                tracing::warn!(lines = dropped, "Log lines were dropped: whoever reads the log was too slow");
            }
        }
    }

    /// What waits, and how many were dropped for it; `None` when nothing more will come.
    fn next(&self) -> Option<(Vec<u8>, u64)> {
        let mut waiting = self.shared.waiting.lock();
        waiting.is_writing = false;
        if waiting.lines.is_empty() {
            self.shared.written.notify_all();
        }
        self.shared.arrived.wait_while(&mut waiting, |waiting| waiting.lines.is_empty() && !waiting.is_closed);
        waiting.is_writing = !waiting.lines.is_empty();
        waiting.is_writing.then(|| (mem::take(&mut waiting.lines), mem::take(&mut waiting.untold)))
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = LogLines<'a>;
    fn make_writer(&'a self) -> LogLines<'a> {
        LogLines(self)
    }
}

/// Takes whole lines; the subscriber gives each in one piece.
pub struct LogLines<'a>(&'a Log);

impl io::Write for LogLines<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the last words of a process to stderr; whoever does not read them within a limit goes without.
pub fn last_words(text: String) {
    let (told, heard) = mpsc::sync_channel(1);
    let telling = thread::Builder::new().name("last words".into()).spawn(move || {
        // Both fail only where nobody listens any more.
        drop(writeln!(io::stderr(), "{text}"));
        let _ = told.send(());
    });
    if telling.is_ok() {
        // Out of time is the end as well.
        let _ = heard.recv_timeout(FLUSH_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output that takes a write only when the test asks for it, like a full pipe.
    struct Pipe(SyncSender<Vec<u8>>);

    impl io::Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A log whose first line stands in the output until the test takes it.
    fn stuck() -> (Log, Receiver<Vec<u8>>) {
        let (sender, taken) = sync_channel(0);
        let log = Log::start(Pipe(sender)).unwrap();
        log.push(b"first\n");
        while !log.shared.waiting.lock().is_writing {
            thread::yield_now();
        }
        (log, taken)
    }

    /// A full pipe stopped whoever logged next: health, the API and the end of the process.
    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted_and_stop_nobody() {
        let (log, taken) = stuck();
        let line = [b'x'; 1024];
        for _ in 0..WAITING_BYTES_MAX / line.len() + 7 {
            log.push(&line);
        }
        assert_eq!(log.dropped(), 7);
        assert_eq!(log.shared.waiting.lock().lines.len(), WAITING_BYTES_MAX);
        log.flush_within(Duration::ZERO);
        assert_eq!(taken.recv().unwrap(), b"first\n");
        assert_eq!(taken.recv().unwrap().len(), WAITING_BYTES_MAX, "what waited is written in one piece");
        log.push(b"last\n");
        log.close();
        let last: Vec<Vec<u8>> = taken.iter().collect();
        assert_eq!(last, [b"last\n"], "there is room again, and the thread ends after it");
    }

    #[test]
    fn a_flush_waits_for_what_is_being_written() {
        let (log, taken) = stuck();
        let reader = thread::spawn(move || taken.iter().flatten().collect::<Vec<u8>>());
        log.push(b"second\n");
        log.flush_within(Duration::from_secs(60));
        let waiting = log.shared.waiting.lock();
        assert!(waiting.lines.is_empty() && !waiting.is_writing);
        drop(waiting);
        log.close();
        assert_eq!(reader.join().unwrap(), b"first\nsecond\n");
    }
}
