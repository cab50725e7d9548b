//! Parameters: what may be asked of a route.
//! Invariant: a value that was read has one plain form, so that equal questions are equal.
//! Never: shows a value in an error; it may be somebody's own.

use std::fmt;
use std::sync::Arc;

use entrega_core::cpf::{BadCpf, Cpf};
use regex_lite::Regex;

/// Characters of a text.
pub const TEXT_CHARS_MAX: usize = 256;

/// One parameter of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What fits.
    pub kind: ParamKind,
    /// Whether a question without it is refused.
    pub is_required: bool,
}

/// What fits a parameter.
#[derive(Clone, Debug)]
pub enum ParamKind {
    /// A CPF with valid check digits; punctuation is taken off.
    Cpf,
    /// A whole number.
    Integer,
    /// A text, all of which fits the pattern if there is one.
    Text {
        /// As it was written.
        pattern: Option<String>,
        /// The same, to be used.
        whole: Option<Arc<Regex>>,
    },
}

impl PartialEq for ParamKind {
    fn eq(&self, other: &ParamKind) -> bool {
        match (self, other) {
            (ParamKind::Cpf, ParamKind::Cpf) | (ParamKind::Integer, ParamKind::Integer) => true,
            (ParamKind::Text { pattern: one, .. }, ParamKind::Text { pattern: other, .. }) => one == other,
            _ => false,
        }
    }
}

/// Why a value does not fit; reads well after "must be".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadParam {
    /// No CPF.
    #[error(transparent)]
    Cpf(#[from] BadCpf),
    /// No number, or one that is too large.
    #[error("a whole number of at most 18 digits")]
    Integer,
    /// A text that does not fit.
    #[error("{0}")]
    Text(String),
}

impl ParamKind {
    /// A text, all of which fits `pattern` if there is one.
    pub fn text(pattern: Option<&str>) -> Result<ParamKind, regex_lite::Error> {
        let whole = pattern.map(|pattern| Regex::new(&format!("^(?:{pattern})$")).map(Arc::new)).transpose()?;
        Ok(ParamKind::Text { pattern: pattern.map(str::to_owned), whole })
    }

    /// The plain form of a value.
    pub fn read(&self, value: &str) -> Result<String, BadParam> {
        match self {
            ParamKind::Cpf => Ok(Cpf::parse(value)?.digits()),
            ParamKind::Integer => {
                let number = value.parse::<i64>().ok().filter(|_| value.len() <= 19).ok_or(BadParam::Integer)?;
                Ok(number.to_string())
            }
            ParamKind::Text { whole, .. } => {
                let length_fits = (1..=TEXT_CHARS_MAX * 4).contains(&value.len())
                    && value.chars().count() <= TEXT_CHARS_MAX
                    && !value.chars().any(char::is_control);
                let fits = length_fits && whole.as_ref().is_none_or(|whole| whole.is_match(value));
                fits.then(|| value.to_owned()).ok_or_else(|| BadParam::Text(self.rule()))
            }
        }
    }

    /// What fits, in words.
    pub fn rule(&self) -> String {
        match self {
            ParamKind::Cpf => "a CPF: 11 digits with valid check digits, punctuation allowed".into(),
            ParamKind::Integer => BadParam::Integer.to_string(),
            ParamKind::Text { pattern, .. } => {
                let length = format!("a text of 1 to {TEXT_CHARS_MAX} characters without control characters");
                pattern.as_ref().map_or(length.clone(), |pattern| format!("{length} that fits {pattern}"))
            }
        }
    }
}

impl fmt::Display for ParamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParamKind::Cpf => "cpf",
            ParamKind::Integer => "integer",
            ParamKind::Text { .. } => "text",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_one_plain_form() {
        let state = ParamKind::text(Some("[A-Z]{2}|--")).unwrap();
        for (kind, value, plain) in [
            (&ParamKind::Cpf, "529.982.247-25", Some("52998224725")),
            (&ParamKind::Cpf, "529.982.247-26", None),
            (&ParamKind::Integer, "0042", Some("42")),
            (&ParamKind::Integer, "-7", Some("-7")),
            (&ParamKind::Integer, "4.2", None),
            (&ParamKind::Integer, "99999999999999999999", None),
            (&state, "SP", Some("SP")),
            (&state, "SPX", None),
            (&state, "xSP", None),
            (&state, "SP\n", None),
        ] {
            assert_eq!(kind.read(value).ok().as_deref(), plain, "{kind} {value:?}");
        }
        let free = ParamKind::text(None).unwrap();
        assert!(free.read(&"é".repeat(256)).is_ok() && free.read(&"é".repeat(257)).is_err());
        assert!(free.read("").is_err() && free.read("a\0b").is_err());
    }
}
