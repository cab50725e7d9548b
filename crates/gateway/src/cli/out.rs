//! Output: tables for people, JSON for programs.
//! Invariant: foreign text is shown as text; nothing in it reaches the terminal as a command.
//! Never: colours.

use std::io::{self, IsTerminal, Write};

use comfy_table::{Table, presets};
use entrega_core::time::Time;
use serde_json::Value;

use super::error::CliError;
use super::text::clean;
use entrega_call::Clock;

const CELL_CHARS_MAX: usize = 72;
/// What stands where there is nothing.
const NOTHING: &str = "-";

/// Where results go.
pub(super) struct Out {
    json: bool,
    is_terminal: bool,
    now: Time,
    sink: Box<dyn Write>,
}

impl Out {
    /// To stdout.
    pub(super) fn stdout(json: bool) -> Out {
        let stdout = io::stdout();
        Out { json, is_terminal: stdout.is_terminal(), now: Clock::system().now(), sink: Box::new(stdout) }
    }

    /// To somewhere else.
    #[cfg(test)]
    pub(super) fn to(sink: Box<dyn Write>, json: bool) -> Out {
        Out { json, is_terminal: false, now: Clock::system().now(), sink }
    }

    /// The API's answer: as it is for programs, told in words for people.
    pub(super) fn answer(&mut self, value: &Value, tell: impl FnOnce(&Out) -> String) -> Result<(), CliError> {
        if self.json {
            return self.json(value);
        }
        let text = tell(self);
        self.bytes(text.trim_end().as_bytes())?;
        self.bytes(b"\n")
    }

    /// JSON, whoever reads it.
    pub(super) fn json(&mut self, value: &Value) -> Result<(), CliError> {
        self.bytes(format!("{value:#}\n").as_bytes())
    }

    /// Bytes as they are.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.sink.write_all(bytes)?;
        self.sink.flush()?;
        Ok(())
    }

    /// The place itself, for results that come in pieces.
    pub(super) fn sink(&mut self) -> &mut dyn Write {
        &mut self.sink
    }

    /// A table. Plain columns where a program may read them, lines around them on a terminal.
    pub(super) fn table<const N: usize>(&self, head: [&str; N], rows: Vec<[String; N]>) -> String {
        let mut table = Table::new();
        table.load_style(if self.is_terminal { presets::UTF8_FULL_CONDENSED } else { presets::NOTHING });
        table.set_header(head);
        for row in rows {
            table.add_row(row.map(|cell| cut(&cell)));
        }
        let lines = table.to_string();
        // Without lines around it, the first column needs no space before it.
        let bare = |line: &'_ str| if self.is_terminal { line.to_owned() } else { line.trim().to_owned() };
        lines.lines().map(bare).collect::<Vec<_>>().join("\n") + "\n"
    }

    /// How long ago a moment of an answer was.
    pub(super) fn age(&self, row: &Value, key: &str) -> String {
        let Some(time) = row.get(key).and_then(Value::as_str).and_then(|text| text.parse::<Time>().ok()) else {
            return NOTHING.to_owned();
        };
        rough(self.now.since(time).as_secs())
    }
}

/// Seconds in the largest unit that says enough: `47s`, `12m`, `5h`, `3d`.
fn rough(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A field of an answer as text.
pub(super) fn text(row: &Value, key: &str) -> String {
    let value = key.split('.').try_fold(row, |value, key| value.get(key));
    match value {
        None | Some(Value::Null) => NOTHING.to_owned(),
        Some(Value::String(text)) => clean(text),
        Some(other) => clean(&other.to_string()),
    }
}

/// The rows of a listing.
pub(super) fn items(answer: &Value) -> &[Value] {
    answer.get("items").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Names and values, one a line.
pub(super) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = pairs.iter().filter(|(_, value)| value != NOTHING);
    shown.map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// The attempts of a job or dead letter, and what was answered to them where that is kept.
pub(super) fn attempts(out: &Out, row: &Value) -> String {
    let attempts = row.get("attempts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        return String::new();
    }
    let rows = attempts.iter().map(|attempt| {
        [
            text(attempt, "number"),
            text(attempt, "startedAt"),
            format!("{}ms", text(attempt, "durationMs")),
            text(attempt, "code"),
            text(attempt, "reason"),
        ]
    });
    let answered = attempts.iter().filter(|attempt| attempt.get("answer").is_some());
    let answers =
        answered.map(|attempt| format!("answer to {}: {}\n", text(attempt, "number"), text(attempt, "answer")));
    let table = out.table(["ATTEMPT", "STARTED", "TOOK", "CODE", "REASON"], rows.collect());
    format!("\n{table}{}", answers.collect::<String>())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn foreign_text_cannot_command_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\r\nc\u{202e}d"), "a [2Jb  c d");
    }

    #[test]
    fn an_answer_is_shown_whole_below_the_attempts() {
        let said = "no ".repeat(100);
        let attempt = |number: u32| serde_json::json!({ "number": number, "durationMs": 5, "code": "http_500" });
        let mut second = attempt(2);
        second["answer"] = said.clone().into();
        let shown =
            attempts(&Out::to(Box::new(io::sink()), false), &serde_json::json!({ "attempts": [attempt(1), second] }));
        assert!(shown.ends_with(&format!("answer to 2: {said}\n")) && !shown.contains("answer to 1"), "{shown}");
    }

    #[test]
    fn ages_are_rough() {
        let ages = [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (200_000, "2d")];
        for (seconds, shown) in ages {
            assert_eq!(rough(seconds), shown);
        }
    }
}
