//! What SES says inside a message: a bounce, a complaint, a delivery.
//! Invariant: both of its forms, feedback notifications and published events, read the same; lists and texts have a
//! limit.
//! Never: decides what follows from it.

use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::clip;

/// The header by which a mail carries its name where there are no tags.
const MAIL_HEADER: &str = "X-Entrega-Mail";
/// Twice as many as SES takes for one mail.
const RECIPIENTS_MAX: usize = 100;
const DETAIL_CHARS_MAX: usize = 500;
/// The longest address that SMTP can carry has 254; a longer one is quoted only so far.
const ADDRESS_CHARS_MAX: usize = 320;
const NAME_CHARS_MAX: usize = 128;

/// What SES says about a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SesNotification {
    /// The id that SNS gave the message: the same when it is sent again.
    pub message_id: String,
    /// The mail's own name, where the mail carried it.
    pub mail: Option<(JobId, TenantName)>,
    /// The id that SES gave the mail.
    pub ses_message_id: Option<String>,
    /// What became of it.
    pub kind: SesEvent,
}

/// What became of a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SesEvent {
    /// It came back.
    Bounce {
        /// Whether it always would.
        permanent: bool,
        /// Addresses, each with what its server said.
        recipients: Vec<(String, String)>,
    },
    /// Somebody reported it as spam.
    Complaint {
        /// Addresses that it may have been, each with the kind of complaint.
        recipients: Vec<(String, String)>,
    },
    /// It arrived.
    Delivery {
        /// The recipients.
        recipients: Vec<String>,
    },
    /// Anything else that SES tells, by its own name for it.
    Other(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Heading {
    notification_type: Option<String>,
    event_type: Option<String>,
}

#[derive(Deserialize)]
struct OfMail {
    mail: Option<Mail>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mail {
    message_id: Option<String>,
    tags: Option<Tags>,
    headers: Option<Vec<Header>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tags {
    outbox_id: Option<Vec<String>>,
    tenant: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Header {
    name: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
struct OfBounce {
    bounce: Bounce,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bounce {
    bounce_type: String,
    bounce_sub_type: Option<String>,
    bounced_recipients: Vec<BouncedRecipient>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BouncedRecipient {
    email_address: String,
    status: Option<String>,
    diagnostic_code: Option<String>,
}

#[derive(Deserialize)]
struct OfComplaint {
    complaint: Complaint,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Complaint {
    complained_recipients: Vec<ComplainedRecipient>,
    complaint_feedback_type: Option<String>,
    complaint_sub_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ComplainedRecipient {
    email_address: String,
}

#[derive(Deserialize)]
struct OfDelivery {
    delivery: Delivery,
}

#[derive(Deserialize)]
struct Delivery {
    recipients: Vec<String>,
}

impl SesNotification {
    /// Reads the text of a message that was checked; `None` if it is not from SES.
    ///
    /// # Errors
    /// Of what claims to be from SES and lacks what such a report has.
    pub fn read(message_id: &str, text: &str) -> Result<Option<SesNotification>, serde_json::Error> {
        let Some(name) = event_name(text) else { return Ok(None) };
        let kind = match name.as_str() {
            "Bounce" => bounce(parse::<OfBounce>(text)?.bounce),
            "Complaint" => complaint(parse::<OfComplaint>(text)?.complaint),
            "Delivery" => delivery(parse::<OfDelivery>(text)?.delivery),
            _ => SesEvent::Other(clip(&name, NAME_CHARS_MAX)),
        };
        let mail = parse::<OfMail>(text)?.mail.unwrap_or_default();
        Ok(Some(SesNotification {
            message_id: clip(message_id, NAME_CHARS_MAX),
            mail: name_in_tags(&mail).or_else(|| name_in_headers(&mail)),
            ses_message_id: mail.message_id.map(|id| clip(&id, NAME_CHARS_MAX)),
            kind,
        }))
    }
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text)
}

/// Events are named by one member, feedback by another. Whatever has neither is not from SES.
fn event_name(text: &str) -> Option<String> {
    let heading: Heading = parse(text).ok()?;
    heading.event_type.or(heading.notification_type)
}

fn bounce(bounce: Bounce) -> SesEvent {
    let kind = match &bounce.bounce_sub_type {
        Some(sub_type) => format!("{}/{sub_type}", bounce.bounce_type),
        None => bounce.bounce_type.clone(),
    };
    let recipients = bounce.bounced_recipients.into_iter().take(RECIPIENTS_MAX).map(|recipient| {
        let said = recipient.diagnostic_code.or(recipient.status);
        let detail = said.map_or_else(|| kind.clone(), |said| format!("{kind}: {said}"));
        (clip(&recipient.email_address, ADDRESS_CHARS_MAX), clip(&detail, DETAIL_CHARS_MAX))
    });
    SesEvent::Bounce { permanent: bounce.bounce_type == "Permanent", recipients: recipients.collect() }
}

fn complaint(complaint: Complaint) -> SesEvent {
    let kind = complaint.complaint_feedback_type.or(complaint.complaint_sub_type);
    let detail = clip(kind.as_deref().unwrap_or("complaint"), DETAIL_CHARS_MAX);
    let recipients = complaint.complained_recipients.into_iter().take(RECIPIENTS_MAX);
    let recipients =
        recipients.map(|recipient| (clip(&recipient.email_address, ADDRESS_CHARS_MAX), detail.clone())).collect();
    SesEvent::Complaint { recipients }
}

fn delivery(delivery: Delivery) -> SesEvent {
    let recipients = delivery.recipients.iter().take(RECIPIENTS_MAX);
    SesEvent::Delivery { recipients: recipients.map(|address| clip(address, ADDRESS_CHARS_MAX)).collect() }
}

/// Published events carry the tags that the mail was sent with.
fn name_in_tags(mail: &Mail) -> Option<(JobId, TenantName)> {
    let tags = mail.tags.as_ref()?;
    match (tags.outbox_id.as_deref()?, tags.tenant.as_deref()?) {
        ([id], [tenant]) => mail_name(id, tenant),
        _ => None,
    }
}

/// Feedback carries the mail's headers, if SES is told to include them. Of two such headers one was smuggled in.
fn name_in_headers(mail: &Mail) -> Option<(JobId, TenantName)> {
    let named = |header: &&Header| header.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(MAIL_HEADER));
    let mut headers = mail.headers.iter().flatten().filter(named);
    let (only, another) = (headers.next()?, headers.next());
    if another.is_some() {
        return None;
    }
    let (id, tenant) = only.value.as_deref()?.trim().split_once(' ')?;
    mail_name(id, tenant.trim_start())
}

fn mail_name(id: &str, tenant: &str) -> Option<(JobId, TenantName)> {
    let id = id.parse().ok().filter(JobId::is_mail)?;
    Some((id, TenantName::new(tenant).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn id() -> JobId {
        JobId::from_parts(entrega_core::time::Time::from_millis(1_770_000_000_000), 7).of_mail()
    }

    fn name() -> Option<(JobId, TenantName)> {
        Some((id(), TenantName::new("m2").unwrap()))
    }

    fn tags() -> Value {
        json!({"outboxId": [id().to_string()], "tenant": ["m2"], "ses:configuration-set": ["entrega"]})
    }

    fn header() -> Value {
        json!({"name": "x-entrega-mail", "value": format!("{} m2", id())})
    }

    fn read_value(value: Value) -> SesNotification {
        SesNotification::read("m-1", &value.to_string()).unwrap().expect("it is from SES")
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(address, detail)| (address.to_owned(), detail.to_owned())).collect()
    }

    #[test]
    fn feedback_and_published_events_read_the_same() {
        let bounce = json!({
            "bounceType": "Permanent", "bounceSubType": "General", "feedbackId": "f-1",
            "bouncedRecipients": [
                {"emailAddress": "a@example.com", "action": "failed", "status": "5.1.1", "diagnosticCode": "smtp; 550"},
                {"emailAddress": "b@example.com", "status": "5.2.1"},
                {"emailAddress": "c@example.com"},
            ],
        });
        let feedback = json!({
            "notificationType": "Bounce", "bounce": bounce,
            "mail": {"messageId": "ses-1", "headersTruncated": false, "headers": [{"name": "To", "value": "a"}, header()]},
        });
        let event = json!({"eventType": "Bounce", "bounce": bounce, "mail": {"messageId": "ses-1", "tags": tags()}});
        let expected = SesNotification {
            message_id: "m-1".into(),
            mail: name(),
            ses_message_id: Some("ses-1".into()),
            kind: SesEvent::Bounce {
                permanent: true,
                recipients: pairs(&[
                    ("a@example.com", "Permanent/General: smtp; 550"),
                    ("b@example.com", "Permanent/General: 5.2.1"),
                    ("c@example.com", "Permanent/General"),
                ]),
            },
        };
        assert_eq!(read_value(feedback), expected);
        assert_eq!(read_value(event), expected);
    }

    #[test]
    fn only_a_permanent_bounce_is_one() {
        for (kind, is_permanent) in [("Permanent", true), ("Transient", false), ("Undetermined", false)] {
            let bounce = json!({"bounceType": kind, "bouncedRecipients": []});
            let read = read_value(json!({"notificationType": "Bounce", "bounce": bounce}));
            assert_eq!(read.kind, SesEvent::Bounce { permanent: is_permanent, recipients: Vec::new() });
            assert_eq!((read.mail, read.ses_message_id), (None, None));
        }
    }

    #[test]
    fn complaints_deliveries_and_the_rest_are_told_apart() {
        let someone = json!([{"emailAddress": "a@example.com"}]);
        let complained = |detail: &str| SesEvent::Complaint { recipients: pairs(&[("a@example.com", detail)]) };
        for (value, kind) in [
            (
                json!({"eventType": "Complaint", "complaint": {
                    "complainedRecipients": someone, "complaintFeedbackType": "abuse", "complaintSubType": null}}),
                complained("abuse"),
            ),
            (
                json!({"notificationType": "Complaint", "complaint": {
                    "complainedRecipients": someone, "complaintSubType": "OnAccountSuppressionList"}}),
                complained("OnAccountSuppressionList"),
            ),
            (
                json!({"notificationType": "Complaint", "complaint": {"complainedRecipients": someone}}),
                complained("complaint"),
            ),
            (
                json!({"eventType": "Delivery", "delivery": {"recipients": ["a@example.com"], "smtpResponse": "250"}}),
                SesEvent::Delivery { recipients: vec!["a@example.com".into()] },
            ),
            (json!({"eventType": "Rendering Failure"}), SesEvent::Other("Rendering Failure".into())),
            (
                json!({"notificationType": "AmazonSnsSubscriptionSucceeded", "message": "You have"}),
                SesEvent::Other("AmazonSnsSubscriptionSucceeded".into()),
            ),
        ] {
            assert_eq!(read_value(value).kind, kind);
        }
    }

    #[test]
    fn what_is_not_from_ses_is_nothing_and_what_ses_would_not_send_is_an_error() {
        for text in ["Successfully validated SNS topic", "", "7", "null", "[]", "{}", r#"{"notificationType":7}"#] {
            assert_eq!(SesNotification::read("m-1", text).unwrap(), None, "{text}");
        }
        for text in [
            r#"{"notificationType":"Bounce"}"#,
            r#"{"eventType":"Bounce","bounce":{"bouncedRecipients":[]}}"#,
            r#"{"eventType":"Complaint","complaint":{}}"#,
            r#"{"eventType":"Delivery","delivery":[7]}"#,
            r#"{"eventType":"Send","mail":7}"#,
        ] {
            assert!(SesNotification::read("m-1", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_in_doubt_is_none() {
        let stranger = json!({"name": "X-Entrega-Mail", "value": format!("{} other", id())});
        let job = JobId::from_parts(entrega_core::time::Time::ZERO, 7).to_string();
        for (mail, expected) in [
            (json!({"tags": tags()}), name()),
            (json!({"headers": [header()]}), name()),
            (json!({"tags": {"outboxId": ["nonsense"], "tenant": ["m2"]}, "headers": [header()]}), name()),
            (json!({"tags": tags(), "headers": [stranger]}), name()),
            (json!({"headers": [header(), stranger]}), None),
            (json!({"headers": [header(), header()]}), None),
            (json!({"tags": {"outboxId": [id().to_string(), id().to_string()], "tenant": ["m2"]}}), None),
            (json!({"tags": {"outboxId": [id().to_string()]}}), None),
            (json!({"tags": {"outboxId": [job], "tenant": ["m2"]}}), None),
            (json!({"headers": [{"name": "X-Entrega-Mail", "value": id().to_string()}]}), None),
            (json!({"headers": [{"name": "X-Entrega-Mail", "value": format!("{} a b", id())}]}), None),
            (json!({"headers": [{"name": "X-Entrega-Mail", "value": null}, {}]}), None),
            (json!({"tags": null, "headers": null}), None),
        ] {
            let read = read_value(json!({"eventType": "Send", "mail": mail}));
            assert_eq!(read.mail, expected, "{mail}");
        }
    }

    #[test]
    fn lists_and_texts_have_limits() {
        let many: Vec<Value> = (0..150)
            .map(|n| json!({"emailAddress": format!("r{n}@{}", "x".repeat(999)), "diagnosticCode": "é\n".repeat(999)}))
            .collect();
        let bounce = json!({"bounceType": "Transient", "bouncedRecipients": many});
        let SesEvent::Bounce { recipients, .. } = read_value(json!({"eventType": "Bounce", "bounce": bounce})).kind
        else {
            panic!("it is a bounce");
        };
        assert_eq!(recipients.len(), 100);
        let (address, detail) = &recipients[99];
        assert_eq!((address.chars().count(), detail.chars().count()), (320, 500));
        assert!(address.starts_with("r99@") && !detail.contains('\n'));
        let long = read_value(json!({"eventType": "x".repeat(9999)}));
        assert_eq!(long.kind, SesEvent::Other("x".repeat(128)));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text: String, name in "Bounce|Complaint|Delivery|Send", member: String) {
            let _ = SesNotification::read("m-1", &text);
            let value = json!({"eventType": name, "bounce": member, "mail": {"tags": {"outboxId": [text]}}});
            let _ = SesNotification::read("m-1", &value.to_string());
        }
    }
}
