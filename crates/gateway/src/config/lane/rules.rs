//! `classify`: what answers mean.

use entrega_core::classify::{Rule, Statuses, Verdict};
use entrega_core::outcome::Protocol;
use toml::Value;

use super::super::error::ConfigError;
use super::super::section::{Given, Section};
use super::super::value::{table, word};
use super::or;

const PROTOCOLS: [(&str, Protocol); 3] = [("http", Protocol::Http), ("smtp", Protocol::Smtp), ("ses", Protocol::Ses)];
const VERDICTS: [(&str, Verdict); 3] =
    [("success", Verdict::Success), ("retry", Verdict::Retry), ("permanent", Verdict::Permanent)];

pub(in crate::config) fn read(given: Given<'_>) -> Result<Vec<Rule>, ConfigError> {
    given.list()?.into_iter().map(|rule| read_rule(rule.section()?)).collect()
}

fn read_rule(mut rule: Section<'_>) -> Result<Rule, ConfigError> {
    let read = Rule {
        status: texts(rule.get("status"), |given| {
            let right = || given.must_be("an HTTP status or a range of them, such as \"503\" or \"500-599\"");
            Statuses::try_from(given.text_or_number()?).map_err(|_| right())
        })?,
        code: texts(rule.get("code"), |given| given.text())?,
        header: rule.get("header").map(|given| given.text()).transpose()?,
        message: rule.get("message").map(|given| given.text()).transpose()?,
        protocol: rule.get("protocol").map(|given| given.choice(&PROTOCOLS)).transpose()?,
        verdict: rule.need("verdict", "write verdict = \"success\", \"retry\" or \"permanent\"")?.choice(&VERDICTS)?,
    };
    rule.finish()?;
    Ok(read)
}

fn texts<T>(
    given: Option<Given<'_>>,
    read: impl Fn(&Given<'_>) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    or(given, Vec::new(), |given| given.list()?.iter().map(read).collect())
}

pub(in crate::config) fn print(rule: &Rule) -> Value {
    let mut table = table([("verdict", word(&VERDICTS, rule.verdict))]);
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
        set("protocol", word(&PROTOCOLS, protocol));
    }
    Value::Table(table)
}
