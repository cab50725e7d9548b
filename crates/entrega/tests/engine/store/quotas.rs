//! Quotas: what one tenant may use up of what all share, and that others notice nothing of who is over.

use entrega::store::{Submitted, TenantSettings};
use entrega_core::id::JobId;
use entrega_core::quota::{Quota, Quotas};

use super::fixture::{FEW, Fixture, SECOND, tenant};

const ACCEPTED: Submitted = Submitted::Accepted { pushed_out: None };

pub(crate) async fn set(f: &Fixture, name: &str, quotas: Quotas) {
    f.store.put_tenant(TenantSettings { quotas, ..TenantSettings::new(tenant(name)) }).await.unwrap();
}

pub(crate) async fn what_is_set_for_a_tenant_is_known_at_once(f: &Fixture) {
    assert_eq!(f.store.tenant_settings(&tenant("acme")), TenantSettings::new(tenant("acme")));
    let quotas = Quotas { waiting_calls: Some(7), stored_bytes: Some(1 << 40), ..Quotas::default() };
    set(f, "acme", quotas).await;
    assert_eq!(f.store.tenant_settings(&tenant("acme").endpoint("hooks")).quotas, quotas, "of its endpoints, too");
    assert_eq!(f.store.tenant_settings(&tenant("other")).quotas, Quotas::default());
}

pub(crate) async fn whoever_has_all_its_places_is_refused_and_nobody_else(f: &Fixture) {
    set(f, "hoards", Quotas { places: Some(2), ..Quotas::default() }).await;
    let jobs = |name| (0..3).map(|_| f.job("http", name)).collect::<Vec<_>>();
    let over = Submitted::OverQuota(Quota::Places);
    assert_eq!(f.submit_all(jobs("hoards")).await, [ACCEPTED, ACCEPTED, over.clone()]);
    assert_eq!(f.submit_all(jobs("acme")).await, [ACCEPTED, ACCEPTED, ACCEPTED]);
    assert_eq!(f.submit_all(vec![f.job("single", "hoards")]).await, [ACCEPTED], "each lane has places of its own");
    f.done(f.claim_one("http").await).await;
    assert_eq!(f.submit_all(jobs("hoards")[..2].to_vec()).await, [ACCEPTED, over]);
}

pub(crate) async fn a_tenant_keeps_no_more_bytes_than_it_may(f: &Fixture) {
    let bytes = f.job("http", "acme").payload.bytes().len() as u64;
    set(f, "acme", Quotas { stored_bytes: Some(bytes * 2), ..Quotas::default() }).await;
    f.add("http", "acme").await;
    f.add_dead("small", "acme", "http_404").await;
    let over = Submitted::OverQuota(Quota::StoredBytes);
    assert_eq!(f.submit_all(vec![f.job("single", "acme"), f.job("single", "other")]).await, [over, ACCEPTED]);
    f.done(f.claim_one("http").await).await;
    f.add("single", "acme").await;
}

/// Dead letters of one tenant, one a second.
async fn dead_letters(f: &Fixture, name: &str, count: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(f.add_dead("small", name, "http_404").await);
        f.advance(SECOND);
    }
    ids
}

/// Sweeps; which dead letters left, and why.
async fn swept(f: &Fixture) -> Vec<(JobId, &'static str)> {
    f.store.sweep().await.unwrap().dead_letters.iter().map(|(entry, why)| (entry.job_id, *why)).collect()
}

/// 11 000 failures of one tenant pushed the dead letters of all others out of a lane within seconds.
pub(crate) async fn the_dead_letters_of_one_tenant_push_out_none_of_another(f: &Fixture) {
    let mine = dead_letters(f, "acme", 1).await;
    let flood = dead_letters(f, "floods", FEW * 3).await;
    let kept = FEW.div_ceil(2);
    let expected: Vec<_> = flood[..flood.len() - kept].iter().map(|id| (*id, "quota")).collect();
    assert_eq!(swept(f).await, expected, "half of what the lane keeps is left to it");
    f.entry(mine[0]).await;
    set(f, "floods", Quotas { dead_letters: Some(0), ..Quotas::default() }).await;
    assert_eq!(swept(f).await.len(), kept);
    f.entry(mine[0]).await;
}

pub(crate) async fn past_the_cap_the_oldest_of_whoever_has_most_leave(f: &Fixture) {
    let first = dead_letters(f, "first", 1).await;
    let most = dead_letters(f, "most", 2).await;
    let last = dead_letters(f, "last", 1).await;
    assert_eq!(swept(f).await, [(most[0], "cap")]);
    for id in [first[0], most[1], last[0]] {
        f.entry(id).await;
    }
}
