//! Replies: what a server says.
//! Invariant: a reply is taken whole, with all its lines, or not at all; its text is kept even where it is not UTF-8.
//! Never: grows without a bound; the wire limits what is collected here.

use bytes::{Buf, BytesMut};
use entrega_core::mail::MailRefusal;

/// As much of a reply's text as is worth keeping.
const MESSAGE_CHARS_MAX: usize = 500;

/// The server has to end the connection.
pub(super) const CLOSING: u16 = 421;

/// One reply; its lines are separated by a line feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    text: String,
}

/// Something else was said.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{line}' is not a reply of SMTP")]
pub(super) struct NotAReply {
    line: String,
}

impl Reply {
    /// Takes the first reply off what has come in, once it is complete.
    pub(super) fn take(incoming: &mut BytesMut) -> Result<Option<Reply>, NotAReply> {
        let (mut text, mut start) = (String::new(), 0);
        while let Some(length) = memchr::memchr(b'\n', &incoming[start..]) {
            let line = &incoming[start..start + length];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let (code, is_last, rest) = split(line)?;
            text.push_str(&String::from_utf8_lossy(rest));
            start += length + 1;
            if is_last {
                incoming.advance(start);
                return Ok(Some(Reply { code, text }));
            }
            text.push('\n');
        }
        Ok(None)
    }

    /// 2yz.
    pub(super) fn is_success(&self) -> bool {
        self.code / 100 == 2
    }

    /// Its lines, without the code.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.text.split('\n')
    }

    /// `5.1.1`, if it begins with one that fits its code.
    fn enhanced(&self) -> Option<&str> {
        let word = self.text.split([' ', '\n']).next()?;
        let mut parts = word.split('.');
        let class = parts.next()?;
        let is_number = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        let fits = class == (self.code / 100).to_string() && parts.clone().count() == 2 && parts.all(is_number);
        fits.then_some(word)
    }

    /// What it says to people: one line, without codes.
    pub(super) fn text(&self) -> String {
        let enhanced = self.enhanced().unwrap_or_default();
        let plain = |line: &str| {
            let bare = line.strip_prefix(enhanced).filter(|rest| rest.is_empty() || rest.starts_with(' '));
            bare.unwrap_or(line).trim().to_owned()
        };
        let lines: Vec<String> = self.lines().map(plain).filter(|line| !line.is_empty()).collect();
        let text = lines.join(" ");
        match text.is_empty() {
            true => "the server gave no reason".to_owned(),
            false => one_line(&text),
        }
    }

    /// As what it is held against a recipient.
    pub(super) fn refusal(&self) -> MailRefusal {
        MailRefusal {
            status: Some(self.code),
            code: format!("smtp_{}", self.code),
            enhanced: self.enhanced().map(str::to_owned),
            message: self.text(),
        }
    }
}

/// A text that fits into a log line.
pub(super) fn one_line(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(plain).take(MESSAGE_CHARS_MAX).collect()
}

/// `550-5.1.1 No`, `250 ok` or `250`: its code, whether it is the last line, and the rest.
fn split(line: &[u8]) -> Result<(u16, bool, &[u8]), NotAReply> {
    let not_a_reply = || NotAReply { line: one_line(&String::from_utf8_lossy(line)) };
    let (code, rest) = line.split_at_checked(3).ok_or_else(not_a_reply)?;
    let number = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok());
    let code = number.filter(|code| (200..600).contains(code)).ok_or_else(not_a_reply)?;
    match rest {
        [] => Ok((code, true, rest)),
        [b' ', rest @ ..] => Ok((code, true, rest)),
        [b'-', rest @ ..] => Ok((code, false, rest)),
        _ => Err(not_a_reply()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(said: &[u8]) -> Reply {
        let mut incoming = BytesMut::from(said);
        let reply = Reply::take(&mut incoming).unwrap().expect("it is complete");
        assert!(incoming.is_empty(), "{incoming:?}");
        reply
    }

    #[test]
    fn a_refusal_keeps_code_enhanced_code_and_text_apart() {
        let table: &[(&[u8], u16, Option<&str>, &str)] = &[
            (b"550 5.1.1 No such user\r\n", 550, Some("5.1.1"), "No such user"),
            (
                b"550-5.7.25 The address has\r\n550-5.7.25 no name.\r\n550 5.7.25 \r\n",
                550,
                Some("5.7.25"),
                "The address has no name.",
            ),
            (b"451 try later\r\n", 451, None, "try later"),
            (b"451\r\n", 451, None, "the server gave no reason"),
            (b"451 4.3.0\r\n", 451, Some("4.3.0"), "the server gave no reason"),
            (b"550 4.1.1 the classes differ\r\n", 550, None, "4.1.1 the classes differ"),
            (b"550 5.1.1.1 four parts\r\n", 550, None, "5.1.1.1 four parts"),
            (b"550 5.1.x no number\r\n", 550, None, "5.1.x no number"),
            (b"550 Usu\xe1rio desconhecido\n", 550, None, "Usu\u{fffd}rio desconhecido"),
            (b"554 5.7.1 a\x00b\x1b[31mc\r\n", 554, Some("5.7.1"), "a b [31mc"),
        ];
        for (said, status, enhanced, message) in table {
            let refusal = taken(said).refusal();
            assert_eq!((refusal.status, refusal.code), (Some(*status), format!("smtp_{status}")));
            assert_eq!((refusal.enhanced.as_deref(), refusal.message.as_str()), (*enhanced, *message));
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let said = format!("550 {}\r\n", "é".repeat(2 * MESSAGE_CHARS_MAX));
        assert_eq!(taken(said.as_bytes()).text(), "é".repeat(MESSAGE_CHARS_MAX));
    }

    #[test]
    fn a_reply_is_taken_only_when_its_last_line_is_there() {
        let said = b"250-one\r\n250 two\r\n354 go\r\n";
        for length in 0..said.len() {
            let mut incoming = BytesMut::from(&said[..length]);
            let first = Reply::take(&mut incoming).unwrap();
            assert_eq!(first.is_some(), length >= 18, "{length} bytes");
            assert_eq!(incoming.len(), if length >= 18 { length - 18 } else { length });
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for said in
            ["HTTP/1.1 400 Bad Request\r\n", "25\r\n", "250x\r\n", "150 no\r\n", "600 no\r\n", "+50 no\r\n", "\r\n"]
        {
            assert!(Reply::take(&mut BytesMut::from(said)).is_err(), "{said:?}");
        }
    }
}
