//! The writer's queue: commands in order, and when to wake the writer.
//! Invariant: a command somebody waits for wakes the writer at once; settlements, which nobody waits for, let it sleep
//! until there are enough of them or their moment has passed. Each wake-up costs more than writing a settlement.
//! Never: grows past its limit, or takes a command after it was closed.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::command::Command;

/// How long settlements may gather.
const GATHER: Duration = Duration::from_millis(2);
/// So many changes are worth a sync of their own.
const GATHER_OPS: usize = 512;

#[derive(Default)]
struct Waiting {
    commands: Vec<Command>,
    ops: usize,
    /// Whether somebody waits for one of them.
    is_awaited: bool,
    /// Whether the writer sleeps because there is nothing at all.
    is_idle: bool,
    is_closed: bool,
}

impl Waiting {
    fn is_worth_a_write(&self) -> bool {
        self.is_awaited || self.ops >= GATHER_OPS || self.is_closed
    }
}

/// The queue is closed or full.
#[derive(Debug)]
pub(super) struct NotTaken;

/// Commands for the writer.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    bell: Notify,
    limit: usize,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Queue {
        Queue { waiting: Mutex::default(), bell: Notify::new(), limit }
    }

    /// Adds a command, unless the queue is closed or full; then whoever waits for it learns that it was not written.
    pub(super) fn push(&self, command: Command) -> Result<(), NotTaken> {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed || waiting.commands.len() >= self.limit {
            return Err(NotTaken);
        }
        let was_worth = waiting.is_worth_a_write();
        waiting.ops += command.ops();
        waiting.is_awaited |= command.is_awaited();
        waiting.commands.push(command);
        // The writer sleeps only while there is nothing, or nothing worth a write.
        let rings = std::mem::take(&mut waiting.is_idle) || (waiting.is_worth_a_write() && !was_worth);
        drop(waiting);
        if rings {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Waits for something to write and takes all of it. Empty once closed.
    pub(super) async fn take(&self) -> Vec<Command> {
        while self.is_idle() {
            self.bell.notified().await;
        }
        if !self.waiting.lock().is_worth_a_write() {
            // What has gathered until then is written.
            drop(tokio::time::timeout(GATHER, self.worth_a_write()).await);
        }
        let mut waiting = self.waiting.lock();
        waiting.ops = 0;
        waiting.is_awaited = false;
        std::mem::take(&mut waiting.commands)
    }

    /// Whether there is nothing at all; whoever comes then rings.
    fn is_idle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_idle = waiting.commands.is_empty() && !waiting.is_closed;
        waiting.is_idle
    }

    async fn worth_a_write(&self) {
        while !self.waiting.lock().is_worth_a_write() {
            self.bell.notified().await;
        }
    }

    /// Takes nothing more; whoever waits for a command that is still in it learns that it was not written.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let unwritten = std::mem::take(&mut waiting.commands);
        drop(waiting);
        drop(unwritten);
        self.bell.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use entrega_core::time::Time;
    use entrega_ledger::{Shard, Token};
    use tokio::sync::oneshot;

    use super::super::command::{Change, NotWritten};
    use super::super::hold::Hold;
    use super::*;
    use crate::store::Lease;

    fn written() -> Change {
        let token = Token { epoch: 1, node: 1 };
        let hold = Arc::new(Hold::new(Shard::new("node"), token, 0, Lease::forever(), Time::ZERO));
        Change { hold, lane: None, units: Vec::new(), ended: Vec::new(), then: None }
    }

    /// One that nobody waits for.
    fn forgetting() -> Command {
        Command::Change { change: written(), reply: None }
    }

    fn change() -> (Command, oneshot::Receiver<Result<Vec<bool>, NotWritten>>) {
        let (reply, durable) = oneshot::channel();
        (Command::Change { change: written(), reply: Some(reply) }, durable)
    }

    #[tokio::test]
    async fn whatever_waits_is_taken_together_in_order() {
        let queue = Queue::new(10);
        assert!(queue.push(forgetting()).is_ok() && queue.push(change().0).is_ok());
        let taken = queue.take().await;
        assert!(matches!(taken[..], [Command::Change { reply: None, .. }, Command::Change { reply: Some(_), .. }]));
    }

    #[tokio::test]
    async fn settlements_alone_are_taken_after_a_moment() {
        let queue = Queue::new(10);
        assert!(queue.push(forgetting()).is_ok());
        assert_eq!(queue.take().await.len(), 1);
    }

    #[tokio::test]
    async fn a_full_or_closed_queue_takes_no_command() {
        let queue = Queue::new(1);
        let (waiting, durable) = change();
        assert!(queue.push(waiting).is_ok());
        assert!(queue.push(forgetting()).is_err());
        queue.close();
        assert!(durable.await.is_err(), "its caller learns that it was not written");
        assert!(queue.push(forgetting()).is_err());
        assert!(queue.take().await.is_empty());
    }

    #[tokio::test]
    async fn a_sleeping_writer_is_woken() {
        let queue = Arc::new(Queue::new(10));
        let writer = {
            let queue = queue.clone();
            tokio::spawn(async move { queue.take().await.len() })
        };
        tokio::task::yield_now().await;
        assert!(queue.push(change().0).is_ok());
        assert_eq!(writer.await.unwrap(), 1);
    }
}
