//! Templates: texts with places for parameters, such as `cache:score:{cpf}`.
//! Invariant: what stands in braces is a name; nothing else is special.

use std::collections::BTreeMap;

/// A text with places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(String),
}

/// A brace without its other half, or with no name between.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a text with places such as {{name}}")]
pub struct BadTemplate;

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Template, BadTemplate> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            parts.push(Part::Text(rest[..open].to_owned()));
            let (name, after) =
                rest[open..].strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or(BadTemplate)?;
            if name.is_empty() || name.contains('{') {
                return Err(BadTemplate);
            }
            parts.push(Part::Place(name.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Template { text: text.to_owned(), parts })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of its places.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// What stands before the first of these characters.
    pub fn before(&self, end: char) -> Template {
        let text = self.text.split(end).next().unwrap_or_default();
        Template::parse(text).unwrap_or_else(|_| self.clone())
    }

    /// The text with values in its places; one that is not given leaves its place empty.
    pub fn fill(&self, values: &BTreeMap<String, String>, write: impl Fn(&str) -> String) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Place(name) => values.get(name).map(|value| write(value)).unwrap_or_default(),
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_the_rest_stays() {
        let values = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        for (text, filled) in [("x{a}y{a}", "x1y1"), ("{a}", "1"), ("plain", "plain"), ("{b}!", "!"), ("", "")] {
            let template = Template::parse(text).unwrap();
            assert_eq!((template.fill(&values, str::to_owned).as_str(), template.as_str()), (filled, text));
        }
        assert_eq!(Template::parse("{a}-{b}").unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
        for text in ["{", "}", "{}", "a{b", "a}b", "{a{b}}"] {
            assert_eq!(Template::parse(text), Err(BadTemplate), "{text}");
        }
    }
}
