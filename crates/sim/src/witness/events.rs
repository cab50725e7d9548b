//! Events as a listener would judge them: numbered without gaps, each told once, the same to everybody.
//! Invariant: what is looked for follows from how often a mail was settled; the store is not asked.

use entrega::events::Published;
use entrega::events::event_job;
use entrega::webhook::EventBody;
use entrega_core::id::JobId;
use entrega_core::job::JobState;

use crate::disk::{Disk, Place};
use crate::plan::{HOOK, is_listening};

/// Every settled attempt of a mail that somebody listens to told one event, and each reached its listener's queue.
pub fn check_gapless(disk: &Disk, told: &[(JobId, u32)]) -> Result<(), String> {
    for &(mail, count) in told {
        let is_told = disk.jobs.get(&mail).is_some_and(|record| is_listening(&record.job.tenant));
        if !mail.is_mail() || !is_told {
            continue;
        }
        for sequence in 1..=count {
            check_event(disk, mail, sequence)?;
        }
        if disk.jobs.contains_key(&event_job(mail, count + 1)) {
            return Err(format!("{mail} was settled {count} times and tells one event more"));
        }
    }
    Ok(())
}

fn check_event(disk: &Disk, mail: JobId, sequence: u32) -> Result<(), String> {
    let id = event_job(mail, sequence);
    let event = body_of(disk, id).ok_or_else(|| format!("event {sequence} of {mail} is missing"))?;
    let value: serde_json::Value = serde_json::from_slice(&event.body.0).map_err(|error| error.to_string())?;
    let number = value["sequenceNumber"].as_u64();
    if number != Some(sequence.into()) {
        return Err(format!("event {sequence} of {mail} says that it is {number:?}"));
    }
    let is_handed_on = disk.jobs[&id].place == Place::Ended { state: JobState::Done, reason: None };
    match body_of(disk, id.derive(HOOK.as_bytes())) {
        Some(delivery) if delivery != event => Err(format!("event {sequence} of {mail} is told differently")),
        None if is_handed_on => Err(format!("event {sequence} of {mail} was handed on to nobody")),
        _ => Ok(()),
    }
}

fn body_of(disk: &Disk, id: JobId) -> Option<EventBody> {
    let payload = &disk.jobs.get(&id)?.job.payload;
    payload.read().or_else(|_| payload.read().map(|Published(body)| body)).ok()
}
