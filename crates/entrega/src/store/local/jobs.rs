//! The verbs of a job's way: submit, claim, settle, and an operator's cancel and unblock.
//! Invariant: the machine decides, then the records follow in the writer's order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState};
use entrega_core::lane::{Claimed, Explanation, Next, NotRemoved};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_ledger::{Key, LedgerError, Unit};
use tokio::sync::{Notify, oneshot};

use super::command::{Command, Prepared};
use super::read_ahead;
use super::reading::{ReadError, patiently};
use super::records::{self, Ended, Kept, Live, id_key};
use super::sweep::Chosen;
use super::tables::{JOBS, LIVE, REGISTRY};
use super::{LaneCell, LocalStore, SUBMITS_WAITING_MAX, Shared, UNSETTLED_MAX};
use crate::store::{
    ChangeError, ClaimBatch, ClaimedJob, Held, JobFilter, JobStore, JobView, KeptAnswer, LaneView, NewEntry, Once,
    Page, Paged, Settlement, StoreError, StoreHealth, Submitted, Swept, Ticket,
};

#[async_trait]
impl JobStore for LocalStore {
    async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        let shared = &self.shared;
        if shared.is_full.load(Ordering::Relaxed) {
            shared.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(shared.disk_full());
        }
        let prepared = jobs.into_iter().map(|NewEntry { job, once, answer }| {
            let prepared = prepare(shared, &job, &once)?;
            Ok::<_, StoreError>(match answer {
                Some(answer) => prepared.done(job, answer),
                None => prepared,
            })
        });
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let room = prepared.len().min(SUBMITS_WAITING_MAX) as u32;
        let permit = shared.submit_permits.clone().acquire_many_owned(room).await.map_err(|_| shared.stopped())?;
        let (reply, durable) = oneshot::channel();
        shared.send(Command::Submit { jobs: prepared, reply, permit })?;
        durable.await.map_err(|_| shared.stopped())
    }

    async fn job_once(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError> {
        let kept = records::load_kept(&*self.shared.ledger, &records::once_key(tenant, key)).await?;
        let now = self.shared.clock.now();
        Ok(kept.filter(|kept| kept.expires > now).map(|kept| kept.id))
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        let lane = self.shared.lane(lane)?;
        if self.shared.is_failed() {
            return Err(self.shared.stopped());
        }
        let claims = loop {
            {
                let mut machine = lane.machine.lock();
                if !self.shared.is_released.load(Ordering::SeqCst) {
                    break machine.claim(self.shared.clock.now(), max);
                }
            }
            self.shared.forget_starts().await?;
        };
        let mut jobs = Vec::with_capacity(claims.jobs.len());
        for claimed in claims.jobs {
            let ahead = lane.read_ahead.lock().take(claimed.id);
            if let Some(job) = ahead.filter(|_| !has_history(lane, &claimed)) {
                jobs.push(claimed_job(&claimed, job, Vec::new()));
                continue;
            }
            match self.shared.load_claimed(lane, &claimed).await {
                Ok(job) => jobs.push(job),
                Err(ReadError::Ledger(LedgerError::Unclear { .. })) => lane.give_back(&self.shared, &claimed).await,
                Err(error) => self.shared.set_aside(lane, &claimed, &error).await?,
            }
        }
        if !claims.expired.is_empty() {
            let expired = claims.expired.iter().map(|left| left.id).collect();
            self.shared.send(Command::Expire { lane: lane.clone(), expired })?;
        }
        Ok(ClaimBatch { jobs, expired: claims.expired, wake_at: claims.wake_at })
    }

    async fn settle(&self, lane: &LaneName, mut settlements: Vec<Settlement>) -> Result<(), StoreError> {
        while !settlements.is_empty() {
            let rest = settlements.split_off(settlements.len().min(UNSETTLED_MAX));
            self.shared.settle(lane, settlements).await?;
            settlements = rest;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.shared.settled().await
    }

    async fn release(&self) -> Result<(), StoreError> {
        // Nobody else can have what was claimed; it is queued again at the next start.
        self.shared.keep_starts().await
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        self.shared.lane(lane).map(|lane| lane.wake.clone())
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let view = shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
        let wrong = |hint| Err(ChangeError::WrongState { state: view.state, hint });
        if !view.state.may_become(JobState::Cancelled) {
            return match view.state {
                JobState::Running => wrong("an attempt is under way; try again when it has ended"),
                _ => wrong("it has ended"),
            };
        }
        let lane = shared.lane(&view.lane)?;
        if view.state == JobState::Blocked {
            // The machine has let go of it; only its record is left.
            lane.blocked.fetch_sub(1, Ordering::Relaxed);
        } else if let Err(NotRemoved::Running | NotRemoved::Unknown) = lane.machine.lock().remove(id) {
            return wrong("it is being attempted or has just ended");
        }
        let end = shared.dropped(lane, id, JobState::Cancelled, reason, &[]).await.map_err(StoreError::from)?;
        shared.change(Some(lane), end, vec![id]).await?;
        shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let live = shared.find_live(id).await.map_err(StoreError::from)?;
        let live = live.filter(|live| live.blocked.is_some());
        let Some(live) = live else {
            let view = shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
            return Err(ChangeError::WrongState { state: view.state, hint: "only a blocked job can be unblocked" });
        };
        let lane = shared.lane(&live.lane)?;
        let now = shared.clock.now();
        let expires = lane.policy.expires_unblocked(now, live.expires);
        let live = Live { blocked: None, attempt: 0, due: now, expires, unblocked: true, ..live };
        let mut change = Unit::default();
        change.put(LIVE, lane.live_key(id), records::encode(&live));
        let job = shared.readable(&id, records::load_job(&*shared.ledger, id).await).map_err(StoreError::from)?;
        if let Some(job) = job.flatten() {
            // A retry writes its index entry from the job.
            let job = Job { expires_at: expires.finite(), ..job };
            change.put(JOBS, id_key(id), records::encode(&job));
        }
        let unblocked = lane.clone();
        let then = move |shared: &Shared| {
            unblocked.blocked.fetch_sub(1, Ordering::Relaxed);
            unblocked.has_unblocked.store(true, Ordering::Relaxed);
            unblocked.put_back(shared, id, &live);
        };
        Ok(shared.change_then(Some(lane), change, then).await?)
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError> {
        Ok(self.shared.view(id).await?)
    }

    async fn ended(&self, id: JobId) -> Result<(), StoreError> {
        let end = self.shared.waiters.wait(id);
        let rests = |state: JobState| state.is_end() || state == JobState::Blocked;
        let is_waiting =
            async || Ok::<_, StoreError>(self.shared.view(id).await?.is_some_and(|view| !rests(view.state)));
        if !is_waiting().await? {
            return Ok(());
        }
        if !self.shared.is_failed() {
            end.told().await;
        }
        match self.shared.is_failed() && is_waiting().await? {
            true => Err(self.shared.stopped()),
            false => Ok(()),
        }
    }

    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        Ok(self.shared.list(filter, page).await?)
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        let Some(live) = self.shared.find_live(id).await? else { return Ok(None) };
        let now = self.shared.clock.now();
        Ok(self.shared.lane(&live.lane)?.machine.lock().explain(now, id))
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        let now = self.shared.clock.now();
        let dead = self.shared.dead.lock();
        let views = self.shared.lanes.values().map(|lane| {
            let machine = lane.machine.lock();
            LaneView {
                name: lane.name.clone(),
                policy: lane.policy.clone(),
                sizes: machine.sizes(),
                blocked: lane.blocked.load(Ordering::Relaxed),
                dead_letters: dead.open_in(&lane.name),
                paused: machine.is_paused(),
                hold: machine.held_by(now),
                breaker: machine.breaker(now),
                cadence: machine.cadence(),
                oldest: machine.oldest(),
            }
        });
        Ok(views.collect())
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        // Of two who pause and resume at once, the last one is the last in memory and in the ledger.
        let _one_at_a_time = self.shared.changes.lock().await;
        let lane = self.shared.lane(lane)?;
        let key = Key::Text(format!("paused/{}", lane.name));
        let mut change = Unit::default();
        match paused {
            true => change.put(REGISTRY, key, &b"true"[..]),
            false => change.remove(REGISTRY, key),
        }
        {
            let mut machine = lane.machine.lock();
            if paused { machine.pause() } else { machine.resume() }
        }
        self.shared.change(Some(lane), change, Vec::new()).await?;
        lane.wake.notify_one();
        Ok(())
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let Chosen { change, swept, remembered } = self.shared.choose_sweep().await?;
        if !remembered.is_empty() {
            self.shared.send(Command::Forget { remembered })?;
        }
        if !change.ops.is_empty() {
            self.shared.change(None, change, Vec::new()).await?;
        }
        Ok(swept)
    }

    fn health(&self) -> StoreHealth {
        let is_full = self.shared.is_full.load(Ordering::Relaxed);
        let ledger = self.shared.ledger.health();
        StoreHealth {
            kind: ledger.kind,
            durability: ledger.durability,
            failure: self.shared.failure.borrow().clone(),
            refuses: is_full.then(|| self.shared.disk_full().to_string()),
            unreadable: self.shared.unreadable.load(Ordering::Relaxed),
            memory: None,
            stale_settlements: 0,
            rejected_writes: self.shared.rejected.load(Ordering::Relaxed),
        }
    }

    async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the store is gone".into(),
        }
    }
}

