//! The newest moment that a ledger knows, so that a clock which was set back between two processes is noticed.
//! Invariant: as long as anything waits, the moment is at most [`STAMP_EVERY`] and a sweep old.
//! Never: sets a clock; whoever opens the store does.

use std::ops::ControlFlow;
use std::time::Duration;

use entrega_core::time::Time;
use entrega_ledger::{Key, Ledger, Unit};

use super::reading::{From, ReadError, job_of, load, visit};
use super::tables::{JOBS, REGISTRY};
use super::{Shared, records};

const CLOCK_KEY: &str = "clock";
/// How often the moment is written down while jobs wait.
pub(super) const STAMP_EVERY: Duration = Duration::from_secs(10);

/// The newest moment in a ledger: when it was last stamped, or its youngest job was made.
pub async fn newest_moment(ledger: &dyn Ledger) -> Result<Option<Time>, ReadError> {
    let stamped = match load::<u64>(ledger, REGISTRY, Key::Text(CLOCK_KEY.into()), records::decode_json).await {
        // What cannot be read must not keep the store from being opened: the youngest job says nearly the same.
        Err(ReadError::Record { .. }) => None,
        stamped => stamped?,
    };
    let mut youngest = None;
    visit(ledger, JOBS, From::Down(None), 1, |key, _| {
        youngest = job_of(key).map(|id| id.made_at());
        ControlFlow::Break(())
    })
    .await?;
    Ok(stamped.map(Time::from_micros).max(youngest))
}

impl Shared {
    /// The moment it is, to be written down if it is time to and something waits that a clock could hold up.
    pub(super) fn stamp(&self, unit: &mut Unit) {
        let now = self.clock.now();
        let mut stamped_at = self.stamped_at.lock();
        let is_due = self.cluster.is_none() && stamped_at.is_none_or(|stamped| stamped + STAMP_EVERY <= now);
        if is_due
            && self.all_owned().any(|lane| {
                let sizes = lane.machine.lock().sizes();
                sizes.waiting() + sizes.running() > 0
            })
        {
            *stamped_at = Some(now);
            unit.put(REGISTRY, Key::Text(CLOCK_KEY.into()), records::encode_json(&now.as_micros()));
        }
    }
}
