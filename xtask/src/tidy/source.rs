//! A file as the rules see it: the text, its code alone, its comments alone.
//!
//! Owns: telling code from comments and from the insides of literals.
//! Invariant: all three views have the same length, so an offset in one is
//! the same place in the others.
//! Never: parses; a rule that needs a syntax tree belongs into a lint.

use std::ops::Range;

/// One file of the workspace.
pub(super) struct Source {
    /// From the workspace's root, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
    /// The text with comments and the insides of literals blanked.
    pub(super) code: String,
    /// The text with everything but comments blanked.
    pub(super) comments: String,
    line_starts: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let kinds = if path.ends_with(".rs") { Scan::new(text.as_bytes()).run() } else { vec![Kind::Code; text.len()] };
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: only(text, &kinds, Kind::Code),
            comments: only(text, &kinds, Kind::Comment),
            line_starts: std::iter::once(0).chain(newlines).collect(),
        }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether one of the folders on the way to this file has that name.
    pub(super) fn is_under(&self, folder: &str) -> bool {
        let folders = self.path.rsplit_once('/').map_or("", |(folders, _)| folders);
        folders.split('/').any(|name| name == folder)
    }

    /// The file's name without its extension.
    pub(super) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.split_once('.').map_or(name, |(stem, _)| stem)
    }

    /// The number of the line an offset is on, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// The comments on a line, numbered from 1; nothing when there is no such line.
    pub(super) fn comment_on(&self, line: usize) -> &str {
        let index = line.wrapping_sub(1);
        self.comments.lines().nth(index).unwrap_or("")
    }

    /// Where `word` stands in the code, not as a part of a longer name.
    pub(super) fn code_words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        words(&self.code, word)
    }

    /// The braces, ends included, that open first after `offset`; `None` when
    /// the item there ends in a semicolon.
    pub(super) fn braces_after(&self, offset: usize) -> Option<Range<usize>> {
        let mut nesting = 0_usize;
        let mut open = None;
        for (at, byte) in self.code.bytes().enumerate().skip(offset) {
            match byte {
                b'(' | b'[' if open.is_none() => nesting += 1,
                b')' | b']' if open.is_none() => nesting = nesting.saturating_sub(1),
                b';' if open.is_none() && nesting == 0 => return None,
                b'{' => {
                    let (_, depth) = open.unwrap_or((at, 0));
                    open = Some((open.map_or(at, |(start, _)| start), depth + 1));
                }
                b'}' => match open {
                    Some((start, 1)) => return Some(start..at + 1),
                    Some((start, depth)) => open = Some((start, depth - 1)),
                    None => return None,
                },
                _ => {}
            }
        }
        None
    }
}

/// Where `word` stands in `text`, not as a part of a longer name.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let ends_in_name = name(word.as_bytes().last());
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).and_then(|at| text.as_bytes().get(at));
        let after = text.as_bytes().get(at + word.len());
        let starts_in_name = name(word.as_bytes().first());
        let is_part = (starts_in_name && name(before)) || (ends_in_name && name(after));
        !is_part
    })
}

fn only(text: &str, kinds: &[Kind], wanted: Kind) -> String {
    let keep = |at: usize, c: char| kinds[at] == wanted || c == '\n';
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        if keep(at, c) {
            out.push(c);
        } else {
            out.extend(std::iter::repeat_n(' ', c.len_utf8()));
        }
    }
    out
}

/// Goes over the bytes once and marks what each belongs to.
struct Scan<'a> {
    bytes: &'a [u8],
    kinds: Vec<Kind>,
}

