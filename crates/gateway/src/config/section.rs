//! Sections: a table of the configuration while it is read.
//! Invariant: a key is known because somebody asks for it; what is left when reading ends is unknown.
//! Never: guesses; a value that does not fit is refused with what would fit.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use entrega_core::time::parse_duration;
use toml::{Table, Value};

use super::error::{ConfigError, Origin};
use super::layer::{Layers, join};

const VALUE_SHOWN_CHARS: usize = 60;

/// A table being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    path: String,
    table: Table,
    asked: Vec<&'static str>,
    layers: &'a Layers,
}

impl<'a> Section<'a> {
    /// The whole configuration.
    pub(super) fn root(layers: &'a Layers) -> Section<'a> {
        Section { path: String::new(), table: layers.table.clone(), asked: Vec::new(), layers }
    }

    /// The value of a key, if it is there.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Given<'a>> {
        self.asked.push(key);
        self.take(key)
    }

    /// The value of a key that must be there.
    pub(super) fn need(&mut self, key: &'static str, right: &'static str) -> Result<Given<'a>, ConfigError> {
        self.get(key).ok_or_else(|| ConfigError::Missing { key: join(&self.path, key), right })
    }

    /// The value of a key that the built-in defaults always give.
    pub(super) fn get_default(&mut self, key: &'static str) -> Result<Given<'a>, ConfigError> {
        self.need(key, "it stands in the built-in defaults, so this program was built wrongly")
    }

    /// Everything that is there, where the keys are names that people choose.
    pub(super) fn named(mut self) -> impl Iterator<Item = (String, Given<'a>)> {
        let names: Vec<String> = self.table.keys().cloned().collect();
        names.into_iter().filter_map(move |name| self.take(&name).map(|given| (name, given)))
    }

    /// Refuses two keys that are both there.
    pub(super) fn exclude(&self, key: &str, others: &[&str]) -> Result<(), ConfigError> {
        let other = others.iter().find(|other| self.table.contains_key(**other) && self.table.contains_key(key));
        other.map_or(Ok(()), |other| {
            let key = join(&self.path, key);
            Err(ConfigError::Clash { other: join(&self.path, other), origin: self.layers.origin(&key), key })
        })
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let Some(key) = self.table.keys().next() else { return Ok(()) };
        let path = join(&self.path, key);
        let hint = match nearest(key, &self.asked) {
            Some(near) => format!("did you mean '{}'?", join(&self.path, near)),
            None => format!("known here: {}", self.asked.join(", ")),
        };
        Err(ConfigError::UnknownKey { origin: self.layers.origin(&path), key: path, hint })
    }

    fn take(&mut self, key: &str) -> Option<Given<'a>> {
        let value = self.table.remove(key)?;
        Some(Given { path: join(&self.path, key), value, layers: self.layers })
    }
}

fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let distance = |known: &&&'k str| strsim::damerau_levenshtein(key, known);
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= 1 + key.len() / 4).then_some(*near)
}

/// A value that somebody gave.
#[derive(Debug)]
pub(super) struct Given<'a> {
    path: String,
    value: Value,
    layers: &'a Layers,
}

impl<'a> Given<'a> {
    /// Where it came from.
    pub(super) fn origin(&self) -> Origin {
        self.layers.origin(&self.path)
    }

    /// The error that says what would be right.
    pub(super) fn must_be(&self, right: impl Into<String>) -> ConfigError {
        let shown = self.value.to_string();
        // A URL may carry a password; its scheme is enough to recognise it.
        let shown = match self.value.as_str().and_then(|text| text.split_once("://")) {
            Some((scheme, _)) => format!("\"{scheme}://…\""),
            None => shown,
        };
        let mut value: String = shown.chars().take(VALUE_SHOWN_CHARS).collect();
        if value.len() < shown.len() {
            value.push('…');
        }
        ConfigError::BadValue { key: self.path.clone(), origin: self.origin(), value, right: right.into() }
    }

