//! Replays of many dead letters: which they cover, and how far they are.
//! Invariant: what a caller can have kept here is small and little: a filter's texts are short, a tenant has few runs under
//! way, and those that ended leave.
//! Never: knows where they are kept.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use super::StoreError;

/// Characters of a failure code, and of a text, that a filter may ask for.
pub const FILTER_CODE_CHARS_MAX: usize = 128;
/// The same of a text.
pub const FILTER_TEXT_CHARS_MAX: usize = 256;
/// Replays of one tenant that may be under way. Each looks through the dead letters ten times a second.
pub const REPLAYS_RUNNING_MAX: usize = 5;
/// Replays of one tenant that are kept, those under way included.
pub const REPLAYS_KEPT_MAX: usize = 50;
/// How long a replay that ended is kept, from when it was asked for: as long as most dead letters are.
pub const REPLAYS_KEPT_FOR: Duration = Duration::from_hours(7 * 24);

/// Which dead letters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// Of this lane.
    pub lane: Option<LaneName>,
    /// Of this tenant.
    pub tenant: Option<TenantName>,
    /// With this failure code.
    pub code: Option<String>,
    /// With this status.
    pub status: Option<DeadLetterStatus>,
    /// Dead for at least this long, in seconds.
    pub older_than_seconds: Option<u64>,
    /// With this text in the reason.
    pub text: Option<String>,
    /// Dead before this moment; set by a replay, so that it never meets its own failures again.
    #[serde(skip)]
    pub before: Option<Time>,
    /// Oldest first, as a replay wants them; people want the newest first.
    #[serde(skip)]
    pub oldest_first: bool,
}

/// A text of a filter that is too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must have at most {chars_max} characters; it has {chars}")]
pub struct BadFilter {
    /// Which.
    pub field: &'static str,
    chars: usize,
    chars_max: usize,
}

impl DeadLetterFilter {
    /// Refuses what would take more room than it is worth.
    pub fn check(&self) -> Result<(), BadFilter> {
        let texts = [("code", &self.code, FILTER_CODE_CHARS_MAX), ("text", &self.text, FILTER_TEXT_CHARS_MAX)];
        for (field, text, chars_max) in texts {
            let chars = text.as_ref().map_or(0, |text| text.chars().count());
            if chars > chars_max {
                return Err(BadFilter { field, chars, chars_max });
            }
        }
        Ok(())
    }
}

/// The place of a dead letter in its listing.
pub type DeadLetterCursor = (Time, JobId);

/// How a replay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayStatus {
    /// Under way; goes on after a restart.
    Running,
    /// Every entry that fitted was sent on its way.
    Finished,
}

/// A replay of many dead letters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayRun {
    /// Names it.
    #[serde(rename = "replayId")]
    pub id: String,
    /// Which dead letters.
    pub filter: DeadLetterFilter,
    /// Its pace.
    pub rate_per_sec: u32,
    /// When it was asked for; entries younger than this are not its business.
    pub created_at: Time,
    /// How it stands.
    pub status: ReplayStatus,
    /// How many fitted when it was asked for.
    pub total: u64,
    /// Sent on their way.
    pub replayed: u64,
    /// Not replayable (replayed too often, or changed in between).
    pub skipped: u64,
    /// The last entry looked at.
    pub cursor: Option<DeadLetterCursor>,
    /// Entries that are being sent, written down before the first of them is: whoever goes on after a crash finds out which
    /// were, and counts each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sending: Vec<DeadLetterCursor>,
}

impl ReplayRun {
    /// As callers see it.
    pub fn shown(self) -> ReplayRun {
        ReplayRun { sending: Vec::new(), ..self }
    }
}

/// A replay that was not begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginReplayError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tenant has as many under way as it may.
    #[error("{REPLAYS_RUNNING_MAX} replays are under way already; wait until one has finished")]
    TooMany,
}

/// All replays, by id: ids of later ones are greater.
#[derive(Debug, Default)]
pub(super) struct Replays(BTreeMap<String, ReplayRun>);

