//! Layers: texts from several places become one table.
//! Invariant: for every key of the table it is known which layer gave it.
//! Never: judges a value; that is for whoever reads it.

use std::collections::BTreeMap;

use entrega::{connector, proxy};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::{ConfigError, Origin};

const PREFIX: &str = "ENTREGA_";
const SEPARATOR: &str = "__";

/// The two ways to write `retry`. A layer that uses one replaces the other of the layers below it.
pub(super) const RETRY_LISTED: [&str; 1] = ["delays"];
pub(super) const RETRY_DOUBLING: [&str; 4] = ["base", "max", "jitter", "floor"];

/// One place that says something.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    table: Table,
    origin: Origin,
    /// The lines of its keys, where it is a file.
    lines: BTreeMap<String, usize>,
}

impl Layer {
    /// What one place says.
    pub(super) fn new(table: Table, origin: Origin) -> Layer {
        Layer { table, origin, lines: BTreeMap::new() }
    }

    /// The same, with the lines of a file.
    pub(super) fn with_lines(self, text: &str) -> Layer {
        let mut lines = BTreeMap::new();
        if let Ok(document) = DeTable::parse(text) {
            number_lines(document.get_ref(), "", text, &mut lines);
        }
        Layer { lines, ..self }
    }

    /// The names of its lanes, those of its routes and connectors included.
    pub(super) fn lanes(&self) -> impl Iterator<Item = String> {
        let sections = [("lanes", ""), ("proxy", proxy::LANE_PREFIX), ("connectors", connector::LANE_PREFIX)];
        sections.into_iter().flat_map(|(section, prefix)| {
            let named = self.table.get(section).and_then(Value::as_table).into_iter().flatten();
            named.map(move |(name, _)| format!("{prefix}{name}"))
        })
    }

    fn origin(&self, path: &str) -> Origin {
        match &self.origin {
            Origin::File(file, _) => Origin::File(file.clone(), self.lines.get(path).copied().unwrap_or(0)),
            other => other.clone(),
        }
    }

    /// Leaves out what stands at a path; whether there was something.
    fn leave_out(&mut self, path: &[String]) -> bool {
        let Some((last, sections)) = path.split_last() else { return false };
        let section = sections.iter().try_fold(&mut self.table, |table, key| table.get_mut(key)?.as_table_mut());
        section.is_some_and(|table| table.remove(last).is_some())
    }
}

fn number_lines(table: &DeTable<'_>, path: &str, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let path = join(path, key.get_ref());
        let before = text.get(..key.span().start).unwrap_or_default();
        lines.insert(path.clone(), before.matches('\n').count() + 1);
        if let DeValue::Table(table) = value.get_ref() {
            number_lines(table, &path, text, lines);
        }
    }
}

/// The keys of a path that [`join`] made; the number of a list's entry is left out.
fn keys_of(path: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (key, after) = match rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            Some((key, after)) => (key, after),
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        keys.push(key.to_owned());
        rest = match after.strip_prefix('.') {
            Some(next) => next,
            None => break,
        };
    }
    keys
}

/// Leaves out what stands at a path in the uppermost layer that says it, so that the one below it counts; whether there
/// was one. The built-in defaults stay.
pub(super) fn leave_out(layers: &mut [Layer], path: &str) -> bool {
    let keys = keys_of(path);
    layers.iter_mut().skip(1).rev().any(|layer| layer.leave_out(&keys))
}

/// The merged table and where each part of it came from.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) table: Table,
    origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// Puts layers on top of each other, the last one uppermost.
    pub(super) fn merged(layers: &[Layer]) -> Layers {
        let mut merged = Layers::default();
        for layer in layers {
            merge(&mut merged.table, layer.table.clone(), "", layer, &mut merged.origins);
        }
        merged
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

fn merge(below: &mut Table, table: Table, path: &str, layer: &Layer, origins: &mut BTreeMap<String, Origin>) {
    if path.starts_with("lanes.") && path.ends_with(".retry") {
        give_way(below, &table);
    }
    for (key, value) in table {
        let path = join(path, &key);
        match value {
            Value::Table(table) => {
                let place = below.entry(key).or_insert_with(|| Value::Table(Table::new()));
                if !place.is_table() {
                    *place = Value::Table(Table::new());
                    origins.insert(path.clone(), layer.origin(&path));
                }
                origins.entry(path.clone()).or_insert_with(|| layer.origin(&path));
                if let Value::Table(place) = place {
                    merge(place, table, &path, layer, origins);
                }
            }
            other => {
                below.insert(key, other);
                let origin = layer.origin(&path);
                origins.insert(path, origin);
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
/// A lane's name may have a colon, which no shell takes in a variable's name: `EMAIL_SEND` is the lane `email:send` where
/// there is such a one among `lanes`.
pub(super) fn from_variable(name: &str, text: &str, lanes: &[String]) -> Result<Option<Table>, ConfigError> {
    let upper = name.to_ascii_uppercase();
    let Some(path) = upper.strip_prefix(PREFIX).filter(|path| path.contains(SEPARATOR)) else { return Ok(None) };
    if path.split(SEPARATOR).any(str::is_empty) {
        return Err(ConfigError::BadVariable { name: name.to_owned() });
    }
    if text.is_empty() {
        return Ok(None);
    }
    let mut keys: Vec<String> = path.split(SEPARATOR).map(str::to_ascii_lowercase).collect();
    if let [section, lane, ..] = &mut keys[..]
        && section == "lanes"
        && !lanes.contains(lane)
        && let Some(meant) = lanes.iter().find(|known| known.replace([':', '-', '.'], "_") == *lane)
    {
        lane.clone_from(meant);
    }
    let value = text.parse::<Value>().unwrap_or_else(|_| Value::from(text));
    Ok(Some(at(&keys.iter().map(String::as_str).collect::<Vec<_>>(), value)))
}

/// A layer with one value.
pub(super) fn at(path: &[&str], value: Value) -> Table {
    let (last, tables) = path.split_last().expect("a path names a key");
    let leaf = Table::from_iter([((*last).to_owned(), value)]);
    tables.iter().rev().fold(leaf, |layer, key| Table::from_iter([((*key).to_owned(), Value::Table(layer))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_back_as_its_keys() {
        let keys = ["lanes", "email:send", "retry", "delays"];
        let path = keys.iter().fold(String::new(), |path, key| join(&path, key));
        assert_eq!(keys_of(&format!("{path}[2]")), keys);
        assert_eq!(keys_of("server.listen"), ["server", "listen"]);
    }

    #[test]
    fn what_is_left_out_of_the_uppermost_layer_is_what_the_one_below_says() {
        let layer = |text: &str| Layer::new(text.parse().unwrap(), Origin::Flag("--x"));
        let mut layers = vec![layer("[a]\nb = 1"), layer("[a]\nb = 2"), layer("[a]\nb = 3\nc = 4")];
        for expected in [3, 2, 1] {
            assert_eq!(Layers::merged(&layers).table["a"]["b"].as_integer(), Some(expected));
            assert_eq!(leave_out(&mut layers, "a.b"), expected > 1, "the defaults stay");
        }
    }
}
