//! Bounds: the time that one input may take, the memory that some may, and panics wherever they happen.
//! Invariant: a panic on any thread counts, also one that somebody else caught.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use entrega_call::Clock;
use entrega_core::time::Time;
use parking_lot::{Mutex, MutexGuard};

use crate::corpus;

/// An input that takes longer hangs. Generous, because machines that test are busy.
const HANG: Duration = Duration::from_secs(10);
/// How often the watch looks.
const LOOK: Duration = Duration::from_millis(250);

/// When an input was begun, and the input.
type RequestState = (Time, Vec<u8>);

/// Looks after one run from a thread of its own.
pub(crate) struct Watch {
    clock: Clock,
    current: Arc<Mutex<Option<RequestState>>>,
}

impl Watch {
    /// It lives as long as the process.
    pub(crate) fn start(name: &'static str, clock: Clock) -> Watch {
        count_panics();
        let current: Arc<Mutex<Option<RequestState>>> = Arc::default();
        let (seen, watch_clock) = (current.clone(), clock.clone());
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                if let Some((begun, input)) = &*seen.lock()
                    && watch_clock.now().since(*begun) > HANG
                {
                    let path = corpus::keep(name, input);
                    eprintln!("{name} hangs; input: {:?}\nkept in {path}", String::from_utf8_lossy(input));
                    // A thread that hangs cannot be stopped, and the test must not wait for it.
                    std::process::exit(101);
                }
            }
        });
        Watch { clock, current }
    }

    pub(crate) fn begin(&self, input: &[u8]) {
        *self.current.lock() = Some((self.clock.now(), input.to_vec()));
    }

    pub(crate) fn end(&self) {
        *self.current.lock() = None;
    }
}

/// Memory and panics are those of the whole process, so one run at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

fn last_panic() -> &'static Mutex<Option<String>> {
    static LAST: OnceLock<Mutex<Option<String>>> = OnceLock::new();
    LAST.get_or_init(Mutex::default)
}

fn count_panics() {
    panics();
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        *last_panic().lock() = Some(info.to_string());
    }));
}

/// What the last panic since the last look said.
pub(crate) fn panics() -> Option<String> {
    last_panic().lock().take()
}

/// The memory of this process, as Linux tells it. Elsewhere it is zero, and nothing is bounded.
pub(crate) mod memory {
    /// Makes the peak begin anew; what is in use now.
    pub(crate) fn settle() -> u64 {
        // Where that is not allowed the peak is that of the whole run, which is a stricter judge.
        drop(std::fs::write("/proc/self/clear_refs", "5"));
        line("VmRSS:")
    }

    /// The most that was in use since.
    pub(crate) fn peak() -> u64 {
        line("VmHWM:")
    }

    fn line(name: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    }
}
