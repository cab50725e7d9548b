//! Figures of the API and the process around it, for `/metrics`.
//! Invariant: each has its HELP and TYPE; the engine's own figures are in its metrics, not here.

use std::fmt::{Display, Write as _};

use super::Api;

/// In the text format.
pub(super) fn render(api: &Api) -> String {
    let mut text = String::new();
    if let Some(log) = &api.log {
        let help = "Log lines that were dropped because nobody read them in time.";
        line(&mut text, "log_lines_dropped_total", "counter", help, log.dropped());
    }
    let help = "Calls that wait now: long polls, and requests to connectors.";
    line(&mut text, "api_waiting_calls", "gauge", help, api.waiting.count());
    let help = "Bytes of bodies and answers in memory now, small ones left out.";
    line(&mut text, "api_in_flight_bytes", "gauge", help, api.traffic.bytes());
    text
}

fn line(text: &mut String, name: &str, kind: &str, help: &str, value: impl Display) {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").expect("a text takes everything");
}
