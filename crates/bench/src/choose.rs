//! Choosing the next job: the lane machine alone.
//!
//! Owns: the row's run.
//! Invariant: the same number of jobs, however many tenants they belong to.
//! Never: touches a disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use entrega_core::id::JobId;
use entrega_core::job::Priority;
use entrega_core::lane::{Lane, Next, Waiting};
use entrega_core::name::TenantName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

const JOBS: u32 = 500_000;
const PER_CLAIM: usize = 64;

/// Nanoseconds to choose and settle one job, with this many tenants. The best of three, because a busy machine only
/// ever makes it slower.
pub fn nanos(tenants: u32) -> f64 {
    (0..3).map(|_| once(tenants)).fold(f64::INFINITY, f64::min)
}

fn once(tenants: u32) -> f64 {
    let now = Time::from_millis(1_000_000);
    let policy = LanePolicy { capacity: JOBS, concurrency: 10_000, tenant_concurrency: 10_000, ..LanePolicy::http() };
    let mut lane = Lane::new(Arc::new(policy));
    let names: Vec<_> = (0..tenants).map(|n| TenantName::new(&format!("t{n}")).expect("a tenant name")).collect();
    for number in 0..JOBS {
        let tenant = names[(number % tenants) as usize].clone();
        let id = JobId::from_parts(now, number.into());
        let job = Waiting {
            id,
            tenant,
            priority: Priority::Normal,
            due: now,
            expires: Time::NEVER,
            attempt: 0,
            generation: 0,
            bytes: 1024,
        };
        lane.admit(&job);
    }
    lane.publish(now);
    let start = Instant::now();
    let mut chosen = 0;
    while chosen < JOBS {
        let claims = lane.claim(now, PER_CLAIM);
        for job in &claims.jobs {
            lane.settle(now, job.ticket, Next::Leave, Lesson::Up, Duration::ZERO);
        }
        chosen += claims.jobs.len() as u32;
    }
    start.elapsed().as_nanos() as f64 / f64::from(JOBS)
}
