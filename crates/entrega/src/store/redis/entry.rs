//! The entry of a job as the scripts keep it: small, and without what the job carries.
//! Invariant: laid out as `lua/lane/entries.lua` packs it. What a claim handed out is kept unchanged: a job whose entry
//! still is the same is held under the same lease.

use std::ops::Range;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::time::Time;

use super::answer::time;

const ATTEMPT: Range<usize> = 4..6;
const EXPIRES: Range<usize> = 18..26;
const TOKEN: Range<usize> = 26..34;
/// The tenant and the node, each after its length.
const ENDING: usize = 34;
const ID_BYTES: usize = 16;

/// Where a job is that is attempted, and one that went past an open breaker.
const RUNNING: u8 = 3;
const PAST: u8 = 5;

/// The entry of a job that was claimed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry(Bytes);

/// What a claim hands out: the id and the entry of each job, one after the other. `None` if one of them is cut off.
pub(super) fn read_all(mut bytes: Bytes) -> Option<Vec<(JobId, Entry)>> {
    let mut all = Vec::with_capacity(bytes.len() / (ID_BYTES + ENDING));
    while let Some((id, rest)) = bytes.split_first_chunk::<ID_BYTES>() {
        let (id, length) = (JobId::from_bytes(*id), length_of(rest)?);
        all.push((id, Entry(bytes.slice(ID_BYTES..ID_BYTES + length))));
        bytes = bytes.split_off(ID_BYTES + length);
    }
    bytes.is_empty().then_some(all)
}

/// The length of the entry that stands first.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let node = ENDING + 1 + usize::from(*bytes.get(ENDING)?);
    let end = node + 1 + usize::from(*bytes.get(node)?);
    (end <= bytes.len()).then_some(end)
}

impl Entry {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn generation(&self) -> u8 {
        self.0[2]
    }

    pub(super) fn has_history(&self) -> bool {
        self.0[3] == 1
    }

    pub(super) fn attempt(&self) -> u16 {
        u16::from_be_bytes([self.0[ATTEMPT.start], self.0[ATTEMPT.start + 1]])
    }

    pub(super) fn expires(&self) -> Time {
        time(self.number(EXPIRES) as u64)
    }

    pub(super) fn token(&self) -> u64 {
        self.number(TOKEN) as u64
    }

    pub(super) fn is_past_breaker(&self) -> bool {
        self.0[0] == PAST
    }

    /// Whether this is a first attempt, of which the rules ask nothing but to be counted.
    pub(super) fn is_plain(&self) -> bool {
        self.0[0] == RUNNING && self.generation() == 0 && !self.has_history()
    }

    /// Whose job it is and which node has it, and its priority: those who have all that in common are counted together.
    pub(super) fn in_common(&self) -> (&[u8], u8) {
        (&self.0[ENDING..], self.0[1])
    }

    fn number(&self, place: Range<usize>) -> f64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[place]);
        f64::from_be_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(place: u8, generation: u8, has_history: u8) -> Vec<u8> {
        let mut bytes = vec![place, 1, generation, has_history, 1, 2];
        bytes.extend_from_slice(&77_u32.to_be_bytes());
        [5.0_f64, 6_000_000.0, 7.0].iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        bytes.extend_from_slice(b"\x04acme\x03n.0");
        bytes
    }

    fn handed_out(id: JobId, packed: Vec<u8>) -> Vec<u8> {
        [&id.as_bytes()[..], &packed].concat()
    }

    #[test]
    fn entries_are_read_as_they_are_packed() {
        let ids = [1, 2].map(|chance| JobId::from_parts(Time::from_millis(5), chance));
        let bytes = [handed_out(ids[0], packed(RUNNING, 0, 0)), handed_out(ids[1], packed(PAST, 2, 1))].concat();
        let all = read_all(bytes.clone().into()).unwrap();
        assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
        let (first, second) = (&all[0].1, &all[1].1);
        assert_eq!((first.attempt(), first.expires(), first.token()), (258, Time::from_micros(6_000_000), 7));
        assert_eq!((first.in_common(), first.bytes()), ((&b"\x04acme\x03n.0"[..], 1), &packed(RUNNING, 0, 0)[..]));
        assert!(first.is_plain() && !first.is_past_breaker());
        assert_eq!((second.generation(), second.has_history(), second.is_past_breaker()), (2, true, true));
        assert_eq!(read_all(Bytes::new()), Some(Vec::new()));
        let whole = bytes.len() / 2;
        for cut in (1..bytes.len()).filter(|cut| *cut != whole) {
            assert_eq!(read_all(bytes[..cut].to_vec().into()), None, "{cut} bytes");
        }
    }

    #[test]
    fn replays_retries_and_what_went_past_a_breaker_are_not_plain() {
        for (place, generation, has_history) in [(RUNNING, 1, 0), (RUNNING, 0, 1), (PAST, 0, 0)] {
            assert!(!Entry(packed(place, generation, has_history).into()).is_plain());
        }
    }
}
