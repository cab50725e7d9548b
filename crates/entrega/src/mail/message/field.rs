//! Header fields of a mail: which names and texts may stand in one, and how they are written.
//! Invariant: a field is ASCII, its lines have at most 998 bytes, and it reads back as the text that was given.
//! Never: lets a text end its line, or pass for something that is decoded to another text.

use std::fmt::Write as _;

use crate::mail::content::Mailbox;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Lines are folded here where a space allows it.
const LINE_BYTES: usize = 76;
/// The longest text without a place to fold that is left alone: with the longest name before it, it still fits into 998 bytes.
const STRETCH_BYTES_MAX: usize = 900;
/// Longer names are split into encoded words, which can be folded anywhere.
const QUOTED_BYTES_MAX: usize = 60;
/// Bytes of text in an encoded word: 52 characters of base64 and 12 around them, after `Subject: ` on one line.
const ENCODED_BYTES: usize = 39;

/// The longest name of a header field.
pub const FIELD_NAME_BYTES_MAX: usize = 76;

/// The names of fields that are written from other parts of the mail, that servers on the way write, or by which services
/// take orders (which set of SES a mail belongs to, whom a report of it names).
const OURS: [&str; 17] = [
    "from",
    "to",
    "cc",
    "bcc",
    "subject",
    "date",
    "message-id",
    "reply-to",
    "sender",
    "return-path",
    "received",
    "mime-version",
    "dkim-signature",
    // What servers say of a sender they checked; readers believe it.
    "authentication-results",
    "received-spf",
    "x-authentication-warning",
    "x-original-authentication-results",
];
const OUR_PREFIXES: [&str; 7] = ["arc-", "content-", "resent-", "x-entrega-", "x-ses-", "x-mc-", "x-smtpapi"];

/// The first character that changes the direction in which a text is shown: with one, `exe.txt` may end in `exe`.
pub(crate) fn direction_mark(text: &str) -> Option<char> {
    let is_mark = |c: &char| matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().find(is_mark)
}

/// The first character that may not stand in a header: it ends a line there, or is not meant to be seen.
pub(crate) fn control(text: &str) -> Option<char> {
    text.chars().find(|&c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'))
}

/// Whether this can name a header field.
pub(crate) fn is_field_name(name: &str) -> bool {
    (1..=FIELD_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

/// Whether callers may not write the field themselves.
pub(crate) fn is_ours(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OURS.contains(&name.as_str()) || OUR_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether some reader would decode a part of it to another text (RFC 2047).
pub(crate) fn looks_encoded(text: &str) -> bool {
    text.split_once("=?").is_some_and(|(_, rest)| rest.contains("?="))
}

/// The characters of a word that needs no quotes (RFC 5322, `atext`).
pub(crate) fn is_atom(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte)
}

/// Writes a field of free text. Whoever calls has seen that name and text may stand in a header.
pub(crate) fn write_text(out: &mut String, name: &str, text: &str) {
    out.push_str(name);
    out.push(':');
    match is_plain(text) {
        true => write_folded(out, name.len() + 1, text),
        false => {
            // The line of a short name has room for one encoded word, that of a longer one does not.
            out.push_str(if name.len() > "Subject".len() { "\r\n " } else { " " });
            write_encoded(out, text);
        }
    }
    out.push_str("\r\n");
}

/// Writes a field of addresses, one to a line: fifty of them do not fit on one.
pub(crate) fn write_mailboxes<'a>(out: &mut String, name: &str, mailboxes: impl IntoIterator<Item = &'a Mailbox>) {
    out.push_str(name);
    let mut lead = ": ";
    for mailbox in mailboxes {
        out.push_str(lead);
        write_mailbox(out, mailbox);
        lead = ",\r\n ";
    }
    out.push_str("\r\n");
}

fn write_mailbox(out: &mut String, mailbox: &Mailbox) {
    let Some(name) = &mailbox.name else {
        out.push_str(&mailbox.address);
        return;
    };
    let is_quotable = is_plain(name) && name.len() <= QUOTED_BYTES_MAX;
    if is_quotable && name.split(' ').all(|word| !word.is_empty() && word.bytes().all(is_atom)) {
        out.push_str(name);
        out.push(' ');
    } else if is_quotable {
        out.push('"');
        for c in name.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push_str("\" ");
    } else {
        write_encoded(out, name);
        out.push_str("\r\n ");
    }
    let _infallible = write!(out, "<{}>", mailbox.address);
}

/// Whether a text can stand as it is. Spaces at its ends would get lost, and so would a blank text.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        && !text.starts_with(' ')
        && !text.ends_with(' ')
        && !looks_encoded(text)
        && stretches(text).iter().all(|stretch| stretch.len() <= STRETCH_BYTES_MAX)
}

fn write_folded(out: &mut String, already_on_line: usize, text: &str) {
    let mut on_line = already_on_line;
    for stretch in stretches(text) {
        if on_line + 1 + stretch.len() > LINE_BYTES && on_line > already_on_line {
            out.push_str("\r\n");
            on_line = 0;
        }
        out.push(' ');
        out.push_str(stretch);
        on_line += 1 + stretch.len();
    }
}

/// What stands between single spaces. Readers take a fold and all the spaces after it for one, so a run of spaces must
/// not be folded.
fn stretches(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_lone = |at: usize| {
        bytes[at] == b' '
            && bytes.get(at + 1) != Some(&b' ')
            && at.checked_sub(1).is_none_or(|before| bytes[before] != b' ')
    };
    let mut all = Vec::new();
    let mut start = 0;
    for at in (0..bytes.len()).filter(|&at| is_lone(at)) {
        all.push(&text[start..at]);
        start = at + 1;
    }
    all.push(&text[start..]);
    all
}

/// As encoded words, one to a line; none splits a character.
fn write_encoded(out: &mut String, text: &str) {
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.floor_char_boundary(ENCODED_BYTES));
        let _infallible = write!(out, "=?utf-8?b?{}?=", BASE64.encode(word));
        if !after.is_empty() {
            out.push_str("\r\n ");
        }
        rest = after;
    }
}