impl<'a> Scan<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let kinds = vec![Kind::Code; bytes.len()];
        Self { bytes, kinds }
    }

    fn run(mut self) -> Vec<Kind> {
        let mut at = 0;
        while at < self.bytes.len() {
            let rest = &self.bytes[at..];
            at = match rest {
                [b'/', b'/', ..] => self.mark(at, at + line_comment(rest), Kind::Comment),
                [b'/', b'*', ..] => self.mark(at, at + block_comment(rest), Kind::Comment),
                [b'"', ..] => self.literal(at, quoted(rest, b'"'), (1, 1)),
                [b'\'', ..] => match char_literal(rest) {
                    Some(length) => self.literal(at, length, (1, 1)),
                    None => at + 1,
                },
                [b'r', ..] if !self.in_name(at) => match raw_string(rest) {
                    Some((length, edges)) => self.literal(at, length, edges),
                    None => at + 1,
                },
                _ => at + 1,
            };
        }
        self.kinds
    }

    fn mark(&mut self, from: usize, to: usize, kind: Kind) -> usize {
        let to = to.min(self.kinds.len());
        self.kinds[from..to].fill(kind);
        to
    }

    /// The quotes stay code, so that `reason = ""` still looks like itself.
    fn literal(&mut self, at: usize, length: usize, (open, close): (usize, usize)) -> usize {
        let end = (at + length).min(self.bytes.len());
        if length > open + close {
            self.mark(at + open, end - close, Kind::Literal);
        }
        end
    }

    /// `br"` opens a raw string too; `for"` does not, and never occurs.
    fn in_name(&self, at: usize) -> bool {
        let before = at.checked_sub(1).map(|at| self.bytes[at]);
        before.is_some_and(|b| (b.is_ascii_alphanumeric() && b != b'b') || b == b'_')
    }
}

fn line_comment(rest: &[u8]) -> usize {
    rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `'a'`, `'\n'` or `'é'`, but not the lifetime `'a`.
fn char_literal(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(quoted(rest, b'\''));
    }
    let width = match rest.get(1)? {
        0..=0x7F => 1,
        0x80..=0xDF => 2,
        0xE0..=0xEF => 3,
        _ => 4,
    };
    (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

/// The length of a raw string and of its two edges.
fn raw_string(rest: &[u8]) -> Option<(usize, (usize, usize))> {
    let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let inside = &rest[hashes + 2..];
    let found = inside.windows(close.len()).position(|w| w == close);
    let length = found.map_or(rest.len(), |at| hashes + 2 + at + close.len());
    Some((length, (hashes + 2, hashes + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new("a.rs", text).code
    }

    #[test]
    fn code_keeps_its_place_and_loses_comments_and_literals() {
        for (text, expected) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("a\"b")"#, r#"f("    ")"#),
            ("f('{', '\\'')", "f(' ', '  ')"),
            ("f::<'a>(x)", "f::<'a>(x)"),
            ("r#\"a\"b\"#;c", "r#\"   \"#;c"),
            ("f(\"é\");", "f(\"  \");"),
            ("bar\"x\"", "bar\" \""),
        ] {
            assert_eq!(code(text), expected, "{text}");
            assert_eq!(code(text).len(), text.len());
        }
    }

    #[test]
    fn an_unclosed_literal_or_comment_does_not_run_over_the_end() {
        for text in ["\"abc", "/* abc", "'\\", "r#\"abc", "\"a\\"] {
            assert_eq!(code(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn comments_are_the_other_half() {
        let source = Source::new("a.rs", "x // \"why\"\ny\n");
        assert_eq!(source.comment_on(1).trim(), "// \"why\"");
        assert_eq!(source.comment_on(2).trim(), "");
        assert_eq!(source.comment_on(0), "");
    }

    #[test]
    fn a_word_is_not_a_part_of_a_longer_one() {
        let found: Vec<_> = words("fn fnord(fn_a: fn(x))", "fn").collect();
        assert_eq!(found, [0, 15]);
    }

    #[test]
    fn braces_are_those_of_the_body() {
        let source = Source::new("a.rs", "fn f(a: [u8; 2]) { if x { '}' } }\nfn g();");
        let body = source.braces_after(0).unwrap();
        assert_eq!(&source.text[body], "{ if x { '}' } }");
        assert_eq!(source.braces_after(34), None);
    }

    #[test]
    fn lines_count_from_one() {
        let source = Source::new("a.rs", "a\nb\n");
        assert_eq!([0, 1, 2, 3].map(|at| source.line(at)), [1, 1, 2, 2]);
    }
}
