//! Size: a file one can hold in the head, a function one can see at once.
//!
//! Owns: the two limits.
//! Invariant: a limit counts every line, comments too: they are read as well.
//! Never: excuses a file; split it.

use super::Finding;
use super::source::Source;

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 80;

pub(super) fn file_too_long(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let what = format!("{lines} lines in a file, {FILE_LINES_MAX} are the limit");
    vec![Finding::new(source, FILE_LINES_MAX + 1, what)]
}

pub(super) fn function_too_long(source: &Source) -> Vec<Finding> {
    let too_long = |at: usize| {
        let name = name_after(source, at)?;
        let body = source.braces_after(at)?;
        let first = source.line(at);
        let lines = source.line(body.end - 1) - first + 1;
        let what = format!("{lines} lines in fn {name}, {FUNCTION_LINES_MAX} are the limit");
        (lines > FUNCTION_LINES_MAX).then(|| Finding::new(source, first, what))
    };
    source.code_words("fn").filter_map(too_long).collect()
}

/// `None` for the type `fn(A) -> B`.
fn name_after(source: &Source, at: usize) -> Option<&str> {
    let rest = source.code[at + "fn".len()..].trim_start();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_500_lines_and_not_one_more() {
        let full = Source::new("a.rs", &"x\n".repeat(500));
        assert!(file_too_long(&full).is_empty());
        let over = Source::new("a.rs", &"x\n".repeat(501));
        assert_eq!(file_too_long(&over)[0].line, 501);
    }

    #[test]
    fn a_function_may_have_80_lines_and_not_one_more() {
        let body = |lines: usize| format!("\nfn f() {{\n{}}}\nfn g() {{}}\n", "x;\n".repeat(lines));
        let full = Source::new("a.rs", &body(78));
        assert!(function_too_long(&full).is_empty());
        let over = function_too_long(&Source::new("a.rs", &body(79)));
        assert_eq!(over.len(), 1);
        assert_eq!(over[0].line, 2);
        assert!(over[0].what.contains("81 lines in fn f"), "{}", over[0].what);
    }

    #[test]
    fn neither_a_type_nor_a_declaration_is_a_function_with_a_body() {
        let lines = "x;\n".repeat(100);
        let text = format!("type F = fn(u8);\ntrait T {{ fn a();\n}}\nmod m {{\n{lines}}}\n");
        assert!(function_too_long(&Source::new("a.rs", &text)).is_empty());
    }
}
