//! The envelope: from a mail's addresses to the commands that name them.
//! Invariant: no address can end its command or add to it.
//! Never: names somebody whom the server could not be told of; they are refused here, with the reason.

use entrega_core::mail::MailRefusal;

use super::super::transport::Outgoing;
use super::opening::Offers;
use super::progress::Progress;

/// 64 for the local part, 255 for the domain (RFC 5321, 4.5.3.1).
const ADDRESS_BYTES_MAX: usize = 320;

/// One command of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Whom it is from.
    Sender,
    /// Whom it is to: a place in the list.
    Recipient(usize),
}

/// The commands in order; none if nobody is left. Says in `progress` who is refused.
pub(super) fn plan(mail: &Outgoing<'_>, offers: &Offers, progress: &mut Progress) -> Vec<Step> {
    if let Some(refusal) = objection(mail.from, "sender", "5.1.7", offers) {
        progress.refuse_the_rest(&refusal);
        return Vec::new();
    }
    let mut steps = vec![Step::Sender];
    for (place, address) in mail.recipients.iter().enumerate() {
        match objection(address, "recipient", "5.1.3", offers) {
            Some(refusal) => progress.refuse(place, refusal),
            None => steps.push(Step::Recipient(place)),
        }
    }
    match steps.len() {
        1 => Vec::new(),
        _ => steps,
    }
}

fn objection(address: &str, whose: &str, enhanced: &str, offers: &Offers) -> Option<MailRefusal> {
    let is_unspeakable = |letter: char| letter.is_control() || letter == '<' || letter == '>';
    let (enhanced, message) = match () {
        _ if address.is_empty() => (enhanced, format!("the {whose}'s address is empty")),
        _ if address.len() > ADDRESS_BYTES_MAX => {
            (enhanced, format!("the {whose}'s address is longer than {ADDRESS_BYTES_MAX} bytes"))
        }
        _ if address.contains(is_unspeakable) => {
            (enhanced, format!("the {whose}'s address has a control character, '<' or '>' in it; write it without"))
        }
        _ if !address.is_ascii() && !offers.utf8 => {
            let way_out = "give an ASCII address or use a transport that offers it";
            ("5.6.7", format!("the {whose}'s address is not ASCII and the server does not offer SMTPUTF8; {way_out}"))
        }
        _ => return None,
    };
    Some(MailRefusal { status: Some(553), code: "smtp_553".into(), enhanced: Some(enhanced.into()), message })
}

/// Adds a command to what is to be written.
pub(super) fn write_step(text: &mut Vec<u8>, step: Step, mail: &Outgoing<'_>, offers: &Offers) {
    let mut add = |part: &str| text.extend_from_slice(part.as_bytes());
    match step {
        Step::Recipient(place) => ["RCPT TO:<", mail.recipients[place], ">\r\n"].into_iter().for_each(add),
        Step::Sender => {
            ["MAIL FROM:<", mail.from, ">"].into_iter().for_each(&mut add);
            if offers.eight_bit {
                add(" BODY=8BITMIME");
            }
            if offers.utf8 && needs_utf8(mail) {
                add(" SMTPUTF8");
            }
            if offers.size {
                add(&format!(" SIZE={}", mail.message.len()));
            }
            add("\r\n");
        }
    }
}

/// An address outside ASCII, in the envelope or in the head: that of somebody settled earlier still stands in `To`.
fn needs_utf8(mail: &Outgoing<'_>) -> bool {
    let head = memchr::memmem::find(&mail.message, b"\r\n\r\n").unwrap_or(mail.message.len());
    let is_ascii = mail.from.is_ascii() && mail.recipients.iter().all(|address| address.is_ascii());
    !is_ascii || !mail.message[..head].is_ascii()
}
