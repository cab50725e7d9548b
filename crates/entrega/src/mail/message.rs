//! Writing a mail out: from what a caller gave to the bytes that travel.
//! Invariant: a job gives the same bytes on every attempt: ASCII in lines of at most 998 bytes that end in CRLF.
//! Never: draws a boundary or reads a clock, names those who get a blind copy, or lets a text end its line.

pub(crate) mod field;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::time::Time;
use lettre::message::header::{
    ContentDisposition, ContentId, ContentTransferEncoding, ContentType, ContentTypeErr, Date, Headers,
    MIME_VERSION_1_0,
};
use lettre::message::{MultiPart, SinglePart};

use super::content::{Attachment, Mail, Mailbox};

use self::field::{control, is_atom, is_field_name, is_ours, write_mailboxes, write_text};

/// The last second that a `Date` can name: the end of the year 9999.
const DATE_SECONDS_MAX: u64 = 253_402_300_799;

/// Why a mail cannot be written out. It was checked when it was taken; what fails now was stored by another program.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A text that may not stand in a header.
    #[error("{field}: this cannot stand in the header of a mail")]
    Text {
        /// Where it stands.
        field: &'static str,
    },
    /// A header field that a caller may not write.
    #[error("headers: '{}' is not a name that a caller may use", name.escape_debug())]
    HeaderName {
        /// Its name.
        name: String,
    },
    /// A content type that is none.
    #[error("attachments: '{}' is not a content type", content_type.escape_debug())]
    ContentType {
        /// What stands there.
        content_type: String,
        /// What is wrong with it.
        #[source]
        source: ContentTypeErr,
    },
    /// A mail with neither text nor HTML.
    #[error("the mail has neither text nor HTML")]
    Empty,
    /// A moment that a `Date` cannot name.
    #[error("the mail was accepted after the year 9999")]
    Date,
}

/// The message's own name, the same on every attempt.
pub fn message_id(id: JobId, domain: &str) -> String {
    format!("<{id}@{domain}>")
}

/// The whole message. `domain` is ours; it completes the message's name.
pub fn write_out(job: &Job, mail: &Mail, domain: &str) -> Result<Bytes, WriteError> {
    check(mail, domain)?;
    let mut head = String::with_capacity(1024);
    write_mailboxes(&mut head, "From", [&mail.from]);
    write_mailboxes(&mut head, "To", &mail.to);
    for (name, mailboxes) in [("Cc", mail.cc.as_slice()), ("Reply-To", mail.reply_to.as_slice())] {
        if !mailboxes.is_empty() {
            write_mailboxes(&mut head, name, mailboxes);
        }
    }
    write_text(&mut head, "Subject", &mail.subject);
    let mut fixed = Headers::new();
    fixed.set(date(job.accepted_at)?);
    fixed.set(MIME_VERSION_1_0);
    head.push_str(&fixed.to_string());
    write_text(&mut head, "Message-ID", &message_id(job.id, domain));
    // One by one: a set of headers would keep only the last of those with the same name.
    for (name, value) in &mail.headers {
        write_text(&mut head, name, value);
    }
    let mut message = head.into_bytes();
    message.extend(content(job.id, mail)?.formatted());
    Ok(message.into())
}

fn date(time: Time) -> Result<Date, WriteError> {
    let seconds = time.as_millis() / 1000;
    match seconds <= DATE_SECONDS_MAX {
        true => Ok(Date::new(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))),
        false => Err(WriteError::Date),
    }
}

