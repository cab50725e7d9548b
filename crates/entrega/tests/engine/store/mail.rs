//! What is known of addresses and of mails: who is not written to any more, and what came back.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::{FEEDBACK_FOR, FEEDBACK_MAX, Feedback, Page, Suppression};
use entrega_core::id::JobId;
use entrega_core::mail::FailureCode;

use super::fixture::{Fixture, HOUR, SECOND, tenant};

pub(crate) fn bounce(f: &Fixture, whose: &str, address: &str) -> Suppression {
    Suppression {
        tenant: tenant(whose),
        address: address.into(),
        code: FailureCode::BouncePermanent,
        reason: format!("550 5.1.1 no such user {address}"),
        since: f.now(),
        outbox_id: Some(f.job("http", whose).id.of_mail()),
    }
}

pub(crate) fn notice(f: &Fixture, name: &str, recipient: &str) -> Feedback {
    Feedback {
        recipient: recipient.into(),
        code: FailureCode::Complaint,
        detail: format!("{recipient} said in {name} that it is spam"),
        at: f.now(),
        feedback_id: name.into(),
    }
}

fn mail(f: &Fixture) -> JobId {
    f.job("http", "acme").id.of_mail()
}

async fn look(f: &Fixture, whose: &str, address: &str) -> Option<Suppression> {
    f.store.suppressed(&tenant(whose), &[address]).await.unwrap().remove(0)
}

async fn feedback(f: &Fixture, id: JobId) -> Vec<Feedback> {
    f.store.feedback(&[id]).await.unwrap().remove(0)
}

pub(crate) async fn a_suppressed_address_is_known_whatever_its_case(f: &Fixture) {
    let given = bounce(f, "acme", "Jörg.Doe@Example.COM");
    f.store.suppress(given.clone()).await.unwrap();
    let kept = Suppression { address: "jörg.doe@example.com".into(), ..given };
    let asked = ["jÖRG.doe@example.com", "else@example.com", "Jörg.Doe@Example.COM"];
    let found = f.store.suppressed(&tenant("acme"), &asked).await.unwrap();
    assert_eq!(found, [Some(kept.clone()), None, Some(kept)], "one answer each, in order");
    assert!(f.store.suppressed(&tenant("acme"), &[]).await.unwrap().is_empty());
}

pub(crate) async fn a_suppression_is_a_tenants_own(f: &Fixture) {
    f.store.suppress(bounce(f, "a", "x@example.com")).await.unwrap();
    assert!(look(f, "a", "x@example.com").await.is_some());
    assert!(look(f, "b", "x@example.com").await.is_none());
    assert!(!f.store.unsuppress(&tenant("b"), "x@example.com").await.unwrap());
    assert!(look(f, "a", "x@example.com").await.is_some());
}

pub(crate) async fn an_address_suppressed_again_stays_as_it_was_unless_it_complains(f: &Fixture) {
    let first = bounce(f, "acme", "x@example.com");
    f.store.suppress(first.clone()).await.unwrap();
    f.advance(HOUR);
    f.store.suppress(Suppression { reason: "again".into(), ..bounce(f, "acme", "X@example.com") }).await.unwrap();
    assert_eq!(look(f, "acme", "x@example.com").await, Some(first.clone()));
    let complaint =
        Suppression { code: FailureCode::Complaint, reason: "spam".into(), ..bounce(f, "acme", "x@example.com") };
    f.store.suppress(complaint.clone()).await.unwrap();
    let kept = Suppression { since: first.since, ..complaint };
    assert_eq!(look(f, "acme", "x@example.com").await, Some(kept.clone()), "since the first time");
    f.store.suppress(bounce(f, "acme", "x@example.com")).await.unwrap();
    f.store.suppress(Suppression { reason: "again".into(), ..kept.clone() }).await.unwrap();
    assert_eq!(look(f, "acme", "x@example.com").await, Some(kept), "a complaint stays");
}

pub(crate) async fn an_address_can_be_written_to_again(f: &Fixture) {
    f.store.suppress(bounce(f, "acme", "x@example.com")).await.unwrap();
    assert!(f.store.unsuppress(&tenant("acme"), "X@Example.com").await.unwrap());
    assert!(!f.store.unsuppress(&tenant("acme"), "x@example.com").await.unwrap(), "it is gone");
    assert!(look(f, "acme", "x@example.com").await.is_none());
    assert!(f.store.suppressions(&tenant("acme"), page(None, 9)).await.unwrap().items.is_empty());
    f.advance(HOUR);
    let anew = bounce(f, "acme", "x@example.com");
    f.store.suppress(anew.clone()).await.unwrap();
    assert_eq!(look(f, "acme", "x@example.com").await, Some(anew), "since then only");
}

/// Its key was longer than the disk takes, and the writer ended.
pub(crate) async fn an_address_longer_than_any_harms_nothing(f: &Fixture) {
    let address = format!("{}@example.com", "ß".repeat(50_000));
    f.store.suppress(bounce(f, "acme", &address)).await.unwrap();
    assert!(look(f, "acme", &address).await.is_some());
    assert!(f.store.unsuppress(&tenant("acme"), &address).await.unwrap());
    f.add("http", "acme").await;
}

fn page(after: Option<String>, limit: usize) -> Page<String> {
    Page { after, limit }
}

