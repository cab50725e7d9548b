//! A group as the arguments of its script, and the names of keys.
//! Invariant: units without conditions that follow each other are one run, and a unit with conditions is one by itself;
//! within a run the last operation on a key counts. What is left is one command for each table and kind.

use std::collections::HashMap;

use crate::group::{EntryId, Expect, Group, Key, Op, Unit, When};
use crate::{Shard, Table, Token};

/// The names of all keys.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Names {
        Names { prefix: format!("{prefix}:") }
    }

    /// What all of them begin with, as it was given.
    pub(super) fn prefix(&self) -> &str {
        self.prefix.strip_suffix(':').unwrap_or(&self.prefix)
    }

    pub(super) fn incarnation(&self) -> String {
        format!("{}incarnation", self.prefix)
    }

    /// What a version that kept its data in another way always had.
    pub(super) fn older_registry(&self) -> String {
        format!("{}registry", self.prefix)
    }

    pub(super) fn table(&self, table: Table) -> String {
        format!("{}table:{}", self.prefix, table.name)
    }

    /// Nothing for a table that needs none.
    pub(super) fn index(&self, table: Table) -> String {
        if table.scanned { format!("{}index:{}", self.prefix, table.name) } else { String::new() }
    }

    pub(super) fn shard(&self, shard: &Shard) -> String {
        format!("{}shard:{shard}", self.prefix)
    }

    pub(super) fn inbox(&self, shard: &Shard) -> String {
        format!("{}inbox:{shard}", self.prefix)
    }

    pub(super) fn signals(&self) -> String {
        format!("{}signals", self.prefix)
    }
}

pub(super) fn token_text(token: Token) -> String {
    format!("{}:{}", token.epoch, token.node)
}

pub(super) fn token_of(text: &str) -> Option<Token> {
    let (epoch, node) = text.split_once(':')?;
    Some(Token { epoch: epoch.parse().ok()?, node: node.parse().ok()? })
}

/// Gives the arguments of a group's script, one after the other.
pub(super) fn arguments(names: &Names, incarnation: &str, group: &Group, give: &mut dyn FnMut(&[u8])) {
    let mut say = |text: &str| give(text.as_bytes());
    say(&names.prefix);
    say(incarnation);
    say(&group.fences.len().to_string());
    for fence in &group.fences {
        say(fence.shard.as_str());
        say(&token_text(fence.token));
        say(&fence.seq.to_string());
    }
    let runs: Vec<&[Unit]> = group.units.chunk_by(|one, next| one.when.is_empty() && next.when.is_empty()).collect();
    say(&runs.len().to_string());
    for units in runs {
        give(units.len().to_string().as_bytes());
        conditions(names, units.first().map_or(&[], |unit| &unit.when), give);
        commands(names, units, give);
    }
}

fn conditions(names: &Names, conditions: &[When], give: &mut dyn FnMut(&[u8])) {
    give(conditions.len().to_string().as_bytes());
    for when in conditions {
        give(names.table(when.table).as_bytes());
        when.key.with(&mut *give);
        match &when.expect {
            Expect::Absent => [&b"1"[..], b""].into_iter().for_each(&mut *give),
            Expect::Is(value) => [&b"0"[..], value].into_iter().for_each(&mut *give),
        }
    }
}

fn words(words: [&str; 4], give: &mut dyn FnMut(&[u8])) {
    words.iter().for_each(|word| give(word.as_bytes()));
}

/// What is done with the rows of one table.
#[derive(Default)]
struct Rows<'a> {
    puts: Vec<(&'a Key, &'a [u8])>,
    removals: Vec<&'a Key>,
}

fn commands(names: &Names, units: &[Unit], give: &mut dyn FnMut(&[u8])) {
    let ops = || units.iter().flat_map(|unit| &unit.ops);
    let mut last = HashMap::with_capacity_and_hasher(ops().count(), foldhash::fast::RandomState::default());
    for (place, op) in ops().enumerate() {
        if let Op::Put(table, key, _) | Op::Remove(table, key) = op {
            last.insert((*table, key), place);
        }
    }
    let mut tables: Vec<(Table, Rows<'_>)> = Vec::new();
    let mut appends: Vec<(&Shard, &[u8])> = Vec::new();
    let mut takes: Vec<(&Shard, Vec<EntryId>)> = Vec::new();
    for (place, op) in ops().enumerate() {
        let (table, key) = match op {
            Op::Put(table, key, _) | Op::Remove(table, key) => (table, key),
            Op::Append(shard, bytes) => {
                appends.push((shard, bytes));
                continue;
            }
            Op::Take(shard, entry) => {
                match takes.iter_mut().find(|(known, _)| *known == shard) {
                    Some((_, entries)) => entries.push(*entry),
                    None => takes.push((shard, vec![*entry])),
                }
                continue;
            }
        };
        if last.get(&(*table, key)) != Some(&place) {
            continue;
        }
        let known = tables.iter().position(|(known, _)| known == table);
        let known = known.unwrap_or_else(|| {
            tables.push((*table, Rows::default()));
            tables.len() - 1
        });
        match op {
            Op::Put(_, _, value) => tables[known].1.puts.push((key, value)),
            _ => tables[known].1.removals.push(key),
        }
    }
    let runs =
        tables.iter().map(|(_, rows)| usize::from(!rows.puts.is_empty()) + usize::from(!rows.removals.is_empty()));
    give((runs.sum::<usize>() + appends.len() + takes.len()).to_string().as_bytes());
    for (table, rows) in &tables {
        let (hash, index) = (names.table(*table), names.index(*table));
        if !rows.puts.is_empty() {
            words(["put", &hash, &index, &(rows.puts.len() * 2).to_string()], give);
            for (key, value) in &rows.puts {
                key.with(&mut *give);
                give(value);
            }
        }
        if !rows.removals.is_empty() {
            words(["remove", &hash, &index, &rows.removals.len().to_string()], give);
            rows.removals.iter().for_each(|key| key.with(&mut *give));
        }
    }
    for (shard, bytes) in appends {
        words(["append", &names.inbox(shard), "", "1"], give);
        give(bytes);
    }
    for (shard, entries) in takes {
        words(["take", &names.inbox(shard), "", &entries.len().to_string()], give);
        entries.iter().for_each(|EntryId(high, low)| give(format!("{high}-{low}").as_bytes()));
    }
}
