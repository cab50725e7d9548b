//! Addresses as callers write them: `ana@example.com`, or `Ana <ana@example.com>`.
//! Invariant: an address that passes is ASCII, needs no quotes, and has its domain in lower case, so that the same
//! address is the same text; a name that passes can stand in a header.
//! Never: mends what it was given; only the case of the domain and its letters outside ASCII are put into one form.

use super::content::Mailbox;
use super::message::field::{control, is_atom};
use crate::refusal::Refusal;

/// Bytes in an entry of a list of recipients, before it is looked at closely.
const MAILBOX_BYTES_MAX: usize = 1024;
/// Bytes in somebody's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes before the `@`.
pub const LOCAL_BYTES_MAX: usize = 64;
/// Bytes in an address.
pub const ADDRESS_BYTES_MAX: usize = 254;

/// Reads what stands in the field of this name.
pub fn check_mailbox(field: &str, text: &str) -> Result<Mailbox, Refusal> {
    if text.len() > MAILBOX_BYTES_MAX {
        let problem = format!("{} bytes; at most {MAILBOX_BYTES_MAX}, one address to an entry", text.len());
        return Err(Refusal::invalid(field, problem));
    }
    refuse_control(field, text)?;
    let text = text.trim_matches(' ');
    let (name, address) = match text.strip_suffix('>') {
        Some(rest) => rest.rsplit_once('<').ok_or_else(|| no_address(field, text, "it has a '>' without a '<'"))?,
        None => ("", text),
    };
    Ok(Mailbox { name: check_name(field, name.trim_matches(' '))?, address: check_address(field, address)? })
}

/// A text for a message to the caller: short, and with nothing in it that could do harm there.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

pub(super) fn refuse_control(field: &str, text: &str) -> Result<(), Refusal> {
    match control(text) {
        Some(c) => Err(Refusal::invalid(
            field,
            format!(
                "contains the character U+{:04X}; leave out line breaks and other control characters",
                u32::from(c)
            ),
        )),
        None => Ok(()),
    }
}

fn no_address(field: &str, text: &str, problem: &str) -> Refusal {
    let way_out = "write ana@example.com or Ana <ana@example.com>, one address to an entry";
    Refusal::invalid(field, format!("'{}' is not an address: {problem}; {way_out}", shown(text)))
}

/// A name, without the quotes that it may stand in.
fn check_name(field: &str, text: &str) -> Result<Option<String>, Refusal> {
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let name = match quoted {
        Some(quoted) => unquote(quoted),
        None => {
            (!text.contains(['(', ')', '<', '>', '[', ']', ':', ';', '@', '\\', ',', '"'])).then(|| text.to_owned())
        }
    };
    let Some(name) = name else {
        let problem = format!(
            "the name '{}' needs quotes; write \"Silva, Ana\" <ana@example.com>, with \\ before a quote in it",
            shown(text)
        );
        return Err(Refusal::invalid(field, problem));
    };
    let name = name.trim_matches(' ');
    match name.len() {
        0 => Ok(None),
        1..=NAME_BYTES_MAX => Ok(Some(name.to_owned())),
        bytes => Err(Refusal::invalid(field, format!("the name has {bytes} bytes; at most {NAME_BYTES_MAX}"))),
    }
}

fn unquote(quoted: &str) -> Option<String> {
    let mut name = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?),
            '"' => return None,
            other => name.push(other),
        }
    }
    Some(name)
}

fn check_address(field: &str, text: &str) -> Result<String, Refusal> {
    let refuse = |problem: &str| Err(no_address(field, text, problem));
    let Some((local, domain)) = text.rsplit_once('@') else {
        return refuse("it has no '@'");
    };
    if local.len() > LOCAL_BYTES_MAX {
        return refuse("more than 64 bytes stand before the '@'");
    }
    if !local.is_ascii() {
        return refuse("letters outside ASCII before the '@' are not supported");
    }
    if local.split('.').any(|word| word.is_empty() || !word.bytes().all(is_atom)) {
        return refuse("before the '@' may stand letters, digits, single dots between them, and !#$%&'*+-/=?^_`{|}~");
    }
    let Some(domain) = host(domain) else {
        return refuse("what stands after the '@' is not the name of a host");
    };
    let address = format!("{local}@{domain}");
    if address.len() > ADDRESS_BYTES_MAX {
        return refuse("it has more than 254 bytes");
    }
    match address.parse::<lettre::Address>() {
        Ok(_) => Ok(address),
        Err(error) => refuse(&error.to_string()),
    }
}

/// The name of a host as it is looked up, if it is one. An address in digits is none: mail goes to names.
fn host(domain: &str) -> Option<String> {
    let ascii = idna::domain_to_ascii_cow(domain.as_bytes(), idna::AsciiDenyList::URL).ok()?;
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    (ascii.split('.').all(is_label) && !ascii.rsplit('.').next().is_none_or(is_number)).then(|| ascii.into_owned())
}