pub(crate) async fn suppressions_are_listed_page_by_page(f: &Fixture) {
    let addresses = ["a@example.com", "a@example.com.br", "b/c@example.com", "b@example.com", "é@example.com"];
    for address in addresses.iter().rev() {
        f.store.suppress(bounce(f, "acme", address)).await.unwrap();
    }
    // Neighbours on disk, before and behind.
    for whose in ["acm", "acme-2", "acme.2", "b"] {
        f.store.suppress(bounce(f, whose, "x@example.com")).await.unwrap();
    }
    for limit in 1..=addresses.len() + 1 {
        let (mut after, mut listed) = (None, Vec::new());
        loop {
            let found = f.store.suppressions(&tenant("acme"), page(after, limit)).await.unwrap();
            assert!(found.items.len() <= limit && (found.next.is_none() || found.items.len() == limit));
            listed.extend(found.items.into_iter().map(|suppression| suppression.address));
            after = found.next;
            if after.is_none() || listed.len() > addresses.len() {
                break;
            }
        }
        assert_eq!(listed, addresses, "pages of {limit}");
    }
    let whole = f.store.suppressions(&tenant("b"), page(None, 10)).await.unwrap();
    assert_eq!(whole.items, [bounce_of(&whole.items[0])]);
    assert!(f.store.suppressions(&tenant("nobody"), page(None, 10)).await.unwrap().items.is_empty());
}

/// What was put in must come out, but for the id, which is another each time.
fn bounce_of(found: &Suppression) -> Suppression {
    Suppression {
        tenant: tenant("b"),
        address: "x@example.com".into(),
        code: FailureCode::BouncePermanent,
        reason: "550 5.1.1 no such user x@example.com".into(),
        ..found.clone()
    }
}

pub(crate) async fn of_bounces_and_a_complaint_at_once_the_complaint_stays(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let code = if number == 7 { FailureCode::Complaint } else { FailureCode::BouncePermanent };
        let (store, suppression) = (Arc::clone(&f.store), Suppression { code, ..bounce(f, "acme", "x@example.com") });
        tasks.spawn(async move { store.suppress(suppression).await.unwrap() });
    }
    tasks.join_all().await;
    assert_eq!(look(f, "acme", "x@example.com").await.map(|kept| kept.code), Some(FailureCode::Complaint));
}

pub(crate) async fn what_came_back_is_kept_in_order_and_each_notice_once(f: &Fixture) {
    let (one, other, silent) = (mail(f), mail(f), mail(f));
    let first = notice(f, "feedback-1", "x@example.com");
    let second = notice(f, "feedback-1", "y@example.com");
    let third = Feedback { code: FailureCode::BouncePermanent, ..notice(f, "feedback-0", "x@example.com") };
    for told in [&first, &second, &first, &third, &third] {
        f.store.note_feedback(one, Feedback { detail: told.detail.clone(), ..told.clone() }).await.unwrap();
    }
    f.store.note_feedback(one, Feedback { detail: "told otherwise".into(), ..second.clone() }).await.unwrap();
    f.store.note_feedback(other, first.clone()).await.unwrap();
    let found = f.store.feedback(&[other, silent, one]).await.unwrap();
    assert_eq!(found, [vec![first.clone()], vec![], vec![first, second, third]]);
    assert!(f.store.feedback(&[]).await.unwrap().is_empty());
}

pub(crate) async fn no_more_comes_back_about_a_mail_than_is_kept(f: &Fixture) {
    let id = mail(f);
    for number in 0..FEEDBACK_MAX + 3 {
        f.store.note_feedback(id, notice(f, &format!("feedback-{number}"), "x@example.com")).await.unwrap();
    }
    let kept = feedback(f, id).await;
    assert_eq!(kept.len(), FEEDBACK_MAX);
    assert_eq!((kept[0].feedback_id.as_str(), kept[99].feedback_id.as_str()), ("feedback-0", "feedback-99"));
}

pub(crate) async fn what_came_back_is_forgotten_a_week_after_the_last_of_it(f: &Fixture) {
    let (id, other) = (mail(f), mail(f));
    // Finer than a record can say.
    f.advance(Duration::from_micros(321));
    f.store.note_feedback(id, notice(f, "feedback-1", "x@example.com")).await.unwrap();
    f.store.note_feedback(other, notice(f, "feedback-1", "x@example.com")).await.unwrap();
    f.advance(FEEDBACK_FOR - SECOND);
    f.store.note_feedback(id, notice(f, "feedback-2", "x@example.com")).await.unwrap();
    f.advance(SECOND);
    assert_eq!(feedback(f, other).await.len(), 0, "before a sweep");
    f.store.sweep().await.unwrap();
    assert_eq!((feedback(f, id).await.len(), feedback(f, other).await.len()), (2, 0), "the last keeps the first");
    f.advance(FEEDBACK_FOR);
    f.store.note_feedback(id, notice(f, "feedback-1", "x@example.com")).await.unwrap();
    assert_eq!(feedback(f, id).await.len(), 1, "it begins anew");
    f.store.sweep().await.unwrap();
    assert_eq!(feedback(f, id).await.len(), 1, "and what is new is not swept with what was old");
    f.advance(FEEDBACK_FOR);
    f.store.sweep().await.unwrap();
    assert!(feedback(f, id).await.is_empty());
}

pub(crate) async fn notices_that_come_at_once_are_each_kept_once(f: &Fixture) {
    let id = mail(f);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..64 {
        let (store, told) = (Arc::clone(&f.store), notice(f, &format!("feedback-{}", number % 32), "x@example.com"));
        tasks.spawn(async move { store.note_feedback(id, told).await.unwrap() });
    }
    tasks.join_all().await;
    let mut names: Vec<_> = feedback(f, id).await.into_iter().map(|told| told.feedback_id).collect();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), feedback(f, id).await.len()), (32, 32));
}
