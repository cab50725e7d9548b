//! One idempotency key, handed in at several nodes and for several lanes at once: one job.

use entrega::store::{Idempotency, NewEntry, Submitted};
use entrega_core::id::JobId;
use futures_util::future::join_all;

use super::world::{World, bounded, eventually};
use crate::store::fixture::{Fixture, HOUR, SECOND, lane};
use entrega_testkit::redis;

const ROUNDS: usize = 40;
const AT_ONCE: usize = 8;

async fn take(node: &Fixture, lane: &str, key: &str) -> (JobId, Submitted) {
    let job = node.job(lane, "acme");
    let id = job.id;
    let once = Idempotency { key: key.into(), request: [7; 32], lasts: HOUR };
    let mut taken = node.store.take(vec![NewEntry { job, idempotency: vec![once], answer: None }]).await.unwrap();
    (id, taken.remove(0))
}

/// Hands one key in at these places by turns, all at once; the one job that came of it.
async fn race(places: &[(&Fixture, &str)], key: &str) -> JobId {
    let takes = (0..AT_ONCE).map(|number| {
        let (node, lane) = places[number % places.len()];
        take(node, lane, key)
    });
    let taken = join_all(takes).await;
    let accepted: Vec<JobId> = taken
        .iter()
        .filter(|(_, taken)| *taken == Submitted::Accepted { pushed_out: None })
        .map(|(id, _)| *id)
        .collect();
    let [id] = accepted[..] else { panic!("{key}: {taken:?}") };
    for (_, taken) in taken.iter().filter(|(other, _)| *other != id) {
        assert_eq!(*taken, Submitted::Repeated { id }, "{key}");
    }
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_handed_in_at_many_places_at_once_is_one_job() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_hand(redis::shared());
        // Two nodes that are not set up alike, so that each owns one of the lanes.
        let mut first = world.clone();
        first.setup.lanes.remove(&lane("small"));
        let (one, other) = (first.node().await, world.node().await);
        let third = world.node().await;
        let mut ids = Vec::new();
        for round in 0..ROUNDS {
            let races: [&[(&Fixture, &str)]; 5] = [
                &[(&one, "http"), (&other, "http")],
                &[(&one, "http"), (&one, "single")],
                &[(&one, "http"), (&other, "small")],
                &[(&third, "http"), (&third, "small"), (&other, "small")],
                &[(&third, "http"), (&other, "http"), (&one, "single"), (&other, "small")],
            ];
            for (number, places) in races.into_iter().enumerate() {
                ids.push(race(places, &format!("order-{round}-{number}")).await);
            }
        }
        let mut claimed = Vec::new();
        let are_claimed = async || {
            for (owner, name) in [(&one, "http"), (&one, "single"), (&other, "small")] {
                for job in owner.claim(name, 1000).await.jobs {
                    claimed.push(job.job.id);
                    owner.done(job).await;
                }
            }
            if claimed.len() >= ids.len() { Ok(()) } else { Err(format!("{} of {}", claimed.len(), ids.len())) }
        };
        eventually(20 * SECOND, "all are claimed", are_claimed).await;
        claimed.sort();
        ids.sort();
        assert_eq!(claimed, ids);
        for (node, name) in [(&one, "http"), (&one, "single"), (&other, "small")] {
            assert!(node.claim_ids(name).await.is_empty(), "{name}");
        }
    })
    .await;
}