pub(super) fn prepare(shared: &Shared, job: &Job, once: &[Once]) -> Result<Prepared, StoreError> {
    let live = Live::of(job);
    let remembered = |once: &Once| {
        let kept = Kept { request: once.request, id: job.id, expires: once.expires, stands: None };
        (records::once_key(&job.tenant, &once.key), kept)
    };
    Ok(Prepared {
        lane: shared.lane(&job.lane)?.clone(),
        waiting: live.waiting(job.id),
        live: Some(records::encode(&live)),
        job: records::encode_job(job),
        once: once.iter().map(remembered).collect(),
    })
}

impl Prepared {
    /// The same for a job whose answer is known.
    fn done(self, job: Job, answer: KeptAnswer) -> Prepared {
        Prepared { job: records::encode_ended(&Ended::answered(job, answer)), live: None, ..self }
    }
}

impl LaneCell {
    /// Puts a job back that the lane had accepted before; its record is durable.
    pub(super) fn put_back(&self, shared: &Shared, id: JobId, live: &Live) {
        self.read_ahead.lock().forget(id);
        self.machine.lock().restore(shared.clock.now(), &live.waiting(id));
        self.wake.notify_one();
    }

    /// Puts a claimed job back whose record could not be read just now. It comes again, with the same number.
    async fn give_back(&self, shared: &Shared, claimed: &Claimed) {
        let now = shared.clock.now();
        let at = now + READ_AGAIN_AFTER;
        self.machine.lock().give_back(now, claimed.ticket, at);
        self.wake.notify_one();
    }
}

