//! A mail as its caller gave it, checked.
//! Never: knows how it is written out or sent.

use entrega_core::body::Body;
use entrega_core::mask::mask_address;
use entrega_core::payload::Content;
use serde::{Deserialize, Serialize};

use crate::content::JobContent;

/// Somebody's address, perhaps with their name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    /// As people write it.
    pub name: Option<String>,
    /// `local@domain`.
    pub address: String,
}

/// A file that goes with a mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// What the recipient sees.
    pub filename: String,
    /// `application/pdf`, …
    pub content_type: String,
    /// The file.
    pub content: Body,
    /// Under this name the HTML part can show it.
    pub content_id: Option<String>,
}

/// A mail as its caller gave it, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mail {
    /// Who it is from.
    pub from: Mailbox,
    /// Where answers go.
    pub reply_to: Option<Mailbox>,
    /// Whom it is to.
    pub to: Vec<Mailbox>,
    /// Who gets a copy.
    pub cc: Vec<Mailbox>,
    /// Who gets one that the others do not see.
    pub bcc: Vec<Mailbox>,
    /// What it is about.
    pub subject: String,
    /// As plain text.
    pub text: Option<String>,
    /// As HTML.
    pub html: Option<String>,
    /// Files.
    pub attachments: Vec<Attachment>,
    /// Further header fields, in the order given.
    pub headers: Vec<(String, String)>,
}

impl Mail {
    /// Everybody who gets it, each once, in the order given.
    pub fn recipients(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for mailbox in self.to.iter().chain(&self.cc).chain(&self.bcc) {
            if !all.contains(&mailbox.address.as_str()) {
                all.push(&mailbox.address);
            }
        }
        all
    }
}

impl Content for Mail {
    const KIND: &'static str = "email";
}

impl JobContent for Mail {
    /// `mail to j***@e***le.com and 2 more`.
    fn destination(&self) -> String {
        let recipients = self.recipients();
        let first = recipients.first().map_or_else(String::new, |address| mask_address(address));
        match recipients.len() {
            0 | 1 => format!("mail to {first}"),
            all => format!("mail to {first} and {} more", all - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_named_twice_gets_one_mail() {
        let to = |address: &str| Mailbox { name: None, address: address.into() };
        let mail = Mail {
            from: to("me@example.com"),
            reply_to: None,
            to: vec![to("a@example.com"), to("b@example.com")],
            cc: vec![to("a@example.com")],
            bcc: vec![to("c@example.com")],
            subject: String::new(),
            text: None,
            html: None,
            attachments: Vec::new(),
            headers: Vec::new(),
        };
        assert_eq!(mail.recipients(), ["a@example.com", "b@example.com", "c@example.com"]);
    }
}
