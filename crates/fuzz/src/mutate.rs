//! From one input to the next: small changes, and words of the corpus in other places.
//! Invariant: chance comes from the seed alone.

use fastrand::Rng;

use crate::INPUT_BYTES_MAX;

/// Values at which parsers have their edges.
const EDGES: [&[u8]; 24] = [
    b"",
    b"0",
    b"-1",
    b"1",
    b"127",
    b"255",
    b"256",
    b"65536",
    b"2147483648",
    b"4294967296",
    b"9223372036854775807",
    b"18446744073709551615",
    b"18446744073709551616",
    b"1e999",
    b"null",
    b"\0",
    b"\r\n",
    b"\n",
    b"\xff\xfe",
    b"\xc3\xa9",
    b"\xf0\x9f\x9a\x9a",
    b"%00",
    b"\\u0000",
    b"::ffff:127.0.0.1",
];
/// Letters that mean something somewhere.
const SIGNS: &[u8] = b"{}[]<>()\"'\\/:;,.@=&?#%+- \t\r\n\0";
/// Words of the corpus that are remembered.
const WORDS_MAX: usize = 2000;

pub(crate) struct Mutator {
    rng: Rng,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// Learns its words from the corpus.
    pub(crate) fn new(seed: u64, corpus: &[Vec<u8>]) -> Mutator {
        let is_sign = |byte: &u8| !byte.is_ascii_alphanumeric();
        let mut words: Vec<Vec<u8>> =
            corpus.iter().flat_map(|input| input.split(is_sign)).map(<[u8]>::to_vec).collect();
        words.retain(|word| (1..=64).contains(&word.len()));
        words.sort();
        words.dedup();
        words.truncate(WORDS_MAX);
        words.extend(EDGES.iter().map(|edge| edge.to_vec()));
        Mutator { rng: Rng::with_seed(seed), words }
    }

    /// A new input, made of one or two of the pool.
    pub(crate) fn next(&mut self, pool: &[Vec<u8>]) -> Vec<u8> {
        let mut input = pool[self.rng.usize(..pool.len())].clone();
        for _ in 0..1 << self.rng.u32(0..4) {
            self.change(&mut input, pool);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
        let at = self.rng.usize(..=input.len());
        let piece = self.piece(input.len());
        match self.rng.u8(0..10) {
            0 if !input.is_empty() => {
                let at = self.rng.usize(..input.len());
                input[at] ^= 1 << self.rng.u8(0..8);
            }
            1 if !input.is_empty() => {
                let at = self.rng.usize(..input.len());
                input[at] = self.rng.u8(..);
            }
            2 => input.insert(at, SIGNS[self.rng.usize(..SIGNS.len())]),
            3 => drop(input.drain(piece)),
            4 => input.truncate(at),
            5 => {
                let times = 1 << self.rng.u32(0..8);
                let copied = input[piece].repeat(times);
                self.put(input, at, &copied);
            }
            6 => {
                let other = &pool[self.rng.usize(..pool.len())];
                let cut = self.piece(other.len());
                self.put(input, at, &other[cut]);
            }
            7 => {
                let word = self.words[self.rng.usize(..self.words.len())].clone();
                self.put(input, at, &word);
            }
            8 => self.replace_word(input),
            _ => self.replace_number(input),
        }
    }

    /// A piece of something so long; short ones are likelier.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.rng.usize(..=length);
        let longest = (1usize << self.rng.u32(0..12)).min(length - from);
        from..from + self.rng.usize(..=longest)
    }

    fn put(&self, input: &mut Vec<u8>, at: usize, piece: &[u8]) {
        let room = INPUT_BYTES_MAX.saturating_sub(input.len());
        input.splice(at..at, piece.iter().copied().take(room));
    }

    fn replace_word(&mut self, input: &mut Vec<u8>) {
        let word = self.words[self.rng.usize(..self.words.len())].clone();
        self.replace(input, |byte| byte.is_ascii_alphanumeric(), &word);
    }

    fn replace_number(&mut self, input: &mut Vec<u8>) {
        let edge = EDGES[self.rng.usize(..EDGES.len())];
        self.replace(input, |byte| byte.is_ascii_digit(), edge);
    }

    /// Puts something in the place of one run of such letters.
    fn replace(&mut self, input: &mut Vec<u8>, is_part: fn(&u8) -> bool, new: &[u8]) {
        let from = self.rng.usize(..=input.len());
        let Some(start) = input[from..].iter().position(is_part).map(|start| from + start) else { return };
        let end = input[start..].iter().position(|byte| !is_part(byte)).map_or(input.len(), |length| start + length);
        input.splice(start..end, new.iter().copied());
    }
}
