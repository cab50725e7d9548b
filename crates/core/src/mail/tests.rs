//! What answers mean, for one recipient and for a mail.

use super::*;
use crate::dialect::Dialect;

fn smtp(status: u16, enhanced: Option<&str>) -> MailRefusal {
    MailRefusal {
        status: Some(status),
        code: format!("smtp_{status}"),
        enhanced: enhanced.map(str::to_owned),
        message: "no".into(),
    }
}

fn ses(status: u16, code: &str) -> MailRefusal {
    MailRefusal { status: Some(status), code: code.into(), enhanced: None, message: "no".into() }
}

fn fault(code: &str) -> MailRefusal {
    MailRefusal::fault(code, "no")
}

fn mailed(protocol: Protocol, refusals: Vec<Option<MailRefusal>>) -> Mailed {
    let recipients = refusals.into_iter().enumerate().map(|(number, refusal)| {
        let address = format!("r{number}@example.com");
        match refusal {
            None => Recipient::accepted(&address),
            Some(refusal) => Recipient::refused(&address, refusal),
        }
    });
    let mut mailed = Mailed {
        protocol,
        transport: "main".into(),
        message_id: None,
        ambiguous: false,
        recipients: recipients.collect(),
    };
    mailed.judge(&Dialect::Mail.rules());
    mailed
}

#[test]
fn every_answer_has_its_verdict_and_its_name() {
    use FailureCode::*;
    use Protocol::*;
    use Verdict::*;
    let table = [
        (Smtp, smtp(421, None), Retry, BounceTemporary, Lesson::Down),
        (Smtp, smtp(450, Some("4.2.1")), Retry, BounceTemporary, Lesson::Up),
        (Smtp, smtp(451, None), Retry, BounceTemporary, Lesson::Up),
        (Smtp, smtp(452, None), Retry, BounceTemporary, Lesson::Up),
        (Smtp, smtp(499, None), Retry, BounceTemporary, Lesson::Up),
        (Smtp, smtp(500, None), Permanent, BouncePermanent, Lesson::Up),
        (Smtp, smtp(550, None), Permanent, BouncePermanent, Lesson::Up),
        (Smtp, smtp(550, Some("5.1.1")), Permanent, InvalidRecipient, Lesson::Up),
        (Smtp, smtp(550, Some("5.7.1")), Permanent, BouncePermanent, Lesson::Up),
        (Smtp, smtp(553, None), Permanent, InvalidRecipient, Lesson::Up),
        (Smtp, smtp(552, Some("5.3.4")), Permanent, InvalidContent, Lesson::Up),
        (Smtp, smtp(554, Some("5.6.0")), Permanent, InvalidContent, Lesson::Up),
        (Smtp, smtp(554, None), Permanent, BouncePermanent, Lesson::Up),
        (Smtp, fault("connect"), Retry, InternalError, Lesson::Down),
        (Smtp, fault("tls"), Retry, InternalError, Lesson::Down),
        (Smtp, fault("timeout"), Retry, InternalError, Lesson::Down),
        (Smtp, fault("invalid"), Permanent, InvalidContent, Lesson::Nothing),
        (Smtp, fault(AUTH), Retry, InternalError, Lesson::Down),
        (Smtp, fault("suppressed_bounce"), Permanent, BouncePermanent, Lesson::Nothing),
        (Ses, fault("suppressed_complaint"), Permanent, Complaint, Lesson::Nothing),
        (Ses, ses(400, "Throttling"), Retry, SesThrottle, Lesson::Slower(None)),
        (Ses, ses(429, "TooManyRequestsException"), Retry, SesThrottle, Lesson::Slower(None)),
        (Ses, ses(503, "ServiceUnavailable"), Retry, SesError, Lesson::Down),
        (Ses, ses(400, "MessageRejected"), Permanent, InvalidContent, Lesson::Up),
        (Ses, ses(400, "MailFromDomainNotVerifiedException"), Permanent, SesError, Lesson::Up),
        (Ses, ses(403, "SignatureDoesNotMatch"), Retry, SesError, Lesson::Down),
        (Ses, ses(403, "http_403"), Retry, SesError, Lesson::Down),
        (Ses, ses(400, "AccountSuspendedException"), Retry, SesError, Lesson::Down),
        (Smtp, fault(TURNED_AWAY), Retry, InternalError, Lesson::Down),
        (Ses, ses(404, "NotFoundException"), Permanent, SesError, Lesson::Up),
        (Ses, fault("connect"), Retry, SesError, Lesson::Down),
    ];
    for (protocol, refusal, verdict, code, lesson) in table {
        let about = format!("{protocol:?} {refusal:?}");
        let mailed = mailed(protocol, vec![Some(refusal)]);
        assert_eq!((mailed.verdict(), mailed.failure_code()), (verdict, Some(code)), "{about}");
        assert_eq!(mailed.lesson(), lesson, "{about}");
    }
}

#[test]
fn one_who_is_left_goes_on_and_one_who_was_lost_fails_in_the_end() {
    let both = mailed(Protocol::Smtp, vec![None, Some(smtp(550, None)), Some(smtp(450, None))]);
    assert_eq!((both.verdict(), both.failure_code()), (Verdict::Retry, Some(FailureCode::BounceTemporary)));
    assert_eq!(both.reason(), "2 of 3 recipients: r2@example.com: 450 no");
    let lost = mailed(Protocol::Smtp, vec![None, Some(smtp(550, None))]);
    assert_eq!((lost.verdict(), lost.accepted().collect::<Vec<_>>()), (Verdict::Permanent, vec!["r0@example.com"]));
    assert_eq!(mailed(Protocol::Smtp, vec![None, None]).verdict(), Verdict::Success);
}

#[test]
fn what_an_earlier_attempt_found_keeps_its_name_and_teaches_nothing() {
    let first = mailed(Protocol::Smtp, vec![Some(smtp(550, Some("5.1.1"))), Some(smtp(450, None))]);
    let mut second = mailed(Protocol::Ses, vec![None, None]);
    second.recipients[0] = first.recipients[0].clone().settled_before();
    second.judge(&Dialect::Mail.rules());
    assert_eq!((second.verdict(), second.failure_code()), (Verdict::Permanent, Some(FailureCode::InvalidRecipient)));
    assert_eq!(second.lesson(), Lesson::Up);
}

#[test]
fn names_of_failures_read_back() {
    assert_eq!(FailureCode::named("SES_THROTTLE"), Some(FailureCode::SesThrottle));
    assert_eq!(FailureCode::named("http_500"), None);
}