/// The second guard against a text that ends its line; the first is at the door.
fn check(mail: &Mail, domain: &str) -> Result<(), WriteError> {
    let text = |field, text: &str| match control(text) {
        Some(_) => Err(WriteError::Text { field }),
        None => Ok(()),
    };
    let address = |mailbox: &Mailbox| {
        let is_bare = mailbox.address.bytes().all(|byte| is_atom(byte) || matches!(byte, b'.' | b'@'));
        match is_bare && mailbox.address.contains('@') {
            true => text("name", mailbox.name.as_deref().unwrap_or_default()),
            false => Err(WriteError::Text { field: "address" }),
        }
    };
    if mail.to.is_empty() {
        return Err(WriteError::Text { field: "to" });
    }
    [&mail.from].into_iter().chain(&mail.reply_to).chain(&mail.to).chain(&mail.cc).try_for_each(address)?;
    text("subject", &mail.subject)?;
    text("domain", domain)?;
    for (name, value) in &mail.headers {
        if !is_field_name(name) || is_ours(name) {
            return Err(WriteError::HeaderName { name: name.clone() });
        }
        text("headers", value)?;
    }
    for file in &mail.attachments {
        text("attachments", &file.filename)?;
        text("attachments", &file.content_type)?;
        text("attachments", file.content_id.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

/// A part of the body, or all of it.
enum Part {
    Single(SinglePart),
    Multi(MultiPart),
}

impl Part {
    fn within(self, whole: MultiPart) -> MultiPart {
        match self {
            Part::Single(part) => whole.singlepart(part),
            Part::Multi(part) => whole.multipart(part),
        }
    }

    fn formatted(&self) -> Vec<u8> {
        match self {
            Part::Single(part) => part.formatted(),
            Part::Multi(part) => part.formatted(),
        }
    }
}

/// The body, as simple as it can be. Files that the HTML shows travel beside it, the others after everything.
fn content(id: JobId, mail: &Mail) -> Result<Part, WriteError> {
    let is_shown = |file: &&Attachment| file.content_id.is_some() && mail.html.is_some();
    let (shown, attached): (Vec<_>, Vec<_>) = mail.attachments.iter().partition(is_shown);
    let text = mail.text.as_deref().map(|text| Part::Single(text_part(ContentType::TEXT_PLAIN, text)));
    let page = mail.html.as_deref().map(|html| Part::Single(text_part(ContentType::TEXT_HTML, html)));
    let page = page.map(|page| with_files(page, id, "related", &shown)).transpose()?;
    let readable = match (text, page) {
        (Some(text), Some(page)) => Part::Multi(page.within(text.within(several(id, "alternative")))),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return Err(WriteError::Empty),
    };
    with_files(readable, id, "mixed", &attached)
}

/// A whole without parts yet. `=_` cannot stand in quoted-printable or base64, so no part contains its boundary.
fn several(id: JobId, kind: &str) -> MultiPart {
    let content_type = ContentType::parse(&format!("multipart/{kind}; boundary=\"=_{kind}_{id}\""));
    MultiPart::builder().header(content_type.expect("a kind and an id make a content type")).build()
}

/// Lines end in CRLF whatever the caller's end in. lettre would convert them too, but in quadratic time.
fn text_part(content_type: ContentType, text: &str) -> SinglePart {
    let mut lines = String::with_capacity(text.len() + text.len() / 32);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                chars.next_if_eq(&'\n');
                lines.push_str("\r\n");
            }
            '\n' => lines.push_str("\r\n"),
            other => lines.push(other),
        }
    }
    let foreign = lines.bytes().filter(|byte| !byte.is_ascii()).count();
    let encoding = match foreign > lines.len() / 3 {
        true => ContentTransferEncoding::Base64,
        false => ContentTransferEncoding::QuotedPrintable,
    };
    SinglePart::builder().header(content_type).header(encoding).body(lines)
}

/// The part, and after it the files if there are any.
fn with_files(part: Part, id: JobId, kind: &str, files: &[&Attachment]) -> Result<Part, WriteError> {
    if files.is_empty() {
        return Ok(part);
    }
    let disposition =
        if kind == "related" { ContentDisposition::inline_with_name } else { ContentDisposition::attachment };
    let mut whole = part.within(several(id, kind));
    for file in files {
        let content_type = ContentType::parse(&file.content_type)
            .map_err(|source| WriteError::ContentType { content_type: file.content_type.clone(), source })?;
        let mut part = SinglePart::builder().header(content_type).header(disposition(&file.filename));
        if let Some(id) = &file.content_id {
            part = part.header(ContentId::from(format!("<{id}>")));
        }
        // Always base64: what happens to be ASCII may still contain line ends that must not be touched.
        let part = part.header(ContentTransferEncoding::Base64).body(file.content.0.to_vec());
        whole = whole.singlepart(part);
    }
    Ok(Part::Multi(whole))
}
