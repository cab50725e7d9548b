//! Owners: which lanes this node owns, where nodes share a ledger.
//! Invariant: an owner acts only while its lease lasts by its own clock, counted from before it showed that it lives; others
//! take a shard only after they saw nothing new of its owner for longer than that, over several answered looks. So an
//! outage of the ledger ages nobody, and no two nodes act for one lane.
//! Never: compares clocks of two machines.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use entrega_core::time::Time;
use entrega_ledger::{LedgerError, Owning, Shard, Token};

use super::cluster::{BEATS_IN_A_LEASE, Cluster, UNSURE_AFTER};
use super::draft::Part;
use super::hold::{HOUSE, Hold, own_alone};
use super::lanes::LaneEntry;
use super::reading::{ReadError, patiently};
use super::{Shared, figures, inbox, signals};
use crate::store::{Lease, StoreError};

impl Shared {
    /// Where nobody else can own anything: all of it is this node's.
    pub(super) async fn own_everything(self: &Arc<Self>) -> Result<(), ReadError> {
        let (node, now) = (self.options.node, self.clock.now());
        let house = own_alone(&*self.ledger, node, Shard::new(HOUSE), now).await?;
        *self.house.write() = Some(Arc::new(house));
        for lane in self.lanes.values() {
            let hold = own_alone(&*self.ledger, node, lane.shard.clone(), now).await?;
            let loaded = Box::pin(self.load_lane(lane, Arc::new(hold))).await?;
            lane.open(loaded);
        }
        Ok(())
    }

    /// Joins the nodes that share the ledger, and takes whatever is free.
    pub(super) async fn join_nodes(self: &Arc<Self>) -> Result<(), ReadError> {
        patiently(|| async { Ok(self.beat(true).await?) }).await?;
        tokio::spawn(signals::listen(self.clone()));
        tokio::spawn(signals::speak(self.clone()));
        // Before anything is loaded: what takes longer than a lease would be lost over it, and taken again, without end.
        tokio::spawn(keep_beating(self.clone()));
        patiently(|| async { Ok(self.look_at_all().await?) }).await?;
        tokio::spawn(keep_looking(self.clone()));
        tokio::spawn(figures::keep_showing(self.clone()));
        Ok(())
    }

