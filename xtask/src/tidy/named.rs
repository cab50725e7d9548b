//! Named places: a `file.rs:function` in a guide is there.
//!
//! Owns: the pages that name functions.
//! Invariant: a finding names the page's line.
//! Never: looks whether the function does what the page says.

use super::Finding;
use super::source::Source;

pub(super) fn gone(sources: &[Source]) -> Vec<Finding> {
    let pages = sources.iter().filter(|source| source.path.starts_with("docs/") && source.path.ends_with(".md"));
    pages.flat_map(|page| gone_in(page, sources)).collect()
}

fn gone_in(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        for (path, function) in line.split('`').filter_map(|word| word.split_once(".rs:")) {
            let path = format!("{path}.rs");
            let is_there = sources.iter().any(|source| source.path == path && has(source, function));
            if !is_there {
                findings.push(Finding::new(page, index + 1, format!("there is no `{function}` in {path}")));
            }
        }
    }
    findings
}

fn has(source: &Source, function: &str) -> bool {
    source.code_words(function).any(|at| source.code[..at].trim_end().ends_with("fn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_a_guide_names_is_there() {
        let code = Source::new("crates/a/src/b.rs", "pub(super) async fn send() {}\nfn c() { gone() } // fn gone()");
        let page = |text: &str| Source::new("docs/x.md", text);
        let lines = |text: &str| {
            let found = gone(&[Source::new(&code.path, &code.text), page(text)]);
            found.iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert!(lines("- `crates/a/src/b.rs:send`: it sends; `crates/a/src/b.rs` alone").is_empty());
        assert_eq!(lines("\n- `crates/a/src/b.rs:gone` and `crates/a/src/c.rs:send`"), [2, 2]);
    }
}
