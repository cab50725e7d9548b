//! Targets: the address of a call, built from parts that people typed.
//! Invariant: a part stays one part, whatever characters are in it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A path with its query.
#[derive(Clone, Debug)]
pub(super) struct Target {
    text: String,
    has_query: bool,
}

impl Target {
    /// A path that is known to be one.
    pub(super) fn new(path: &'static str) -> Target {
        Target { text: path.to_owned(), has_query: false }
    }

    /// Adds a segment.
    pub(super) fn part(mut self, segment: &str) -> Target {
        self.text.push('/');
        encode(&mut self.text, segment);
        self
    }

    /// Adds a query parameter, where there is one.
    pub(super) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Target {
        if let Some(value) = value {
            self.text.push(if self.has_query { '&' } else { '?' });
            self.text.push_str(name);
            self.text.push('=');
            encode(&mut self.text, &value.to_string());
            self.has_query = true;
        }
        self
    }

    /// The text after the host.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

/// What may stand in a part as it is; a dot is harmless, but two of them alone are a way up.
const PLAIN: &AsciiSet = &DOTLESS.remove(b'.');
const DOTLESS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');

fn encode(text: &mut String, part: &str) {
    let is_dots = part.chars().all(|c| c == '.');
    text.extend(utf8_percent_encode(part, if is_dots { DOTLESS } else { PLAIN }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_parts() {
        let target = Target::new("/v1/jobs").part("a/../b?c").part("..").with("lane", Some("erp:calls"));
        let target = target.with("cursor", None::<String>).with("text", Some("no & é"));
        assert_eq!(target.as_str(), "/v1/jobs/a%2F..%2Fb%3Fc/%2E%2E?lane=erp:calls&text=no%20%26%20%C3%A9");
    }
}
