//! Mail: what came of one for each recipient, and what that is called.
//! Invariant: an attempt's record names every recipient of the mail, those settled earlier included, so that the last
//! one alone says who is left.
//! Never: knows how a mail is written out or sent.

use serde::{Deserialize, Serialize};

use crate::classify::{Rule, Verdict, classify_facts};
use crate::facts::{Facts, Lesson, Protocol};

/// Why a mail failed, in the words that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// There is no such recipient.
    InvalidRecipient,
    /// Refused for good.
    BouncePermanent,
    /// Refused for now, too often.
    BounceTemporary,
    /// The recipient reported it as spam.
    Complaint,
    /// SES asked for a slower pace, too often.
    SesThrottle,
    /// SES did not take it.
    SesError,
    /// The mail itself was refused.
    InvalidContent,
    /// It did not get as far as a server's answer.
    InternalError,
}

impl FailureCode {
    /// All codes.
    pub const ALL: [FailureCode; 8] = [
        FailureCode::InvalidRecipient,
        FailureCode::BouncePermanent,
        FailureCode::BounceTemporary,
        FailureCode::Complaint,
        FailureCode::SesThrottle,
        FailureCode::SesError,
        FailureCode::InvalidContent,
        FailureCode::InternalError,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            FailureCode::InvalidRecipient => "INVALID_RECIPIENT",
            FailureCode::BouncePermanent => "BOUNCE_PERMANENT",
            FailureCode::BounceTemporary => "BOUNCE_TEMPORARY",
            FailureCode::Complaint => "COMPLAINT",
            FailureCode::SesThrottle => "SES_THROTTLE",
            FailureCode::SesError => "SES_ERROR",
            FailureCode::InvalidContent => "INVALID_CONTENT",
            FailureCode::InternalError => "INTERNAL_ERROR",
        }
    }

    /// The code of this name.
    pub fn named(word: &str) -> Option<FailureCode> {
        FailureCode::ALL.into_iter().find(|code| code.as_str() == word)
    }
}

/// What a server, or we on the way to it, had against a recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MailRefusal {
    /// The reply's code, or the HTTP status of SES.
    pub status: Option<u16>,
    /// `smtp_550`, an error's name at SES, or a fault such as `timeout`.
    pub code: String,
    /// The enhanced code, such as `5.1.1`.
    pub enhanced: Option<String>,
    /// What it said.
    pub message: String,
}

/// The codes of addresses that are not written to any more.
pub const SUPPRESSED: [(&str, FailureCode); 2] =
    [("suppressed_bounce", FailureCode::BouncePermanent), ("suppressed_complaint", FailureCode::Complaint)];
/// The names by which SES asks for patience.
pub const SES_THROTTLES: [&str; 5] =
    ["Throttling", "ThrottlingException", "TooManyRequestsException", "LimitExceededException", "RequestThrottled"];
/// The code of a login that a server refused: not the mail's fault.
pub const AUTH: &str = "auth";
/// The code of a server that turned us away before a mail was spoken of: the operator's to mend as well.
pub const TURNED_AWAY: &str = "turned_away";
/// The names by which SES shuts an account or refuses a key with something else than 403: the operator's to mend, not the
/// mail's end.
pub const SES_SHUT: [&str; 6] = [
    "AccountSuspendedException",
    "SendingPausedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "UnrecognizedClientException",
];

/// The codes of mails that cannot be sent as they are.
const UNSENDABLE: [&str; 2] = ["invalid", "too_large"];

impl MailRefusal {
    /// A fault: no answer came.
    pub fn fault(code: &str, message: impl Into<String>) -> MailRefusal {
        MailRefusal { status: None, code: code.into(), enhanced: None, message: message.into() }
    }

    /// Whether it is our own, made before anybody was spoken with: it says nothing of a server.
    pub fn is_ours(&self) -> bool {
        let code = self.code.as_str();
        UNSENDABLE.contains(&code) || SUPPRESSED.iter().any(|(suppressed, _)| *suppressed == code)
    }

