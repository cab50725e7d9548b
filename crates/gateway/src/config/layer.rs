//! Layers: texts from several places become one table.
//! Invariant: for every key of the table it is known which layer gave it.
//! Never: judges a value; that is for whoever reads it.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::error::{ConfigError, Origin};

const PREFIX: &str = "ENTREGA_";
const SEPARATOR: &str = "__";

/// The two ways to write `retry`. A layer that uses one replaces the other of the layers below it.
pub(super) const RETRY_LISTED: [&str; 1] = ["delays"];
pub(super) const RETRY_DOUBLING: [&str; 4] = ["base", "max", "jitter", "floor"];

/// The merged table and where each part of it came from.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) table: Table,
    origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// Puts a layer on top.
    pub(super) fn add(&mut self, layer: Table, origin: &Origin) {
        merge(&mut self.table, layer, "", origin, &mut self.origins);
    }

    /// Which layer gave `path`: itself, or what it is part of.
    pub(super) fn origin(&self, path: &str) -> Origin {
        let found = self.origins.get(path).or_else(|| {
            let around = self
                .origins
                .iter()
                .filter(|(key, _)| path.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with(['.', '['])));
            around.max_by_key(|(key, _)| key.len()).map(|(_, origin)| origin)
        });
        found.cloned().unwrap_or(Origin::Defaults)
    }
}

fn merge(below: &mut Table, layer: Table, path: &str, origin: &Origin, origins: &mut BTreeMap<String, Origin>) {
    if path.starts_with("lanes.") && path.ends_with(".retry") {
        give_way(below, &layer);
    }
    for (key, value) in layer {
        let path = join(path, &key);
        match value {
            Value::Table(table) => {
                let place = below.entry(key).or_insert_with(|| Value::Table(Table::new()));
                if !place.is_table() {
                    *place = Value::Table(Table::new());
                    origins.insert(path.clone(), origin.clone());
                }
                origins.entry(path.clone()).or_insert_with(|| origin.clone());
                if let Value::Table(place) = place {
                    merge(place, table, &path, origin, origins);
                }
            }
            other => {
                below.insert(key, other);
                origins.insert(path, origin.clone());
            }
        }
    }
}

fn give_way(below: &mut Table, layer: &Table) {
    for (given, replaced) in [(&RETRY_LISTED[..], &RETRY_DOUBLING[..]), (&RETRY_DOUBLING, &RETRY_LISTED)] {
        if given.iter().any(|key| layer.contains_key(*key)) {
            below.retain(|key, _| !replaced.contains(&key));
        }
    }
}

/// The path of `key` inside `path`, as TOML would write it.
pub(super) fn join(path: &str, key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let key = if is_bare { key.to_owned() } else { Value::from(key).to_string() };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// The layer of one variable, or `None` if it is none of ours. Names without a double underscore are left alone: some
/// are plain names, and container platforms inject others that begin with the service's name.
pub(super) fn from_variable(name: &str, text: &str) -> Result<Option<Table>, ConfigError> {
    let upper = name.to_ascii_uppercase();
    let Some(path) = upper.strip_prefix(PREFIX).filter(|path| path.contains(SEPARATOR)) else { return Ok(None) };
    if path.split(SEPARATOR).any(str::is_empty) {
        return Err(ConfigError::BadVariable { name: name.to_owned() });
    }
    if text.is_empty() {
        return Ok(None);
    }
    let keys: Vec<String> = path.split(SEPARATOR).map(str::to_ascii_lowercase).collect();
    let value = text.parse::<Value>().unwrap_or_else(|_| Value::from(text));
    Ok(Some(at(&keys.iter().map(String::as_str).collect::<Vec<_>>(), value)))
}

/// A layer with one value.
pub(super) fn at(path: &[&str], value: Value) -> Table {
    let (last, tables) = path.split_last().expect("a path names a key");
    let leaf = Table::from_iter([((*last).to_owned(), value)]);
    tables.iter().rev().fold(leaf, |layer, key| Table::from_iter([((*key).to_owned(), Value::Table(layer))]))
}
