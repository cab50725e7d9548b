//! Every target for a moment; `cargo xtask fuzz` runs them for longer.
//!
//! `ENTREGA_FUZZ_SECONDS` sets how long each (1), `ENTREGA_FUZZ_SEED` with which chance.

use std::time::Duration;

use entrega_fuzz::{Limits, Target, run, targets};

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn fuzz(target: Target) {
    let limits =
        Limits { time: Duration::from_secs(number("ENTREGA_FUZZ_SECONDS", 1)), seed: number("ENTREGA_FUZZ_SEED", 1) };
    let name = target.name;
    let report = run(target, limits);
    println!("{name}: {report:?}");
    assert!(report.inputs > 10 && report.results > 1, "{name} was hardly tried: {report:?}");
}

macro_rules! nothing_breaks {
    ($($target:ident),* $(,)?) => { $(#[test] fn $target() { fuzz(targets::$target()) })* };
}

nothing_breaks!(
    api_call,
    certificate,
    config,
    headers,
    http_answer,
    http_request,
    journal,
    mail,
    rate_limit,
    relative_url,
    retry_after,
    ses_report,
    smtp_conversation,
    smtp_url,
    sns_message,
    stored_record,
    url,
    webhook,
    words,
);

/// The loop itself: a target that breaks on one word of the corpus is found out, with little around the word.
#[test]
fn a_planted_panic_is_found_and_shortened() {
    let attempt = |input: &[u8]| {
        assert!(!input.windows(3).any(|part| part == b"7:["), "planted");
        u64::from(input.len() as u8)
    };
    let target = Target { name: "planted", seeds: vec![b"key: 7, other: [1]".to_vec()], attempt: Box::new(attempt) };
    let limits = Limits { time: Duration::from_secs(20), seed: 1 };
    let broke = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(target, limits)));
    let told = broke.err().and_then(|panic| panic.downcast::<String>().ok()).expect("it breaks");
    assert!(told.contains("planted") && told.contains(r#"input: "7:[""#), "{told}");
    let (_, path) = told.split_once("kept in ").unwrap();
    std::fs::remove_file(path).unwrap();
    std::fs::remove_dir(std::path::Path::new(path).parent().unwrap()).unwrap();
}

/// The same for memory: a target that takes more than its share for one input.
#[test]
fn a_planted_waste_of_memory_is_found() {
    let attempt = |input: &[u8]| {
        let waste = if input.contains(&b'!') { 100 << 20 } else { 1 };
        u64::from(vec![1u8; waste].iter().rev().step_by(4096).fold(0, |sum: u8, byte| sum.wrapping_add(*byte)))
    };
    let target = Target { name: "waste", seeds: vec![b"a".to_vec(), b"b!".to_vec()], attempt: Box::new(attempt) };
    let limits = Limits { time: Duration::from_secs(20), seed: 1 };
    let broke = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(target, limits)));
    let told = broke.err().and_then(|panic| panic.downcast::<String>().ok()).expect("it breaks");
    assert!(told.contains("bytes of memory"), "{told}");
}
