//! The rules for a mail that a caller wants sent.
//! Invariant: a mail that passes can be written out, and reads back as what was given.
//! Never: strips or mends a text that could break out of its header; it is refused.

#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use entrega_core::body::Body;
use lettre::message::header::ContentType;

use super::address::{check_mailbox, refuse_control, shown};
use super::content::{Attachment, Mail, Mailbox};
use super::message::field::{FIELD_NAME_BYTES_MAX, direction_mark, is_field_name, is_ours, looks_encoded};
use crate::refusal::Refusal;

/// Recipients of a mail, all kinds together.
pub const RECIPIENTS_MAX: usize = 50;
/// Characters in a subject.
pub const SUBJECT_CHARS_MAX: usize = 998;
/// Bytes in the text, and as many in the HTML.
pub const MAIL_BODY_BYTES_MAX: usize = 1 << 20;
/// Files that go with a mail.
pub const ATTACHMENTS_MAX: usize = 50;
/// Bytes in all the files of a mail, decoded.
pub const ATTACHMENTS_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Header fields of a caller's own.
pub const HEADERS_MAX: usize = 50;
const HEADER_BYTES_MAX: usize = 998;
const FILENAME_BYTES_MAX: usize = 255;
const CONTENT_TYPE_BYTES_MAX: usize = 255;
const CONTENT_ID_BYTES_MAX: usize = 255;
const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";

/// Takes the standard alphabet; whether it is padded does not matter.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A mail as a caller asks for it, unchecked.
#[derive(Clone, Debug, Default)]
pub struct MailRequest {
    /// Whom it is to, each `ana@example.com` or `Ana <ana@example.com>`.
    pub to: Vec<String>,
    /// Who gets a copy.
    pub cc: Vec<String>,
    /// Who gets one that the others do not see.
    pub bcc: Vec<String>,
    /// Who it is from; the configured sender if `None`.
    pub from: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// What it is about.
    pub subject: String,
    /// As plain text; empty is the same as `None`.
    pub text: Option<String>,
    /// As HTML; empty is the same as `None`.
    pub html: Option<String>,
    /// Files.
    pub attachments: Vec<AttachmentRequest>,
    /// Further header fields, in order; a name may come more than once.
    pub headers: Vec<(String, String)>,
}

/// A file as a caller gives it, unchecked.
#[derive(Clone, Debug, Default)]
pub struct AttachmentRequest {
    /// What the recipient sees.
    pub filename: String,
    /// `application/octet-stream` if `None`.
    pub content_type: Option<String>,
    /// The file, in base64.
    pub content_base64: String,
    /// Under this name the HTML can show it, as `cid:` and the name.
    pub content_id: Option<String>,
}

/// Makes a mail of a request, or names the field that stands in the way.
pub fn check_mail(request: MailRequest, default_from: Option<&Mailbox>) -> Result<Mail, Refusal> {
    let from = match (&request.from, default_from) {
        (Some(from), _) => check_mailbox("from", from)?,
        (None, Some(from)) => from.clone(),
        (None, None) => return Err(Refusal::invalid("from", "nobody; give one, or set [email] from")),
    };
    let reply_to = request.reply_to.as_deref().map(|text| check_mailbox("replyTo", text)).transpose()?;
    if request.to.is_empty() {
        return Err(Refusal::invalid("to", "nobody; give at least one address"));
    }
    let recipients = request.to.len() + request.cc.len() + request.bcc.len();
    if recipients > RECIPIENTS_MAX {
        let problem = format!("{recipients} recipients with cc and bcc; at most {RECIPIENTS_MAX}: send several mails");
        return Err(Refusal::invalid("to", problem));
    }
    check_subject(&request.subject)?;
    let text = check_body("text", request.text)?;
    let html = check_body("html", request.html)?;
    if text.is_none() && html.is_none() {
        return Err(Refusal::invalid("text", "the mail is empty; give text, html or both"));
    }
    check_headers(&request.headers)?;
    Ok(Mail {
        from,
        reply_to,
        to: check_mailboxes("to", &request.to)?,
        cc: check_mailboxes("cc", &request.cc)?,
        bcc: check_mailboxes("bcc", &request.bcc)?,
        subject: request.subject,
        text,
        html,
        attachments: check_attachments(request.attachments)?,
        headers: request.headers,
    })
}

fn check_mailboxes(field: &str, texts: &[String]) -> Result<Vec<Mailbox>, Refusal> {
    texts.iter().enumerate().map(|(at, text)| check_mailbox(&format!("{field}[{at}]"), text)).collect()
}

fn check_subject(subject: &str) -> Result<(), Refusal> {
    let length = subject.chars().count();
    if length > SUBJECT_CHARS_MAX {
        return Err(Refusal::invalid("subject", format!("{length} characters; at most {SUBJECT_CHARS_MAX}")));
    }
    refuse_control("subject", subject)
}

fn check_body(field: &str, body: Option<String>) -> Result<Option<String>, Refusal> {
    match body.filter(|body| !body.is_empty()) {
        Some(body) if body.len() > MAIL_BODY_BYTES_MAX => {
            Err(Refusal::invalid(field, format!("{} bytes; at most {MAIL_BODY_BYTES_MAX} (1 MiB)", body.len())))
        }
        body => Ok(body),
    }
}

