//! The line before a gate: who asks it next.
//! Invariant: one task is at its head at a time. Tenants take turns; whoever waits for the same tenant goes in the order of
//! asking. A task that goes away leaves the line, and hands on the head if it had it.
//! Never: asks the gate; lets a tenant without a waiting task take a turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::locked;

/// Tasks that wait before a gate.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Somebody is at the head.
    is_taken: bool,
    /// The tenants that wait, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// The tasks of each, in the order of asking. No tenant here is without one.
    tasks: HashMap<Arc<str>, VecDeque<(u64, oneshot::Sender<()>)>>,
    arrivals: u64,
}

/// The head of the line; the next one has it when this is dropped.
#[derive(Debug)]
pub(super) struct Head<'a>(&'a Line);

/// A place in the line, given up when this is dropped.
struct Place<'a> {
    line: &'a Line,
    tenant: Arc<str>,
    number: u64,
    /// Nothing any more once it was heard.
    called: Option<oneshot::Receiver<()>>,
}

impl Line {
    /// Waits for the head of the line.
    pub(super) async fn enter(&self, tenant: &str) -> Head<'_> {
        let mut place = {
            let mut waiting = locked(&self.waiting);
            if !waiting.is_taken {
                waiting.is_taken = true;
                return Head(self);
            }
            let (number, called) = waiting.add(tenant);
            Place { line: self, tenant: tenant.into(), number, called: Some(called) }
        };
        if let Some(called) = &mut place.called {
            // The line drops nobody whom it has not called, except those who gave up their place.
            let _ = called.await;
        }
        place.called = None;
        Head(self)
    }

    fn call_next(&self) {
        let mut waiting = locked(&self.waiting);
        while let Some(next) = waiting.next() {
            // Whoever goes away at this moment finds out that it was called, or cannot be called any more.
            if next.send(()).is_ok() {
                return;
            }
        }
        waiting.is_taken = false;
    }
}

impl Waiting {
    fn add(&mut self, tenant: &str) -> (u64, oneshot::Receiver<()>) {
        self.arrivals += 1;
        let (caller, called) = oneshot::channel();
        match self.tasks.get_mut(tenant) {
            Some(tasks) => tasks.push_back((self.arrivals, caller)),
            None => {
                let tenant: Arc<str> = tenant.into();
                self.turns.push_back(Arc::clone(&tenant));
                self.tasks.insert(tenant, VecDeque::from([(self.arrivals, caller)]));
            }
        }
        (self.arrivals, called)
    }

    /// Takes out whoever is next; its tenant goes behind the others, or leaves with its last task.
    fn next(&mut self) -> Option<oneshot::Sender<()>> {
        let tenant = self.turns.pop_front()?;
        let tasks = self.tasks.get_mut(&tenant)?;
        let (_, next) = tasks.pop_front()?;
        if tasks.is_empty() {
            self.tasks.remove(&tenant);
        } else {
            self.turns.push_back(tenant);
        }
        Some(next)
    }

    fn remove(&mut self, tenant: &str, number: u64) {
        let Some(tasks) = self.tasks.get_mut(tenant) else { return };
        if let Ok(index) = tasks.binary_search_by_key(&number, |(number, _)| *number) {
            tasks.remove(index);
        }
        if tasks.is_empty() {
            self.tasks.remove(tenant);
            self.turns.retain(|waiting| **waiting != *tenant);
        }
    }
}

impl Drop for Head<'_> {
    fn drop(&mut self) {
        self.0.call_next();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(called) = &mut self.called else { return };
        locked(&self.line.waiting).remove(&self.tenant, self.number);
        // It was called, and went away before it heard of it.
        if called.try_recv().is_ok() {
            self.line.call_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    type Entering<'a> = Pin<Box<dyn Future<Output = Head<'a>> + 'a>>;

    /// Everybody who has the head in turn, by name: each gives it up at once.
    fn order<'a>(head: Head<'a>, mut waiting: Vec<(&'static str, Entering<'a>)>) -> Vec<&'static str> {
        let mut order = Vec::new();
        let mut held = Some(head);
        while !waiting.is_empty() {
            drop(held.take());
            let next =
                waiting.iter_mut().enumerate().find_map(|(index, (_, entering))| match poll(entering.as_mut()) {
                    Poll::Ready(head) => Some((index, head)),
                    Poll::Pending => None,
                });
            let (index, head) = next.expect("somebody is called");
            order.push(waiting.remove(index).0);
            held = Some(head);
        }
        order
    }

    fn entering<'a>(line: &'a Line, tenants: &[&'static str]) -> Vec<(&'static str, Entering<'a>)> {
        let mut waiting: Vec<(&'static str, Entering<'a>)> =
            tenants.iter().map(|tenant| (*tenant, Box::pin(line.enter(tenant)) as Entering<'a>)).collect();
        for (_, entering) in &mut waiting {
            assert!(poll(entering.as_mut()).is_pending());
        }
        waiting
    }

    fn head(line: &Line) -> Head<'_> {
        match poll(pin!(line.enter("first"))) {
            Poll::Ready(head) => head,
            Poll::Pending => panic!("nobody is there"),
        }
    }

    /// Three hundred calls of one tenant made another's wait for all of them.
    #[test]
    fn tenants_take_turns_however_many_wait_for_one() {
        let line = Line::default();
        let first = head(&line);
        let waiting = entering(&line, &["a", "a", "a", "a", "b", "c", "b"]);
        assert_eq!(order(first, waiting), ["a", "b", "c", "a", "b", "a", "a"]);
        assert!(locked(&line.waiting).tasks.is_empty() && locked(&line.waiting).turns.is_empty());
    }

    #[test]
    fn whoever_goes_away_leaves_the_line_and_hands_on_the_head() {
        let line = Line::default();
        let first = head(&line);
        let mut waiting = entering(&line, &["a", "b", "c"]);
        drop(waiting.remove(1));
        assert_eq!(locked(&line.waiting).turns.len(), 2, "b left the line");
        drop(first);
        // a was called, and goes away before it hears of it.
        drop(waiting.remove(0));
        let (_, mut last) = waiting.remove(0);
        let Poll::Ready(head) = poll(last.as_mut()) else { panic!("c has the head") };
        drop(head);
        drop(last);
        assert!(!locked(&line.waiting).is_taken, "and the line is free");
    }
}
