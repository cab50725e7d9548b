//! Waiting for what other processes do: asked again and again, and not for ever.

use std::time::Duration;

use entrega_call::Clock;

const LOOK_EVERY: Duration = Duration::from_millis(20);
const TEST_MAX: Duration = Duration::from_secs(60);

/// Asks until the answer is yes; fails with the last no.
pub async fn eventually<T>(limit: Duration, what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let clock = Clock::system();
    let start = clock.now();
    loop {
        let no = match ask().await {
            Ok(yes) => return yes,
            Err(no) => no,
        };
        let waited = clock.now().since(start);
        assert!(waited < limit, "not after {} ms: {what}; it stands so: {no}", waited.as_millis());
        // reason: other processes decide when they are done; they are asked, not told
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Runs a test for a minute at most.
pub async fn bounded<T>(test: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(TEST_MAX, Box::pin(test)).await;
    ended.unwrap_or_else(|_| panic!("the test still runs after {} s", TEST_MAX.as_secs()))
}
