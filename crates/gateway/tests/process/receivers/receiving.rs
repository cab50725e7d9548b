//! What every receiver answers, and what it handles: the same in every language.

use entrega_core::webhook::{WebhookSecret, X_SIGNATURE, sign};
use serde_json::json;

use super::programs::{Language, Program};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OLD_SECRET: &str = "whsec_AfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn secret(text: &str) -> WebhookSecret {
    text.parse().unwrap()
}

/// An event of a mail. The letters take more than a byte each, and the spaces are not those of any serializer: only who
/// takes the bytes as they came gets the signature right.
fn event(outbox_id: &str, number: u64) -> Vec<u8> {
    let id = format!("evt_{outbox_id}_{number}");
    let data = json!({ "outboxId": outbox_id, "companyId": "Açaí & Søn 🚚", "status": "SENT" });
    format!(r#"{{ "eventType":"email.sent","eventId": "{id}", "timestamp":"2026-01-31T09:30:00.000Z","sequenceNumber":{number},"data":{data} }}"#)
        .into_bytes()
}

fn send(program: &Program, body: &[u8]) -> (u16, String) {
    program.post(body, &[(X_SIGNATURE, &sign(&secret(SECRET), body))])
}

fn taken() -> (u16, String) {
    (200, "taken".to_owned())
}

fn handled(outbox_id: &str, number: u64) -> (u64, String) {
    (number, format!("evt_{outbox_id}_{number}"))
}

/// A good event is taken; what was not signed by us is refused with 401 and handled by nobody.
fn takes_what_is_genuine_and_nothing_else(language: Language) {
    if language.is_left_out() {
        return;
    }
    let program = Program::start(language, SECRET);
    let body = event("out_1", 1);
    let signature = sign(&secret(SECRET), &body);
    let mut flipped = body.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let of_another = sign(&secret(OLD_SECRET), &body);
    let shorter = &signature[..signature.len() - 1];
    for (body, header) in [(&flipped, &*signature), (&body, &of_another), (&body, shorter), (&body, ""), (&body, "é")]
    {
        assert_eq!(program.post(body, &[(X_SIGNATURE, header)]).0, 401, "{header}");
    }
    assert_eq!(program.post(&body, &[]).0, 401, "without a signature");
    assert_eq!(send(&program, b"{}").0, 400, "signed, and no event");
    assert_eq!(send(&program, b"[[[").0, 400, "signed, and no JSON");
    // The very event that was refused above: a refusal must not make it known.
    assert_eq!(program.post(&body, &[("x-signature", &signature)]), taken());
    assert_eq!(program.handled(), handled("out_1", 1));
}

fn handles_a_repeated_event_once(language: Language) {
    if language.is_left_out() {
        return;
    }
    let program = Program::start(language, SECRET);
    assert_eq!(send(&program, &event("out_1", 1)), taken());
    for _ in 0..3 {
        assert_eq!(send(&program, &event("out_1", 1)), (200, "known".to_owned()));
    }
    assert_eq!(send(&program, &event("out_1", 2)), taken());
    assert_eq!([program.handled(), program.handled()], [handled("out_1", 1), handled("out_1", 2)]);
}

/// Mails have orders of their own: one with a gap does not hold up another.
fn handles_the_events_of_a_mail_in_order(language: Language) {
    if language.is_left_out() {
        return;
    }
    let program = Program::start(language, SECRET);
    for (outbox_id, number) in [("out_1", 3), ("out_1", 2), ("out_2", 1)] {
        assert_eq!(send(&program, &event(outbox_id, number)), taken());
    }
    assert_eq!(program.handled(), handled("out_2", 1));
    assert_eq!(send(&program, &event("out_1", 1)), taken());
    let order = [program.handled(), program.handled(), program.handled()];
    assert_eq!(order, [handled("out_1", 1), handled("out_1", 2), handled("out_1", 3)]);
}

/// What is missing may never come: it is not waited for without end. If it comes after all, it is handled.
fn gives_a_gap_up_after_a_while(language: Language) {
    if language.is_left_out() {
        return;
    }
    let program = Program::start_with(language, SECRET, 50);
    assert_eq!(send(&program, &event("out_1", 2)), taken());
    assert_eq!(program.handled(), handled("out_1", 2));
    assert_eq!(send(&program, &event("out_1", 1)), taken());
    assert_eq!(program.handled(), handled("out_1", 1));
}

fn knows_both_secrets_of_a_rotation(language: Language) {
    if language.is_left_out() {
        return;
    }
    let program = Program::start(language, &format!("{SECRET} {OLD_SECRET}"));
    let old = event("out_1", 1);
    assert_eq!(program.post(&old, &[(X_SIGNATURE, &sign(&secret(OLD_SECRET), &old))]), taken());
    assert_eq!(send(&program, &event("out_1", 2)), taken());
    let other = event("out_1", 3);
    let stranger = secret("whsec_BfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    assert_eq!(program.post(&other, &[(X_SIGNATURE, &sign(&stranger, &other))]).0, 401);
}

/// HMAC takes an empty key, and everybody knows that one.
#[test]
fn no_receiver_runs_without_a_secret() {
    for language in [Language::Node, Language::Python] {
        if !language.is_left_out() {
            let (is_listening, told) = Program::run_without_secret(language);
            assert!(!is_listening && told.contains("WEBHOOK_SECRET is not set"), "{language:?}: {told}");
        }
    }
    if !Language::Php.is_left_out() {
        let program = Program::start(Language::Php, "");
        let body = event("out_1", 1);
        let (status, told) = program.post(&body, &[(X_SIGNATURE, "sha256=")]);
        assert!(status == 500 && told.contains("WEBHOOK_SECRET is not set"), "{status} {told}");
    }
}

macro_rules! in_every_language {
    ($($test:ident),* $(,)?) => {
        mod node { $(#[test] fn $test() { super::$test(super::Language::Node) })* }
        mod python { $(#[test] fn $test() { super::$test(super::Language::Python) })* }
        mod php { $(#[test] fn $test() { super::$test(super::Language::Php) })* }
        mod rust { $(#[test] fn $test() { super::$test(super::Language::Rust) })* }
    };
}

in_every_language!(
    takes_what_is_genuine_and_nothing_else,
    handles_a_repeated_event_once,
    handles_the_events_of_a_mail_in_order,
    gives_a_gap_up_after_a_while,
    knows_both_secrets_of_a_rotation,
);
