//! Foreign text on a terminal.
//! Invariant: nothing in it is obeyed.

/// Foreign text without anything that a terminal would obey.
pub(super) fn clean(text: &str) -> String {
    let is_hidden = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}