    /// The same for a value that may hold a password even where it is not well formed.
    pub(super) fn hidden_must_be(&self, right: impl Into<String>) -> ConfigError {
        let value = "\"…\"".to_owned();
        ConfigError::BadValue { key: self.path.clone(), origin: self.origin(), value, right: right.into() }
    }

    /// A table.
    pub(super) fn section(self) -> Result<Section<'a>, ConfigError> {
        match self.value {
            Value::Table(table) => Ok(Section { path: self.path, table, asked: Vec::new(), layers: self.layers }),
            _ => Err(self.must_be("a table, such as { key = value }")),
        }
    }

    /// `None` for the word `none`.
    pub(super) fn unless_none(self) -> Option<Given<'a>> {
        (self.value.as_str() != Some("none")).then_some(self)
    }

    /// A text. A variable's text may look like a number; here it is none.
    pub(super) fn text(&self) -> Result<String, ConfigError> {
        match (&self.value, self.origin()) {
            (Value::String(text), _) => Ok(text.clone()),
            (Value::Table(_) | Value::Array(_), _) => Err(self.must_be("a text in quotes")),
            (plain, Origin::Env(_)) => Ok(plain.to_string()),
            _ => Err(self.must_be("a text in quotes")),
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.must_be("true or false"))
    }

    /// A whole number.
    pub(super) fn number<N: TryFrom<i64> + PartialOrd + Display>(
        &self,
        range: RangeInclusive<N>,
    ) -> Result<N, ConfigError> {
        let number = self.value.as_integer().and_then(|number| N::try_from(number).ok());
        let right = || self.must_be(format!("a whole number from {} to {}", range.start(), range.end()));
        number.filter(|number| range.contains(number)).ok_or_else(right)
    }

    /// A number with a fraction.
    pub(super) fn fraction(&self, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let number = self.value.as_float().or_else(|| self.value.as_integer().map(|number| number as f64));
        let right = || self.must_be(format!("a number from {} to {}", range.start(), range.end()));
        number.filter(|number| range.contains(number)).ok_or_else(right)
    }

    /// A duration.
    pub(super) fn duration(&self) -> Result<Duration, ConfigError> {
        let length = self.value.as_str().and_then(|text| parse_duration(text).ok());
        length.ok_or_else(|| {
            self.must_be("a duration: a whole number with ms, s, m, h or d, such as \"250ms\", \"5s\" or \"24h\"")
        })
    }

    /// A duration of at least a millisecond.
    pub(super) fn positive_duration(&self) -> Result<Duration, ConfigError> {
        let length = self.duration()?;
        if length.is_zero() { Err(self.must_be("longer than 0")) } else { Ok(length) }
    }

    /// A text that reads as something.
    pub(super) fn parse<T: FromStr>(&self, right: &str) -> Result<T, ConfigError> {
        self.text()?.parse().map_err(|_| self.must_be(right))
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let text = self.value.as_str();
        let found = words.iter().find(|(word, _)| Some(*word) == text).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| {
            let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.must_be(words.join(" or "))
        })
    }

    /// A list. In a variable it may also be written with commas.
    pub(super) fn list(self) -> Result<Vec<Given<'a>>, ConfigError> {
        let values = match (&self.value, self.origin()) {
            (Value::Array(values), _) => values.clone(),
            (Value::String(text), Origin::Env(_)) => {
                text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Value::from).collect()
            }
            _ => return Err(self.must_be("a list, such as [\"a\", \"b\"]")),
        };
        let place = |(index, value)| Given { path: format!("{}[{index}]", self.path), value, layers: self.layers };
        Ok(values.into_iter().enumerate().map(place).collect())
    }

    /// The number as text where statuses are wanted: `429` and `"429"` mean the same.
    pub(super) fn text_or_number(&self) -> Result<String, ConfigError> {
        match &self.value {
            Value::Integer(number) => Ok(number.to_string()),
            _ => self.text(),
        }
    }
}
