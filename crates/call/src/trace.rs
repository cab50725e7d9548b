//! `traceparent`: how a call says which trace it belongs to (W3C Trace Context).
//! Invariant: what exists is valid: neither id is zero, and it is written as version 00.
//! Never: changes a trace that was taken over.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::chance::Chance;

/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;
/// The length of version 00.
const BYTES: usize = 55;

/// A trace and the place in it from which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

/// A text that is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this is no traceparent: write it as 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, lower case, neither id zero"
)]
pub struct BadTraceParent;

impl TraceParent {
    /// A trace of its own.
    #[must_use]
    pub fn made(chance: &Chance) -> TraceParent {
        // The lower half of one draw might be zero, which is no id.
        let parent_id = (chance.id_bits() as u64).max(1);
        TraceParent { trace_id: chance.id_bits(), parent_id, flags: SAMPLED }
    }

    /// The trace, as logs show it.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = BadTraceParent;
    fn from_str(text: &str) -> Result<TraceParent, BadTraceParent> {
        // Later versions may say more at the end; what is known of them stands in the same place.
        let head = text.get(..BYTES).ok_or(BadTraceParent)?;
        let rest = &text[BYTES..];
        let parts: Vec<&str> = head.split('-').collect();
        let &[version, trace_id, parent_id, flags] = &parts[..] else { return Err(BadTraceParent) };
        let version = hex(version, 2)? as u8;
        let fits = if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        let parent = TraceParent {
            trace_id: hex(trace_id, 32)?,
            parent_id: hex(parent_id, 16)? as u64,
            flags: hex(flags, 2)? as u8,
        };
        let is_valid = fits && version != 0xff && parent.trace_id != 0 && parent.parent_id != 0;
        if is_valid { Ok(parent) } else { Err(BadTraceParent) }
    }
}

fn hex(text: &str, digits: usize) -> Result<u128, BadTraceParent> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).map_err(|_| BadTraceParent) } else { Err(BadTraceParent) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_standard_are_read() {
        let known = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent: TraceParent = known.parse().unwrap();
        assert_eq!((parent.to_string(), parent.trace_id()), (known.into(), "4bf92f3577b34da6a3ce929d0e0e4736".into()));
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-brings";
        assert_eq!(later.parse::<TraceParent>(), Ok(parent));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\u{e9}",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(bad.parse::<TraceParent>(), Err(BadTraceParent), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_made_reads_back(seed: u64) {
            let made = TraceParent::made(&Chance::from_seed(seed));
            prop_assert_eq!(made.to_string().parse(), Ok(made));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<TraceParent>(); // That it comes back is the point.
        }
    }
}