fn check_headers(headers: &[(String, String)]) -> Result<(), Refusal> {
    if headers.len() > HEADERS_MAX {
        return Err(Refusal::invalid("headers", format!("{} fields; at most {HEADERS_MAX}", headers.len())));
    }
    for (name, value) in headers {
        let field = format!("headers.{}", shown(name));
        if !is_field_name(name) {
            let rule = format!("names have 1 to {FIELD_NAME_BYTES_MAX} visible ASCII characters and no colon");
            return Err(Refusal::invalid(field, rule));
        }
        if is_ours(name) {
            let problem = "written by the gateway or by servers on the way; use the field of the request that is meant \
                           for it, or another name";
            return Err(Refusal::invalid(field, problem));
        }
        refuse_control(&field, value)?;
        if value.len() > HEADER_BYTES_MAX || value.trim_matches(' ').is_empty() {
            return Err(Refusal::invalid(
                field,
                format!("{} bytes; give 1 to {HEADER_BYTES_MAX}, not all of them spaces", value.len()),
            ));
        }
    }
    Ok(())
}

fn check_attachments(requests: Vec<AttachmentRequest>) -> Result<Vec<Attachment>, Refusal> {
    if requests.len() > ATTACHMENTS_MAX {
        return Err(Refusal::invalid("attachments", format!("{} files; at most {ATTACHMENTS_MAX}", requests.len())));
    }
    // Known before anything is decoded, to within two bytes of padding each.
    let least: usize = requests.iter().map(|request| (request.content_base64.len() / 4 * 3).saturating_sub(2)).sum();
    let too_large = |bytes: usize| {
        let problem = format!("{bytes} bytes in all; at most {ATTACHMENTS_BYTES_MAX} (10 MiB)");
        Refusal::invalid("attachments", problem)
    };
    if least > ATTACHMENTS_BYTES_MAX {
        return Err(too_large(least));
    }
    let mut files: Vec<Attachment> = Vec::with_capacity(requests.len());
    for (at, request) in requests.into_iter().enumerate() {
        let file = check_attachment(&format!("attachments[{at}]"), request)?;
        let is_repeat = |other: &Attachment| other.content_id.is_some() && other.content_id == file.content_id;
        if files.iter().any(is_repeat) {
            let problem = "another file has the same; give each its own";
            return Err(Refusal::invalid(format!("attachments[{at}].contentId"), problem));
        }
        files.push(file);
    }
    let bytes = files.iter().map(|file| file.content.0.len()).sum();
    if bytes > ATTACHMENTS_BYTES_MAX { Err(too_large(bytes)) } else { Ok(files) }
}

fn check_attachment(at: &str, request: AttachmentRequest) -> Result<Attachment, Refusal> {
    check_filename(&format!("{at}.filename"), &request.filename)?;
    let content_type = request.content_type.unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned());
    check_content_type(&format!("{at}.contentType"), &content_type)?;
    if let Some(id) = &request.content_id {
        check_content_id(&format!("{at}.contentId"), id)?;
    }
    let content = BASE64.decode(&request.content_base64).map_err(|error| {
        let rule = "use the standard alphabet (A-Z a-z 0-9 + /), without spaces or line breaks";
        Refusal::invalid(format!("{at}.content"), format!("not base64 ({error}); {rule}"))
    })?;
    Ok(Attachment {
        filename: request.filename,
        content_type,
        content: Body(content.into()),
        content_id: request.content_id,
    })
}

/// What a reader would decode could become a path, or another kind of file than it seems.
fn check_filename(field: &str, filename: &str) -> Result<(), Refusal> {
    refuse_control(field, filename)?;
    let is_fine = (1..=FILENAME_BYTES_MAX).contains(&filename.len())
        && !filename.contains(['/', '\\'])
        && !matches!(filename, "." | "..")
        && direction_mark(filename).is_none()
        && !looks_encoded(filename);
    match is_fine {
        true => Ok(()),
        false => Err(Refusal::invalid(
            field,
            format!(
                "'{}' is not a file's name; give 1 to {FILENAME_BYTES_MAX} bytes of plain UTF-8 without / or \\ and \
                 without marks that turn the direction of a text",
                shown(filename)
            ),
        )),
    }
}

/// Parts that contain parts cannot be sent in base64, as files are.
fn check_content_type(field: &str, content_type: &str) -> Result<(), Refusal> {
    refuse_control(field, content_type)?;
    let essence = content_type.split(';').next().unwrap_or_default().trim_end_matches(' ').to_ascii_lowercase();
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    let problem = match essence.split_once('/') {
        Some(("multipart" | "message", _)) => "cannot be attached as such; leave it out, or give another",
        Some((kind, subtype))
            if is_name(kind)
                && is_name(subtype)
                && content_type.len() <= CONTENT_TYPE_BYTES_MAX
                && content_type.is_ascii()
                && !looks_encoded(content_type)
                && ContentType::parse(content_type).is_ok() =>
        {
            return Ok(());
        }
        _ => "is not a content type; give one such as application/pdf or text/csv; charset=utf-8",
    };
    Err(Refusal::invalid(field, format!("'{}' {problem}", shown(content_type))))
}

fn check_content_id(field: &str, id: &str) -> Result<(), Refusal> {
    refuse_control(field, id)?;
    let is_fine = (1..=CONTENT_ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@$~".contains(&byte));
    match is_fine {
        true => Ok(()),
        false => Err(Refusal::invalid(
            field,
            format!(
                "'{}' cannot name a part; give 1 to {CONTENT_ID_BYTES_MAX} letters, digits or ._-+@$~, without < and >",
                shown(id)
            ),
        )),
    }
}
