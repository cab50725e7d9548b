//! Callers: they send all the while, to any node that lives, and some send again what they had no answer to.
//! Invariant: what is sent again has the same key and the same body. Nothing is accepted but what an answer says is.

use std::sync::Arc;
use std::time::Duration;

use entrega_call::Answer;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::ledger::Submission;
use super::world::World;
use crate::nodes::cluster::Node;

const SENDERS: usize = 4;
/// No more is sent while so many wait: it would only make draining longer.
const BACKLOG_MAX: usize = 6000;
const PAUSE: Duration = Duration::from_millis(50);
/// A caller gives up after so many times without an answer.
const TRIES_MAX: usize = 60;
/// One in so many accepted submissions is sent again, as if its answer had been lost; one in so many that were not
/// accepted is given up.
const SOME: u32 = 8;

/// Callers at work.
pub struct Senders {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Senders {
    pub fn start(world: &Arc<World>, chance: &mut fastrand::Rng) -> Senders {
        let stop = CancellationToken::new();
        let send = |_| tokio::spawn(send(world.clone(), chance.fork(), stop.clone()));
        let tasks = (0..SENDERS).map(send).collect();
        Senders { stop, tasks }
    }

    /// Lets everybody finish what they are at.
    pub async fn stop(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn send(world: Arc<World>, mut chance: fastrand::Rng, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if world.ledger.backlog(&world.destination) < BACKLOG_MAX {
            let submission = world.ledger.draw(&world.destination, &mut chance);
            submit(&world, &submission, &mut chance).await;
        } else {
            // reason: callers go on when others have delivered
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Sends a submission until it is accepted, or the caller has had enough.
async fn submit(world: &World, submission: &Submission, chance: &mut fastrand::Rng) {
    let mut was_accepted = false;
    for nth in 1..=TRIES_MAX {
        let Some(node) = world.any(chance) else {
            // reason: the only node is dead, and is started again
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let answer = node.post_once(&submission.key, "/v1/jobs", &submission.jobs).await;
        let answer = answer.ok().filter(|answer| accept(world, submission, &node, answer));
        let is_replayed = answer.as_ref().is_some_and(|answer| answer.headers.contains_key("idempotent-replayed"));
        if was_accepted {
            assert!(is_replayed || answer.is_none(), "{} was accepted, and is taken for new", submission.key);
            return;
        }
        was_accepted = answer.is_some();
        if was_accepted && nth > 1 {
            world.ledger.note_cleared(is_replayed);
        }
        // Some send again what was accepted, some give up what was not.
        if (chance.u32(..SOME) > 0) == was_accepted {
            return;
        }
        // reason: a caller comes again, but not at once
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether all its jobs are accepted. Without a store they may be refused, and for nothing else.
fn accept(world: &World, submission: &Submission, node: &Node, answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {} {text}", answer.status));
    let rows = json.as_array().map(Vec::as_slice).unwrap_or_default();
    world.ledger.accept(submission, rows);
    let mut problems = rows.iter().map(|row| &row["problem"]["status"]).filter(|status| !status.is_null());
    let is_expected = match answer.status.as_u16() {
        201 => rows.len() == submission.count() && problems.next().is_none(),
        207 | 503 => problems.all(|status| *status == 503),
        _ => false,
    };
    assert!(is_expected, "{} {text}\n{}", answer.status, node.log());
    answer.status == 201
}
