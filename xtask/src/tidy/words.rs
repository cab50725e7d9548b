//! Words: what no file says.
//!
//! Owns: the rules which a search for a word decides.
//! Invariant: what stands in a literal is data, not code.
//! Never: judges style that rustfmt or clippy already judge.

use super::Finding;
use super::source::{Source, words};

const VAGUE: [&str; 6] = ["utils", "common", "helpers", "manager", "service", "misc"];
/// In two pieces, for this file is looked at as well.
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

pub(super) fn unfinished(source: &Source) -> Vec<Finding> {
    let in_code =
        ["todo!", "unimplemented!"].into_iter().flat_map(|word| source.code_words(word).map(move |at| (at, word)));
    let in_comments =
        ["TODO", "FIXME"].into_iter().flat_map(|word| words(&source.comments, word).map(move |at| (at, word)));
    in_code
        .chain(in_comments)
        .map(|(at, word)| Finding::new(source, source.line(at), format!("unfinished: {word}")))
        .collect()
}

pub(super) fn allow_without_reason(source: &Source) -> Vec<Finding> {
    let attribute = |at: usize| {
        let rest = &source.code[at..];
        &rest[..rest.find(")]").unwrap_or(rest.len())]
    };
    ["#[allow(", "#![allow("]
        .into_iter()
        .flat_map(|opening| source.code_words(opening))
        .filter(|at| words(attribute(*at), "reason").next().is_none())
        .map(|at| Finding::new(source, source.line(at), "an allow without `reason = `"))
        .collect()
}

pub(super) fn module_without_opening(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().find(|line| !line.trim().is_empty());
    if first.is_some_and(|line| line.starts_with("//!")) {
        return Vec::new();
    }
    let what = "a module opens with `//!`: what it owns, its invariant, what it never does";
    vec![Finding::new(source, 1, what)]
}

pub(super) fn endless_channel(source: &Source) -> Vec<Finding> {
    source
        .code_words("unbounded_channel")
        .map(|at| Finding::new(source, source.line(at), "a channel without a bound"))
        .collect()
}

pub(super) fn vague_name(source: &Source) -> Vec<Finding> {
    let what = |name: &str| format!("`{name}` says nothing; name what it owns");
    let is_path = |name: &&str| source.stem() == *name || source.is_under(name);
    let in_path = VAGUE.into_iter().filter(is_path).map(|name| Finding::new(source, 1, what(name)));
    let inline = source.code_words("mod").filter_map(|at| {
        let rest = source.code[at + "mod".len()..].trim_start();
        let name = VAGUE.into_iter().find(|name| words(rest, name).next() == Some(0))?;
        Some(Finding::new(source, source.line(at), what(name)))
    });
    in_path.chain(inline).collect()
}

/// A path of one machine means nothing on another. `docs/work/` is not one.
pub(super) fn machine_path(source: &Source) -> Vec<Finding> {
    let starts_here = |at: usize| {
        let before = source.text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~$})".contains(c))
    };
    MACHINE_PATHS
        .into_iter()
        .flat_map(|path| source.text.match_indices(path))
        .filter(|(at, _)| starts_here(*at))
        .map(|(at, path)| Finding::new(source, source.line(at), format!("a machine's path: {path}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Rule;
    use super::*;

    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        let found = rule(&Source::new(path, text));
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_is_found_in_code_and_comments_only() {
        let text = "//! A.\ntodo!();\n// TODO x\nunimplemented!(); // FIXME\nf(\"TODO todo!\");\n";
        assert_eq!(lines(unfinished, "a.rs", text), [2, 4, 3, 4]);
        assert!(lines(unfinished, "a.rs", "// TODOS\nmy_todo!();").is_empty());
    }

    #[test]
    fn an_allow_needs_its_reason_even_over_several_lines() {
        let text = "#[allow(dead_code)]\n#[allow(\n  x,\n  reason = \"y\"\n)]\n#![allow(z)]\n";
        assert_eq!(lines(allow_without_reason, "a.rs", text), [1, 6]);
    }

    #[test]
    fn a_module_opens_with_its_purpose() {
        assert_eq!(lines(module_without_opening, "a.rs", "use a;\n//! Late.\n"), [1]);
        assert_eq!(lines(module_without_opening, "a.rs", ""), [1]);
        assert!(lines(module_without_opening, "a.rs", "\n//! A.\n").is_empty());
    }

    #[test]
    fn channels_have_a_bound() {
        let text = "let (a, b) = mpsc::unbounded_channel();\n// unbounded_channel\n";
        assert_eq!(lines(endless_channel, "a.rs", text), [1]);
    }

    #[test]
    fn vague_names_are_found_in_paths_and_modules() {
        assert_eq!(lines(vague_name, "src/utils.rs", "//! A.\n"), [1]);
        assert_eq!(lines(vague_name, "src/common/a.rs", "//! A.\n"), [1]);
        assert_eq!(lines(vague_name, "a.rs", "\npub mod helpers {}\n"), [2]);
        assert!(lines(vague_name, "a.rs", "mod miscount; mod service_map;").is_empty());
    }

    #[test]
    fn paths_of_one_machine_are_found_in_every_text() {
        let text = format!("ok\nsee `{}x`\n", MACHINE_PATHS[0]);
        assert_eq!(lines(machine_path, "a.md", &text), [2]);
        let relative = format!("docs{}a and $HOME{}b", MACHINE_PATHS[0], MACHINE_PATHS[1]);
        assert!(lines(machine_path, "a.md", &relative).is_empty());
    }
}
