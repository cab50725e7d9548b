//! Time: read in one place, waited for nowhere.
//!
//! Owns: where the clock may be read and when a test may sleep.
//! Invariant: code outside of those places gets the time as an argument.
//! Never: looks through a macro or an alias; clippy's list does.

use std::ops::Range;

use super::Finding;
use super::source::Source;

/// The one that reads it.
const CLOCK: &str = "crates/call/src/clock.rs";
const TOOLING: [&str; 2] = ["xtask/", "crates/bench/"];

pub(super) fn clock_read(source: &Source) -> Vec<Finding> {
    let is_tooling = TOOLING.iter().any(|folder| source.path.starts_with(folder));
    if source.path == CLOCK || is_tooling || source.is_under("tests") {
        return Vec::new();
    }
    ["Instant::now", "SystemTime::now"]
        .into_iter()
        .flat_map(|word| source.code_words(word))
        .map(|at| Finding::new(source, source.line(at), format!("the clock is read; {CLOCK} does that")))
        .collect()
}

pub(super) fn sleep_in_test(source: &Source) -> Vec<Finding> {
    let ranges = test_ranges(source);
    source
        .code_words("sleep(")
        .filter(|at| ranges.iter().any(|range| range.contains(at)))
        .filter(|at| is_real_sleep(&source.code[..*at]))
        .map(|at| source.line(at))
        .filter(|line| !has_reason(source, *line))
        .map(|line| Finding::new(source, line, "a test sleeps without a `// reason:`"))
        .collect()
}

/// Those of `std`, `tokio` and an import of them; not a method, not a definition.
fn is_real_sleep(before: &str) -> bool {
    if let Some(path) = before.strip_suffix("::") {
        return path.ends_with("thread") || path.ends_with("time");
    }
    !before.ends_with('.') && !before.trim_end().ends_with("fn")
}

fn has_reason(source: &Source, line: usize) -> bool {
    [line, line - 1].into_iter().any(|line| source.comment_on(line).contains("// reason:"))
}

/// A whole file, or what `#[cfg(test)]` stands before.
fn test_ranges(source: &Source) -> Vec<Range<usize>> {
    if source.is_under("tests") || source.stem() == "tests" {
        return std::iter::once(0..source.code.len()).collect();
    }
    let attribute = "#[cfg(test)]";
    source.code_words(attribute).filter_map(|at| source.braces_after(at + attribute.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock_lines(path: &str, text: &str) -> Vec<usize> {
        let found = clock_read(&Source::new(path, text));
        found.into_iter().map(|finding| finding.line).collect()
    }

    fn sleep_lines(path: &str, text: &str) -> Vec<usize> {
        let found = sleep_in_test(&Source::new(path, text));
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_clock_is_read_in_its_own_file_and_in_tooling() {
        let text = "let a = Instant::now();\nlet b = SystemTime::now;\n// Instant::now()\n";
        assert_eq!(clock_lines("crates/core/src/a.rs", text), [1, 2]);
        for path in [CLOCK, "xtask/src/a.rs", "crates/bench/src/a.rs", "crates/core/tests/a.rs"] {
            assert!(clock_lines(path, text).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_test_that_sleeps_says_why() {
        let text =
            "thread::sleep(a);\n// reason: the kernel's timer\ntime::sleep(b);\nsleep(c); // reason: x\n\nsleep(d);\n";
        assert_eq!(sleep_lines("crates/a/tests/b.rs", text), [1, 6]);
        assert_eq!(sleep_lines("crates/a/src/tests.rs", text), [1, 6]);
        assert!(sleep_lines("crates/a/src/b.rs", text).is_empty());
    }

    #[test]
    fn only_the_test_module_of_a_source_file_is_a_test() {
        let text = "fn f() { sleep(a) }\n#[cfg(test)]\nmod tests {\n  fn g() { sleep(b) }\n}\nfn h() { sleep(c) }\n";
        assert_eq!(sleep_lines("crates/a/src/b.rs", text), [4]);
    }

    #[test]
    fn a_method_or_a_definition_named_sleep_is_no_sleep() {
        let text = "clock.sleep(a);\nfn sleep(a: u8) {}\nClock::sleep(b);\n";
        assert!(sleep_lines("crates/a/tests/b.rs", text).is_empty());
    }
}
