//! Values as they are printed: durations, numbers, words, rules.
//! Invariant: what is printed here reads back as the same.

use std::time::Duration;

use entrega_core::classify::Rule;
use entrega_core::time::format_duration;
use toml::{Table, Value};

use super::lane;

pub(super) fn rule(rule: &Rule) -> Value {
    let mut table = table([("verdict", word(&lane::VERDICTS, rule.verdict))]);
    let mut set = |key: &str, value: Value| table.insert(key.into(), value);
    if !rule.status.is_empty() {
        let statuses: Vec<String> = rule.status.iter().copied().map(String::from).collect();
        set("status", Value::from(statuses));
    }
    if !rule.code.is_empty() {
        set("code", Value::from(rule.code.clone()));
    }
    if let Some(header) = &rule.header {
        set("header", Value::from(header.as_str()));
    }
    if let Some(message) = &rule.message {
        set("message", Value::from(message.as_str()));
    }
    if let Some(protocol) = rule.protocol {
        set("protocol", word(&lane::PROTOCOLS, protocol));
    }
    Value::Table(table)
}

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
