//! One throttle for all nodes: together they start no more than one of them may.

use std::time::Duration;

use entrega_call::Clock;
use entrega_core::time::Time;
use serde_json::Value;

use super::cluster::{Node, alone, job};
use super::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::bounded;

const THROTTLED: &str = "[lanes.http]\nthrottle = { max_requests = 10, per = \"1s\", scope = \"lane\" }\n";
const MAX: usize = 10;
const PER: Duration = Duration::from_secs(1);
const JOBS_PER_NODE: usize = 20;
/// Starts are limited, arrivals are measured: of two starts the first may be longer on its way.
const JITTER_MAX: Duration = Duration::from_millis(30);
/// A busy machine delays a whole round at times, so that the next one seems to come too soon. What is wrong is wrong each
/// time.
const TRIES: usize = 3;
/// Six rounds of ten take five periods. One more for a throttle that begins as if it were spent, six for a slow machine.
const TOTAL_MAX: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_keep_one_throttle() {
    if redis::is_left_out() {
        return;
    }
    let _alone = alone();
    let mut tightest = Duration::ZERO;
    for _ in 0..TRIES {
        tightest = tightest.max(bounded(throttle_three()).await);
        if tightest + JITTER_MAX >= PER {
            return;
        }
    }
    panic!("{} calls within {tightest:?}, at best", MAX + 1);
}

/// The shortest time in which one call more came than may start in a period.
async fn throttle_three() -> Duration {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    let nodes = [(); 3].map(|()| Node::start(&redis, THROTTLED));
    let jobs = Value::Array(vec![job(&destination.url("/"), "acme"); JOBS_PER_NODE]);
    let clock = Clock::system();
    let start = clock.now();
    let taken = tokio::join!(nodes[0].send(&jobs), nodes[1].send(&jobs), nodes[2].send(&jobs));
    let all = nodes.len() * JOBS_PER_NODE;
    for taken in [taken.0, taken.1, taken.2] {
        let taken = taken.unwrap();
        assert_eq!(taken.ids.len(), JOBS_PER_NODE, "{:?}", taken.problems);
    }
    destination.arrived(all, TOTAL_MAX).await;
    let took = clock.now().since(start);
    nodes[0].empty(Duration::from_secs(5)).await;

    let times = destination.times();
    assert_eq!((times.len(), destination.repeats()), (all, 0));
    let mut by_node = Vec::new();
    for node in &nodes {
        by_node.push(node.attempts().await);
    }
    println!("{all} jobs in {} ms; attempts by node: {by_node:?}", took.as_millis());
    let tightest = times.windows(MAX + 1).map(|window| window[MAX].since(window[0])).min().unwrap();
    println!("{} calls came within {} ms at the tightest", MAX + 1, tightest.as_millis());
    // However late calls come, none comes before all that went ahead of it had their periods.
    for (number, time) in times.iter().enumerate() {
        let periods = u32::try_from(number / MAX).unwrap();
        assert!(*time >= start + PER * periods, "call {number} came too soon: {:?}", offsets_ms(&times));
    }
    let least = PER * u32::try_from(all / MAX - 1).unwrap();
    assert!(took + JITTER_MAX >= least && took <= TOTAL_MAX, "{took:?} in all: {:?}", offsets_ms(&times));
    println!("{:?}", offsets_ms(&times));
    tightest
}

fn offsets_ms(times: &[Time]) -> Vec<u128> {
    times.iter().map(|time| time.since(times[0]).as_millis()).collect()
}