impl Replays {
    pub(super) fn put(&mut self, run: ReplayRun) {
        self.0.insert(run.id.clone(), run);
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(super) fn get(&self, id: &str) -> Option<&ReplayRun> {
        self.0.get(id)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &ReplayRun> {
        self.0.values().filter(|run| run.status == ReplayStatus::Running)
    }

    /// Those of a tenant, or all, newest first, that come after `after`, which may be gone.
    pub(super) fn newest<'a>(
        &'a self,
        tenant: Option<&'a TenantName>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a ReplayRun> {
        let before = after.map_or(Bound::Unbounded, Bound::Excluded);
        let older = self.0.range::<str, _>((Bound::Unbounded, before));
        older.rev().map(|(_, run)| run).filter(move |run| tenant.is_none() || run.filter.tenant.as_ref() == tenant)
    }

    /// Which must leave so that one more of this tenant can be kept; `None` if too many are under way. Those that cover
    /// every tenant count together.
    pub(super) fn room_for(&self, tenant: Option<&TenantName>) -> Option<Vec<String>> {
        let own: Vec<&ReplayRun> = self.0.values().filter(|run| run.filter.tenant.as_ref() == tenant).collect();
        let running = own.iter().filter(|run| run.status == ReplayStatus::Running).count();
        let over = (own.len() + 1).saturating_sub(REPLAYS_KEPT_MAX);
        let ended = own.iter().filter(|run| run.status != ReplayStatus::Running);
        (running < REPLAYS_RUNNING_MAX).then(|| ended.take(over).map(|run| run.id.clone()).collect())
    }

    /// Those that ended and were kept long enough at `now`.
    pub(super) fn expired(&self, now: Time) -> Vec<String> {
        let ended = self.0.values().filter(|run| run.status != ReplayStatus::Running);
        ended.filter(|run| run.created_at + REPLAYS_KEPT_FOR <= now).map(|run| run.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: usize, tenant: &str, status: ReplayStatus) -> ReplayRun {
        let tenant = TenantName::new(tenant).ok();
        ReplayRun {
            id: format!("replay_{id:04}"),
            filter: DeadLetterFilter { tenant, ..DeadLetterFilter::default() },
            rate_per_sec: 1,
            created_at: Time::from_millis(id as u64),
            status,
            total: 0,
            replayed: 0,
            skipped: 0,
            cursor: None,
            sending: Vec::new(),
        }
    }

    /// 300 replays of one tenant with long texts stayed in memory and on disk for good.
    #[test]
    fn the_oldest_that_ended_leave_for_a_new_one_and_others_are_left_alone() {
        let mut replays = Replays::default();
        for id in 0..REPLAYS_KEPT_MAX {
            replays.put(run(id, "acme", if id == 0 { ReplayStatus::Running } else { ReplayStatus::Finished }));
        }
        replays.put(run(900, "other", ReplayStatus::Finished));
        let (acme, other) = (TenantName::new("acme").ok(), TenantName::new("other").ok());
        assert_eq!(replays.room_for(acme.as_ref()), Some(vec!["replay_0001".to_owned()]));
        assert_eq!(replays.room_for(other.as_ref()), Some(Vec::new()));
        for id in 1..REPLAYS_RUNNING_MAX {
            replays.put(run(id, "acme", ReplayStatus::Running));
        }
        assert_eq!(replays.room_for(acme.as_ref()), None, "too many are under way");
        assert_eq!(replays.room_for(None), Some(Vec::new()));
    }

    #[test]
    fn a_listing_goes_on_where_its_cursor_pointed_though_that_run_is_gone() {
        let mut replays = Replays::default();
        (0..6).for_each(|id| replays.put(run(id, if id % 2 == 0 { "acme" } else { "other" }, ReplayStatus::Finished)));
        replays.remove("replay_0003");
        let ids = |tenant: Option<&TenantName>, after| -> Vec<String> {
            replays.newest(tenant, after).map(|run| run.id.clone()).collect()
        };
        assert_eq!(ids(None, Some("replay_0003")), ["replay_0002", "replay_0001", "replay_0000"]);
        assert_eq!(ids(TenantName::new("acme").ok().as_ref(), None), ["replay_0004", "replay_0002", "replay_0000"]);
    }

    #[test]
    fn a_filter_with_a_long_text_is_refused_and_names_it() {
        let long = |chars: usize| Some("é".repeat(chars));
        for (filter, field) in [
            (DeadLetterFilter { text: long(FILTER_TEXT_CHARS_MAX), ..DeadLetterFilter::default() }, None),
            (DeadLetterFilter { text: long(FILTER_TEXT_CHARS_MAX + 1), ..DeadLetterFilter::default() }, Some("text")),
            (DeadLetterFilter { code: long(FILTER_CODE_CHARS_MAX + 1), ..DeadLetterFilter::default() }, Some("code")),
        ] {
            assert_eq!(filter.check().err().map(|bad| bad.field), field);
        }
    }
}