/// Whether there may be earlier attempts to read.
fn has_history(lane: &LaneCell, claimed: &Claimed) -> bool {
    claimed.attempt > 1 || lane.has_unblocked.load(Ordering::Relaxed)
}

fn claimed_job(claimed: &Claimed, job: Job, history: Vec<Attempt>) -> ClaimedJob {
    ClaimedJob {
        ticket: Ticket(Held::Place(claimed.ticket)),
        job,
        attempt: claimed.attempt,
        generation: claimed.generation,
        history,
        expires: claimed.expires,
        past_breaker: claimed.past_breaker,
    }
}

/// How long a job waits whose record could not be read just now.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Shared {
    async fn load_claimed(&self, lane: &LaneCell, claimed: &Claimed) -> Result<ClaimedJob, ReadError> {
        let missing = || ReadError::Record { table: JOBS.name, reason: "there is no record".into() };
        // Neighbours of a retry were claimed long ago: reading ahead pays for first attempts only.
        let job = match claimed.attempt {
            1 => read_ahead::read(&lane.read_ahead, &*self.ledger, claimed.id).await?,
            _ => records::load_job(&*self.ledger, claimed.id).await?,
        };
        let job = job.ok_or_else(missing)?;
        let history = match has_history(lane, claimed) {
            true => records::load_history(&*self.ledger, claimed.id).await?,
            false => Vec::new(),
        };
        Ok(claimed_job(claimed, job, history))
    }

    /// A job whose record cannot be read is blocked with the reason: nothing of it is thrown away.
    async fn set_aside(&self, lane: &Arc<LaneCell>, claimed: &Claimed, error: &ReadError) -> Result<(), StoreError> {
        self.note_unreadable(&claimed.id.to_string(), error);
        let now = self.clock.now();
        lane.machine.lock().settle(now, claimed.ticket, Next::Leave, Lesson::Nothing, Duration::ZERO);
        lane.blocked.fetch_add(1, Ordering::Relaxed);
        let live_key = lane.live_key(claimed.id);
        let live = patiently(|| records::load_live(&*self.ledger, live_key.clone())).await?;
        let Some(live) = live else { return Ok(()) };
        let mut change = Unit::default();
        change.put(LIVE, live_key, records::encode(&Live { blocked: Some(error.to_string()), ..live }));
        let (reply, _) = oneshot::channel();
        let ended = vec![claimed.id];
        self.send(Command::Change { lane: Some(lane.clone()), change, ended, then: None, reply })
    }
}