    /// What it is called.
    pub fn failure_code(&self, protocol: Protocol, verdict: Verdict) -> FailureCode {
        if let Some((_, code)) = SUPPRESSED.iter().find(|(code, _)| *code == self.code) {
            return *code;
        }
        match (protocol, self.status) {
            (_, None) if UNSENDABLE.contains(&self.code.as_str()) => FailureCode::InvalidContent,
            (Protocol::Ses, _) if SES_THROTTLES.contains(&self.code.as_str()) => FailureCode::SesThrottle,
            (Protocol::Ses, Some(429)) => FailureCode::SesThrottle,
            (Protocol::Ses, _) if self.code == "MessageRejected" => FailureCode::InvalidContent,
            (Protocol::Ses, _) => FailureCode::SesError,
            (_, None) => FailureCode::InternalError,
            (_, Some(_)) if verdict == Verdict::Retry => FailureCode::BounceTemporary,
            (_, Some(status)) => self.bounce(status),
        }
    }

    /// A reply of SMTP that is final, by its enhanced code (RFC 3463) or else its plain one (RFC 5321).
    fn bounce(&self, status: u16) -> FailureCode {
        let subject = self.enhanced.as_deref().and_then(|code| code.split_once('.')).map(|(_, rest)| rest);
        match subject {
            Some("1.1" | "1.2" | "1.3" | "1.6" | "1.10") => FailureCode::InvalidRecipient,
            Some(rest) if rest.starts_with("6.") || rest == "3.4" => FailureCode::InvalidContent,
            Some(_) => FailureCode::BouncePermanent,
            None => match status {
                551 | 553 => FailureCode::InvalidRecipient,
                552 => FailureCode::InvalidContent,
                _ => FailureCode::BouncePermanent,
            },
        }
    }

    /// What it says about whoever said it. A refused recipient comes from a healthy server.
    pub fn lesson(&self, protocol: Protocol) -> Lesson {
        let code = self.code.as_str();
        match (protocol, self.status) {
            (_, None) if self.is_ours() => Lesson::Nothing,
            (_, None) => Lesson::Down,
            (Protocol::Ses, _) if SES_THROTTLES.contains(&code) => Lesson::Slower(None),
            (Protocol::Ses, Some(429)) => Lesson::Slower(None),
            (Protocol::Ses, Some(403 | 500..)) => Lesson::Down,
            (Protocol::Ses, _) if SES_SHUT.contains(&code) => Lesson::Down,
            (Protocol::Smtp, Some(421)) => Lesson::Down,
            (_, Some(_)) => Lesson::Up,
        }
    }

    /// `550 5.1.1 No such user`.
    pub fn reason(&self) -> String {
        match (self.status, &self.enhanced) {
            (Some(status), Some(enhanced)) => format!("{status} {enhanced} {}", self.message),
            (Some(status), None) => format!("{status} {}", self.message),
            (None, _) => self.message.clone(),
        }
    }

    fn facts(&self, protocol: Protocol) -> Facts<'_> {
        Facts {
            protocol,
            status: self.status,
            code: (&*self.code).into(),
            headers: None,
            message: self.message.as_bytes(),
        }
    }
}

/// What came of a mail for one recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recipient {
    /// The address.
    pub address: String,
    /// What that means; the rules say.
    pub verdict: Verdict,
    /// What it is called, if it was not taken.
    pub code: Option<FailureCode>,
    /// Why it was not taken; `None` if it was.
    pub refusal: Option<MailRefusal>,
    /// Whether this attempt tried it; if not, this is what an earlier one found.
    pub tried: bool,
}

impl Recipient {
    /// A server took it over.
    pub fn accepted(address: &str) -> Recipient {
        let address = address.to_owned();
        Recipient { address, verdict: Verdict::Success, code: None, refusal: None, tried: true }
    }

