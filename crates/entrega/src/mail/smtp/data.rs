//! A mail's text as it goes over the wire.
//! Invariant: the server gets back what was given, line by line; the only line that is a single dot is the last one.
//! Never: copies a mail that can go as it is.

use bytes::Bytes;

/// The text with its dots doubled where a line begins with one (RFC 5321, 4.5.2), and what ends it.
///
/// Line feeds and carriage returns that stand alone become line ends: servers differ on what they mean, and that
/// difference lets one mail smuggle in another.
pub(super) fn written_out(message: &Bytes) -> (Bytes, &'static [u8]) {
    let text = match can_go_as_it_is(message) {
        true => message.clone(),
        false => Bytes::from(rewritten(message)),
    };
    let end: &[u8] = if text.is_empty() || text.ends_with(b"\r\n") { b".\r\n" } else { b"\r\n.\r\n" };
    (text, end)
}

fn can_go_as_it_is(message: &[u8]) -> bool {
    let is_fine = |at: usize| match message[at] {
        b'\n' => at > 0 && message[at - 1] == b'\r' && message.get(at + 1) != Some(&b'.'),
        _ => message.get(at + 1) == Some(&b'\n'),
    };
    message.first() != Some(&b'.') && memchr::memchr2_iter(b'\r', b'\n', message).all(is_fine)
}

fn rewritten(message: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.len() + message.len() / 64 + 16);
    let mut rest = message;
    while !rest.is_empty() {
        if rest[0] == b'.' {
            text.push(b'.');
        }
        let Some(length) = memchr::memchr2(b'\r', b'\n', rest) else {
            text.extend_from_slice(rest);
            break;
        };
        text.extend_from_slice(&rest[..length]);
        text.extend_from_slice(b"\r\n");
        let end = if rest[length..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[length + end..];
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wire(message: &[u8]) -> Vec<u8> {
        let (text, end) = written_out(&Bytes::copy_from_slice(message));
        [&text[..], end].concat()
    }

    #[test]
    fn dots_are_doubled_and_ends_are_added() {
        let table: &[(&[u8], &[u8])] = &[
            (b"", b".\r\n"),
            (b"a\r\n", b"a\r\n.\r\n"),
            (b"a", b"a\r\n.\r\n"),
            (b".", b"..\r\n.\r\n"),
            (b".a\r\n..b\r\nc.\r\n.\r\n", b"..a\r\n...b\r\nc.\r\n..\r\n.\r\n"),
            (b"a\n.\nb\r.\rc", b"a\r\n..\r\nb\r\n..\r\nc\r\n.\r\n"),
            (b"a\r\n.\n", b"a\r\n..\r\n.\r\n"),
            (b"a\r\r\nb\r", b"a\r\n\r\nb\r\n.\r\n"),
        ];
        for (message, expected) in table {
            assert_eq!(wire(message), *expected, "{:?}", String::from_utf8_lossy(message));
        }
    }

    #[test]
    fn a_mail_without_surprises_is_not_copied() {
        let message = Bytes::from_static(b"Subject: a.b\r\n\r\nHello.\r\nBye\r\n");
        assert_eq!(written_out(&message).0.as_ptr(), message.as_ptr());
    }

    proptest! {
        #[test]
        fn a_server_reads_back_the_lines_that_were_given(message in "[.a\r\n]{0,40}") {
            let sent = wire(message.as_bytes());
            let sent = String::from_utf8(sent).unwrap();
            let lines: Vec<&str> = sent.strip_suffix("\r\n").unwrap().split("\r\n").collect();
            let (last, lines) = lines.split_last().unwrap();
            prop_assert_eq!(*last, ".");
            prop_assert!(lines.iter().all(|line| !line.contains(['\r', '\n']) && *line != "."));
            let read: String = lines.iter().map(|line| format!("{}\r\n", line.strip_prefix('.').unwrap_or(line))).collect();
            let mut given = message.replace("\r\n", "\n").replace('\r', "\n");
            if !given.is_empty() && !given.ends_with('\n') {
                given.push('\n');
            }
            prop_assert_eq!(read, given.replace('\n', "\r\n"));
        }
    }
}
