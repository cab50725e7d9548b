//! A log that is kept in memory, for tests of what it says and what it must not.

use std::io::Write;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// Hears nothing. While there is only one subscriber, whoever first comes by a line of code that logs decides whether it
/// logs, for all threads: a test beside, which hears nothing, would silence it.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| {
    let deaf = tracing_subscriber::fmt().with_writer(std::io::sink);
    Dispatch::new(deaf.with_max_level(tracing::Level::TRACE).finish())
});

/// Everything that was logged while it listened.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Listens until the guard is dropped, on this thread: a test that runs on one thread is heard whole.
    pub fn hear(&self) -> DefaultGuard {
        LazyLock::force(&SECOND);
        let subscriber = tracing_subscriber::fmt().json().with_writer(self.clone());
        tracing::subscriber::set_default(subscriber.with_max_level(tracing::Level::TRACE).finish())
    }

    /// What was heard, one JSON object a line.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}