    /// The same, found by an earlier attempt.
    pub fn settled_before(self) -> Recipient {
        Recipient { tried: false, ..self }
    }

    /// It was not taken; what that means is judged later.
    pub fn refused(address: &str, refusal: MailRefusal) -> Recipient {
        let address = address.to_owned();
        Recipient { address, verdict: Verdict::Retry, code: None, refusal: Some(refusal), tried: true }
    }
}

/// What came of one attempt at a mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mailed {
    /// What was spoken.
    pub protocol: Protocol,
    /// Which way it went.
    pub transport: String,
    /// The name that the mail has at the other side.
    pub message_id: Option<String>,
    /// Whether the connection was lost when the mail may have been taken already.
    pub ambiguous: bool,
    /// Everybody; those who were settled by an earlier attempt as they were then.
    pub recipients: Vec<Recipient>,
}

impl Mailed {
    /// Says what each refusal means.
    pub fn judge(&mut self, rules: &[Rule]) {
        for recipient in self.recipients.iter_mut().filter(|recipient| recipient.tried) {
            if let Some(refusal) = &recipient.refusal {
                recipient.verdict = classify_facts(rules, &refusal.facts(self.protocol));
                recipient.code = Some(refusal.failure_code(self.protocol, recipient.verdict));
            }
        }
    }

    /// What it means for the mail: one recipient who is left is enough to go on, one who was lost to fail.
    pub fn verdict(&self) -> Verdict {
        let is_any = |verdict| self.recipients.iter().any(|recipient| recipient.verdict == verdict);
        match () {
            _ if is_any(Verdict::Retry) => Verdict::Retry,
            _ if is_any(Verdict::Permanent) => Verdict::Permanent,
            _ => Verdict::Success,
        }
    }

    /// The first refusal that decided.
    fn decisive(&self) -> Option<(&Recipient, &MailRefusal)> {
        let verdict = self.verdict();
        let refused = self.recipients.iter().filter(|recipient| recipient.verdict == verdict);
        refused.filter_map(|recipient| Some((recipient, recipient.refusal.as_ref()?))).next()
    }

    /// What it is called.
    pub fn failure_code(&self) -> Option<FailureCode> {
        self.decisive().map(|(recipient, _)| recipient.code.unwrap_or(FailureCode::InternalError))
    }

    /// What went wrong, in words.
    pub fn reason(&self) -> String {
        let Some((recipient, refusal)) = self.decisive() else { return "delivered".into() };
        let refused = self.recipients.iter().filter(|recipient| recipient.refusal.is_some()).count();
        match (refused, self.recipients.len()) {
            (_, 1) => refusal.reason(),
            (refused, all) => format!("{refused} of {all} recipients: {}: {}", recipient.address, refusal.reason()),
        }
    }

    /// What the gates of the lane learn from whom this attempt tried: one who was taken says more than one who was not.
    pub fn lesson(&self) -> Lesson {
        let tried = || self.recipients.iter().filter(|recipient| recipient.tried);
        let lessons =
            || tried().filter_map(|recipient| recipient.refusal.as_ref()).map(|refusal| refusal.lesson(self.protocol));
        let slower = lessons().find(|lesson| matches!(lesson, Lesson::Slower(_)));
        match tried().any(|recipient| recipient.refusal.is_none()) {
            true => slower.unwrap_or(Lesson::Up),
            false => slower.or_else(|| lessons().find(|lesson| *lesson != Lesson::Nothing)).unwrap_or(Lesson::Nothing),
        }
    }

    /// Who got it.
    pub fn accepted(&self) -> impl Iterator<Item = &str> {
        let accepted = self.recipients.iter().filter(|recipient| recipient.verdict == Verdict::Success);
        accepted.map(|recipient| recipient.address.as_str())
    }
}

#[cfg(test)]
mod tests;