    /// Shows that this node lives, and learns what it still owns.
    async fn beat(&self, is_first: bool) -> Result<(), LedgerError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let held: Vec<(Shard, Token)> =
            cluster.holds.lock().values().map(|hold| (hold.shard.clone(), hold.token)).collect();
        let asked_at = self.clock.now();
        let beats = self.ledger.beat(&held).await?;
        if let Some(time) = beats.time_us {
            self.clock.agree(Time::from_micros(time), asked_at, is_first);
        }
        let asked_at = if is_first { self.clock.now() } else { asked_at };
        if is_first {
            // By the clock of this machine, which may be ahead: what was known before it agreed with the others' is worth
            // nothing, least of all as the end of a lease.
            for moment in [&cluster.started_at, &*cluster.until, &cluster.answered_at] {
                moment.store(asked_at.as_micros(), Ordering::Relaxed);
            }
        }
        if !is_first && self.clock.now() >= cluster.lease_end() {
            self.catch_up_soon(cluster).await?;
        }
        // What is lost is left before the lease of the rest goes on: it is one for all.
        for ((shard, token), stands) in held.iter().zip(beats.standing) {
            if !stands {
                tracing::warn!(shard = %shard, "Another node owns this now; what was known of it is forgotten");
                self.leave(shard, *token);
            }
        }
        cluster.lease_until(asked_at + cluster.lease);
        Ok(())
    }

    /// After a lease was over: what operators changed meanwhile is heard before it goes on.
    async fn catch_up_soon(&self, cluster: &Cluster) -> Result<(), LedgerError> {
        let too_long = || LedgerError::Unclear { doing: "reading the registry", reason: "it took too long".into() };
        let soon = tokio::time::timeout(cluster.lease / UNSURE_AFTER, self.catch_up()).await;
        match soon.map_err(|_| too_long())? {
            // One record that cannot be read keeps nobody from going on.
            Ok(()) | Err(ReadError::Record { .. } | ReadError::Gaps { .. }) => Ok(()),
            Err(ReadError::Ledger(error)) => Err(error),
        }
    }

    /// Asks for every shard that this node does not own.
    async fn look_at_all(self: &Arc<Self>) -> Result<(), LedgerError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let house = Shard::new(HOUSE);
        let shards =
            std::iter::once((house, None)).chain(self.lanes.values().map(|lane| (lane.shard.clone(), Some(lane))));
        for (shard, lane) in shards {
            // What this node has just given up, others shall have.
            if self.is_released.load(Ordering::SeqCst) {
                return Ok(());
            }
            if cluster.holds.lock().contains_key(&shard) {
                continue;
            }
            let Some(hold) = self.ask_for(cluster, &shard).await? else { continue };
            if self.is_released.load(Ordering::SeqCst) {
                // It was given up while this was asked for.
                self.ledger.release(&shard, hold.token).await?;
                self.leave(&shard, hold.token);
                return Ok(());
            }
            match lane {
                None => {
                    // How far replays got is remembered by all nodes; a ledger that lost writes may know less.
                    self.catch_up_soon(cluster).await.inspect_err(|_| self.leave(&shard, hold.token))?;
                    *self.house.write() = Some(hold);
                }
                Some(lane) => self.take_over(lane, hold).await?,
            }
        }
        Ok(())
    }

    /// Takes a shard if it is free, or if its owner is gone.
    async fn ask_for(&self, cluster: &Cluster, shard: &Shard) -> Result<Option<Arc<Hold>>, LedgerError> {
        let node = self.options.node;
        let now = self.clock.now();
        if cluster.nodes.is_left_to_another(now, shard, node) {
            return Ok(None);
        }
        let mut seen = cluster.may_take(now, shard, node);
        let number = cluster.number(node);
        for _ in 0..2 {
            let owning = self.ledger.own(shard, number, seen).await?;
            cluster.answered_at.store(self.clock.now().as_micros(), Ordering::Relaxed);
            match owning {
                Owning::Owned { token, seq } => {
                    if let Some((gone, _)) = seen.filter(|(gone, _)| !cluster.is_mine(node, *gone)) {
                        cluster.take_overs.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(%shard, epoch = token.epoch, gone = format!("{:016x}", gone.node), "The owner is gone; this node takes over");
                    }
                    cluster.seen.lock().remove(shard);
                    let lease = Lease::until(self.clock.clone(), cluster.until.clone());
                    let hold = Arc::new(Hold::new(shard.clone(), token, seq, lease, self.clock.now()));
                    cluster.holds.lock().insert(shard.clone(), hold.clone());
                    return Ok(Some(hold));
                }
                // An ownership of this process that it has given up, or whose answer was lost.
                Owning::Held { token, beat } if cluster.is_mine(node, token) => seen = Some((token, beat)),
                Owning::Held { token, beat } => {
                    cluster.note(self.clock.now(), shard, token, beat);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Loads a lane, and opens it.
    async fn take_over(self: &Arc<Self>, lane: &Arc<LaneEntry>, hold: Arc<Hold>) -> Result<(), LedgerError> {
        let loaded = Box::pin(self.load_lane(lane, hold.clone())).await;
        match loaded {
            Ok(loaded) => {
                lane.open(loaded.clone());
                // What operators changed while it was loaded reached only lanes that were open.
                self.set_up(&loaded);
                if loaded.hold.lease.is_lost() {
                    // It was lost while it was loaded; nobody else closes it.
                    lane.leave(&hold);
                    return Ok(());
                }
                tokio::spawn(inbox::tend(self.clone(), lane.clone(), loaded));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(lane = %lane.name, errorReason = %error, "A lane could not be loaded; it is tried again");
                self.leave(&hold.shard, hold.token);
                match error {
                    ReadError::Ledger(error) => Err(error),
                    ReadError::Record { .. } | ReadError::Gaps { .. } => Ok(()),
                }
            }
        }
    }

    /// Forgets what is not this node's any more.
    pub(super) fn leave(&self, shard: &Shard, token: Token) {
        let Some(cluster) = &self.cluster else { return };
        let left = {
            let mut holds = cluster.holds.lock();
            match holds.get(shard).is_some_and(|hold| hold.token == token) {
                true => holds.remove(shard),
                false => None,
            }
        };
        let Some(hold) = left else { return };
        hold.lease.lose();
        self.house.write().take_if(|house| house.token == token && house.shard == *shard);
        let lane = self.lanes.values().find(|lane| lane.shard == *shard);
        lane.into_iter().for_each(|lane| lane.leave(&hold));
        cluster.look.notify_one();
    }

    /// A write was refused: somebody else owns this. Other lanes that the group speaks for remember what was not written, so
    /// their memory goes, too.
    pub(super) fn fenced(&self, shard: &Shard, part: &Part) -> Result<(), LedgerError> {
        let hold = part.hold_of(shard);
        let is_node = self.node.read().shard == *shard;
        match hold.filter(|_| self.cluster.is_some() && !is_node) {
            Some(hold) => {
                tracing::warn!(%shard, "Another node owns this now; what was known of it is forgotten");
                self.leave(shard, hold.token);
                part.holds.iter().for_each(|hold| self.leave(&hold.shard, hold.token));
                Ok(())
            }
            None => {
                let reason = format!("another process took '{shard}' over");
                Err(LedgerError::Broken { doing: "writing the store", reason })
            }
        }
    }

    /// Whether a shard is the one that this node writes what is no lane's under. No other node ever asks for it: a ledger
    /// that does not know its owner has lost that.
    pub(super) fn is_own_node(&self, shard: &Shard) -> bool {
        self.cluster.is_some() && self.node.read().shard == *shard
    }

    /// Whether this node goes by an ownership still, and has not given it up already.
    fn goes_by(&self, cluster: &Cluster, hold: &Hold) -> bool {
        let is_held = |held: &Arc<Hold>| held.shard == hold.shard && held.token == hold.token;
        is_held(&self.node.read()) || cluster.holds.lock().get(&hold.shard).is_some_and(is_held)
    }

    /// A write was refused: the ledger has lost some, up to this one, or that this node owns the shard at all. Whatever this
    /// node remembers may be lost, so it reads all of it again.
    pub(super) async fn rewound(&self, hold: &Hold, at: Option<u64>) -> Result<(), LedgerError> {
        if self.cluster.as_ref().is_some_and(|cluster| !self.goes_by(cluster, hold)) {
            return Ok(());
        }
        let (shard, written) = (&hold.shard, hold.written());
        let is_behind = at.is_none_or(|at| written > at);
        let at = at.unwrap_or(0);
        let Some(cluster) = self.cluster.as_ref().filter(|_| is_behind) else {
            let reason = format!("'{shard}' is at write {at}, not at {written}");
            return Err(LedgerError::Broken { doing: "writing the store", reason });
        };
        tracing::error!(%shard, missing = written - at, "The ledger has lost writes that it had acknowledged; everything is read again");
        self.keep_known_starts();
        let holds = cluster.holds();
        holds.iter().for_each(|hold| self.leave(&hold.shard, hold.token));
        let number = cluster.number(self.options.node);
        let node = Shard::new(&format!("node/{number:016x}"));
        let owned = own_alone(&*self.ledger, number, node, self.clock.now()).await;
        match owned {
            Ok(hold) => *self.node.write() = Arc::new(hold),
            Err(ReadError::Ledger(error)) => return Err(error),
            Err(ReadError::Record { .. } | ReadError::Gaps { .. }) => {}
        }
        Ok(())
    }

    /// Gives everything up that this node owns, for others to take at once.
    pub(super) async fn release_all(&self) -> Result<(), StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let holds = cluster.holds();
        // Nobody claims from here on; what is being written is written.
        for hold in &holds {
            hold.lease.lose();
        }
        self.settled().await?;
        self.hint_all(cluster, &holds).await;
        for hold in holds {
            self.ledger.release(&hold.shard, hold.token).await.map_err(ReadError::from)?;
            self.leave(&hold.shard, hold.token);
        }
        drop(self.ledger.signal("free").await);
        Ok(())
    }
}

/// Shows signs of life until the store ends.
async fn keep_beating(shared: Arc<Shared>) {
    let Some(cluster) = &shared.cluster else { return };
    let every = cluster.lease / BEATS_IN_A_LEASE;
    while !shared.stop.is_cancelled() {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            () = tokio::time::sleep(every) => {}
        }
        match shared.beat(false).await {
            Err(error @ LedgerError::Broken { .. }) => {
                shared.fail(error.to_string());
                break;
            }
            Err(error) => tracing::debug!(errorReason = %error, "The ledger did not answer a beat"),
            Ok(()) => {}
        }
    }
}

/// Looks at what others own. Loading what was taken must not keep anybody from showing signs of life.
async fn keep_looking(shared: Arc<Shared>) {
    let Some(cluster) = &shared.cluster else { return };
    let every = cluster.lease / BEATS_IN_A_LEASE;
    while !shared.stop.is_cancelled() && !shared.is_failed() {
        drop(tokio::time::timeout(every, cluster.look.notified()).await);
        match shared.look_at_all().await {
            Err(error @ LedgerError::Broken { .. }) => shared.fail(error.to_string()),
            Err(_) => cluster.note_silence(shared.clock.now()),
            Ok(()) => {}
        }
    }
}
