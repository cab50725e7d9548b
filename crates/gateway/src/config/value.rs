//! Values as they are printed: durations, numbers, words.
//! Invariant: what is printed here reads back as the same.

use std::time::Duration;

use entrega_core::time::format_duration;
use toml::{Table, Value};

pub(super) fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

pub(super) fn keys<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Table(table(entries))
}

pub(super) fn none() -> Value {
    Value::from("none")
}

pub(super) fn duration(length: Duration) -> Value {
    Value::from(format_duration(length))
}

/// Every number was read from an `i64`, so it fits into one.
pub(super) fn number(number: impl TryInto<i64>) -> Value {
    Value::from(number.try_into().unwrap_or(i64::MAX))
}

/// The word that reads as `meaning`; the lists of words are complete.
pub(super) fn word<T: Copy + PartialEq>(words: &[(&str, T)], meaning: T) -> Value {
    words.iter().find(|(_, other)| *other == meaning).map_or_else(none, |(word, _)| Value::from(*word))
}
