//! Traces: by which a job, its attempts, and the events that follow from it are found together (W3C `traceparent`).
//! Invariant: every attempt of a job is of one trace: the one its caller was in, or one that follows from its id.
//! Never: makes a trace by chance.

use crate::job::Job;

/// The label under which a caller's trace is carried, named after its header.
pub const TRACEPARENT: &str = "traceparent";

impl Job {
    /// The trace it belongs to, 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        let mut text = String::with_capacity(32);
        self.push_trace_id(&mut text);
        text
    }

    /// What an attempt says of its trace: the trace, and itself as a part of it.
    pub fn traceparent(&self, attempt: u32) -> String {
        // A part must not be nought. An id's last bits are chance, and the lowest of them make room for the attempt.
        let id_bits = u128::from_be_bytes(*self.id.as_bytes());
        let part = (id_bits as u64) << 8 | u64::from(attempt.clamp(1, 255));
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        self.push_trace_id(&mut text);
        text.push('-');
        push_hex(&mut text, &part.to_be_bytes());
        text.push_str("-01");
        text
    }

    fn push_trace_id(&self, text: &mut String) {
        let given = self.labels.get(TRACEPARENT).and_then(|label| label.split('-').nth(1));
        let is_id = |id: &&str| {
            id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id.bytes().any(|byte| byte != b'0')
        };
        match given.filter(is_id) {
            Some(id) => text.push_str(id),
            None => push_hex(text, self.id.as_bytes()),
        }
    }
}

/// Every attempt says its trace, and formatting that could be seen in profiles.
fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::id::JobId;
    use crate::job::Priority;
    use crate::name::{LaneName, TenantName};
    use crate::payload::Payload;
    use crate::time::Time;

    fn job(label: Option<&str>) -> Job {
        let labels = label.map(|label| (TRACEPARENT.to_owned(), label.to_owned()));
        Job {
            id: JobId::from_parts(Time::from_millis(1_700_000_000_000), 17),
            lane: LaneName::new("http").unwrap(),
            tenant: TenantName::new("acme").unwrap(),
            priority: Priority::Normal,
            payload: Payload::opaque(&b""[..]),
            destination: None,
            earlier: Default::default(),
            labels: labels.into_iter().collect::<BTreeMap<_, _>>(),
            idempotency_key: None,
            accepted_at: Time::ZERO,
            due_at: Time::ZERO,
            expires_at: None,
        }
    }

    #[test]
    fn a_callers_trace_goes_on_and_one_without_gets_its_own() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let theirs = job(Some(given));
        assert_eq!(theirs.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(theirs.traceparent(1).starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert_ne!(theirs.traceparent(1), theirs.traceparent(2), "an attempt is a part of its own");
        let own = job(None);
        assert_eq!(own.trace_id(), own.trace_id());
        assert_eq!(own.trace_id(), "018bcfe5680000000000000000000011");
        assert_eq!(own.traceparent(3), "00-018bcfe5680000000000000000000011-0000000000001103-01");
        for bad in ["", "junk", "00-xyz-1-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
            assert_eq!(job(Some(bad)).trace_id(), own.trace_id(), "{bad}");
        }
    }
}
