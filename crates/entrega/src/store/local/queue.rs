//! The writer's queue: commands in order, and when to wake the writer.
//! Invariant: a command somebody waits for wakes the writer at once; settlements, which nobody waits for, let it sleep
//! until there are enough of them or their moment has passed. Each wake-up costs more than writing a settlement.
//! Never: grows past its limit, or takes a command after it was closed.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::writer::Command;

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

/// Commands for the writer.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    bell: Condvar,
    limit: usize,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Queue {
        Queue { waiting: Mutex::default(), bell: Condvar::new(), limit }
    }

    /// Adds a command; gives it back when the queue is closed or full.
    pub(super) fn push(&self, command: Command) -> Result<(), Command> {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed || waiting.commands.len() >= self.limit {
            return Err(command);
        }
        let was_worth = waiting.is_worth_a_write();
        waiting.ops += command.ops();
        waiting.is_awaited |= command.is_awaited();
        waiting.commands.push(command);
        // The writer sleeps only while there is nothing, or nothing worth a write.
        let rings = waiting.is_idle || (waiting.is_worth_a_write() && !was_worth);
        drop(waiting);
        if rings {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Waits for something to write and takes all of it. Empty once closed.
    pub(super) fn take(&self) -> Vec<Command> {
        let mut waiting = self.waiting.lock();
        while waiting.commands.is_empty() && !waiting.is_closed {
            waiting.is_idle = true;
            self.bell.wait(&mut waiting);
            waiting.is_idle = false;
        }
        if !waiting.is_worth_a_write() {
            self.bell.wait_for(&mut waiting, GATHER);
        }
        waiting.ops = 0;
        waiting.is_awaited = false;
        std::mem::take(&mut waiting.commands)
    }

    /// Takes nothing more; whoever waits for a command that is still in it learns that it was not written.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let unwritten = std::mem::take(&mut waiting.commands);
        drop(waiting);
        drop(unwritten);
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;
    use crate::store::local::disk::Batch;

    fn settlement() -> Command {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Command::Settle { batch: Batch::default(), ended: Vec::new(), retries: Vec::new(), causes: Vec::new(), permit }
    }

    fn change() -> (Command, oneshot::Receiver<()>) {
        let (reply, durable) = oneshot::channel();
        (Command::Change { batch: Batch::default(), ended: Vec::new(), then: None, reply }, durable)
    }

    #[test]
    fn whatever_waits_is_taken_together_in_order() {
        let queue = Queue::new(10);
        assert!(queue.push(settlement()).is_ok() && queue.push(change().0).is_ok());
        let taken = queue.take();
        assert!(matches!(taken[..], [Command::Settle { .. }, Command::Change { .. }]));
    }

    #[test]
    fn settlements_alone_are_taken_after_a_moment() {
        let queue = Queue::new(10);
        assert!(queue.push(settlement()).is_ok());
        assert_eq!(queue.take().len(), 1);
    }

    #[test]
    fn a_full_or_closed_queue_gives_the_command_back() {
        let queue = Queue::new(1);
        let (waiting, durable) = change();
        assert!(queue.push(waiting).is_ok());
        assert!(queue.push(settlement()).is_err());
        queue.close();
        assert!(durable.blocking_recv().is_err(), "its caller learns that it was not written");
        assert!(queue.push(settlement()).is_err());
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_sleeping_writer_is_woken() {
        let queue = Arc::new(Queue::new(10));
        let writer = {
            let queue = queue.clone();
            std::thread::spawn(move || queue.take().len())
        };
        assert!(queue.push(change().0).is_ok());
        assert_eq!(writer.join().unwrap(), 1);
    }
}
