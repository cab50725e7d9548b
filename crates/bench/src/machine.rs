//! The machine a figure was seen on.
//!
//! Owns: its description and the date.
//! Invariant: what cannot be found out is `unknown`, never a guess.
//! Never: names the host or its user.

use std::process::Command;
use std::time::SystemTime;

use serde::Serialize;

/// What a reader needs to judge a figure.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The compiler's version.
    pub rustc: String,
    /// The day, in UTC, as `2026-03-01`.
    pub date: String,
    /// The load of the last minute before the run: above 0.5 or so, somebody
    /// else was at work and the figures are too low.
    pub load_before: Option<f64>,
}

impl Machine {
    /// Looks around; before the run, for the sake of the load.
    pub fn describe() -> Self {
        let memory_kib = field("/proc/meminfo", "MemTotal");
        let memory_kib = memory_kib.and_then(|text| text.split(' ').next()?.parse().ok());
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib.map_or(0, |kib: u64| kib / 1024),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            rustc: rustc().unwrap_or_else(unknown),
            load_before: load(),
            date: since_epoch.map_or_else(|_| unknown(), |t| date(t.as_secs() / 86_400)),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The value of the first `name : value` line.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    value(&text, name)
}

fn value(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn rustc() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (!text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The date of a day since 1970. Years start in March here, so that the odd
/// day of a leap year comes last.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leaps = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
        ] {
            assert_eq!(date(days), expected);
        }
    }

    #[test]
    fn a_field_is_the_first_of_its_name() {
        let text = "model\t: 1\nmodel name\t: Fast 3000\nmodel name\t: Slow\n";
        assert_eq!(value(text, "model name").as_deref(), Some("Fast 3000"));
        assert_eq!(value(text, "bogus"), None);
    }
}
