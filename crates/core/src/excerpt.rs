//! Excerpts: the first part of what a stranger said, as text that harms nobody who looks at it.
//! Invariant: an excerpt is at most [`EXCERPT_BYTES_MAX`] long and one line, and nothing in it moves a cursor or turns
//! text around.
//! Never: logged. A stranger's words may hold a stranger's secrets.

/// The longest excerpt.
pub const EXCERPT_BYTES_MAX: usize = 512;
/// What a character may need beyond the limit to be read whole.
const CHAR_BYTES_MAX: usize = 4;

/// The first part of these bytes; `None` if there are none. What is no text is shown as damaged, and control characters
/// as their pictures.
pub fn excerpt(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return None;
    }
    let start = &bytes[..bytes.len().min(EXCERPT_BYTES_MAX + CHAR_BYTES_MAX)];
    let mut text = String::with_capacity(start.len());
    for shown in String::from_utf8_lossy(start).chars().map(harmless) {
        if text.len() + shown.len_utf8() > EXCERPT_BYTES_MAX {
            break;
        }
        text.push(shown);
    }
    Some(text)
}

fn harmless(c: char) -> char {
    match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\x7f' => '␡',
        // Controls of the second kind, and what breaks lines or turns them around.
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_excerpt_is_one_harmless_line() {
        for (said, shown) in [
            (&b""[..], None),
            (b"{\"error\": \"no\"}", Some("{\"error\": \"no\"}")),
            (b"a\x1b[2Jb\r\n\tc\x00\x7f", Some("a␛[2Jb␍␊␉c␀␡")),
            ("não\u{9b}2J \u{202e}gnp.exe\u{2028}".as_bytes(), Some("não\u{fffd}2J \u{fffd}gnp.exe\u{fffd}")),
            (b"\xff\xfe", Some("\u{fffd}\u{fffd}")),
        ] {
            assert_eq!(excerpt(said).as_deref(), shown, "{said:?}");
        }
    }

    #[test]
    fn an_excerpt_ends_before_the_character_that_does_not_fit() {
        assert_eq!(excerpt(&[b'a'; 600]).unwrap().len(), 512);
        let said = format!("{}€uro", "a".repeat(510));
        assert_eq!(excerpt(said.as_bytes()).unwrap(), "a".repeat(510), "not half of a character, nor a damaged one");
        let fits = format!("{}😀", "a".repeat(508));
        assert_eq!(excerpt(format!("{fits}more").as_bytes()).unwrap(), fits);
    }

    proptest! {
        #[test]
        fn whatever_was_said_the_excerpt_keeps_its_rules(said: Vec<u8>, length in 0usize..2000) {
            let said: Vec<u8> = said.iter().copied().cycle().take(length.min(said.len() * 50)).collect();
            let shown = excerpt(&said);
            prop_assert_eq!(shown.is_none(), said.is_empty());
            let shown = shown.unwrap_or_default();
            prop_assert!(shown.len() <= EXCERPT_BYTES_MAX && !shown.chars().any(char::is_control), "{:?}", shown);
        }
    }
}
