//! Feedback: what is heard of a mail after it was sent.
//! Invariant: a report is kept with its mail and, where the address is of no use any more, keeps that tenant from
//! writing to it; hearing the same report twice changes nothing.
//! Never: believes a report; whoever calls has checked its signature.

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::mail::FailureCode;
use entrega_core::mask::mask_address;
use entrega_core::name::TenantName;

use super::event::of_report;
use super::sns::{SesEvent, SesNotification};
use super::{EXTERNAL_ID, Mailer};
use crate::events::{EVENTS_MAX, event_job, has_listeners};
use crate::store::{Feedback, StoreError, Suppression};

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackOutcome {
    /// It is kept.
    Kept,
    /// It says nothing that matters here, such as a delivery.
    Nothing,
    /// It does not say which mail it is about.
    Unmatched,
}

impl Mailer {
    /// Keeps what SES reports of a mail.
    pub async fn record_feedback(&self, notification: SesNotification) -> Result<FeedbackOutcome, StoreError> {
        let (code, suppresses, recipients) = match notification.kind {
            SesEvent::Bounce { permanent: true, recipients } => (FailureCode::BouncePermanent, true, recipients),
            SesEvent::Bounce { permanent: false, recipients } => (FailureCode::BounceTemporary, false, recipients),
            SesEvent::Complaint { recipients } => (FailureCode::Complaint, true, recipients),
            SesEvent::Delivery { .. } | SesEvent::Other(_) => return Ok(FeedbackOutcome::Nothing),
        };
        let Some((id, tenant)) = notification.mail else {
            tracing::warn!(
                sesMessageId = notification.ses_message_id,
                errorCode = code.as_str(),
                "A report of SES names no mail of ours; include the original headers in its notifications"
            );
            return Ok(FeedbackOutcome::Unmatched);
        };
        if !self.is_about(id, &tenant, &recipients).await? {
            tracing::warn!(jobId = %id, companyId = %tenant, errorCode = code.as_str(),
                "A report of SES does not fit the mail that it names; it is ignored");
            return Ok(FeedbackOutcome::Unmatched);
        }
        // Where SES only knows whom it may have been, nobody is to suffer for the others.
        let suppresses = suppresses && (code != FailureCode::Complaint || recipients.len() == 1);
        let now = self.env.clock.now();
        for (address, detail) in recipients {
            // First the list, then the mail: whoever sees the mail failed can rely on the list.
            if suppresses {
                let (tenant, address, reason) = (tenant.clone(), address.clone(), detail.clone());
                let outbox_id = Some(id);
                self.env.store.suppress(Suppression { tenant, address, code, reason, since: now, outbox_id }).await?;
            }
            tracing::warn!(lane = "email:send", jobId = %id, companyId = %tenant, errorCode = code.as_str(),
                recipient = mask_address(&address), suppressed = suppresses, "Mail reported");
            let feedback_id = notification.message_id.clone();
            let feedback = Feedback { recipient: address, code, detail, at: now, feedback_id };
            self.emit_event(id, &tenant, &feedback).await?;
            self.env.store.note_feedback(id, feedback).await?;
        }
        Ok(FeedbackOutcome::Kept)
    }

    /// Tells the company's endpoints, once, of a mail that was sent and then failed. One that had failed before has told
    /// so itself.
    async fn emit_event(&self, id: JobId, tenant: &TenantName, feedback: &Feedback) -> Result<(), StoreError> {
        let known = self.env.store.feedback(&[id]).await?.pop().unwrap_or_default();
        let is_repeat = known.iter().any(|one| one.feedback_id == feedback.feedback_id);
        let mail = self.env.store.job(id).await?.filter(|mail| mail.state == JobState::Done && !is_repeat);
        let Some(mail) = mail.filter(|_| has_listeners(&self.env, tenant)) else { return Ok(()) };
        let attempts = u32::try_from(mail.attempts.len()).unwrap_or(u32::MAX);
        let mut sequence = attempts + 1;
        // A replayed mail has more events than attempts, and so has one that was reported before.
        while sequence < EVENTS_MAX && self.env.store.job(event_job(id, sequence)).await?.is_some() {
            sequence += 1;
        }
        let external_id = mail.labels.get(EXTERNAL_ID).map(String::as_str);
        let event = of_report(id, tenant, external_id, feedback, attempts, sequence);
        self.env.store.submit(vec![event]).await.map(drop)
    }

    /// Whether a report fits the mail that it names, as long as that is known: its line in the header of a mail is not
    /// secret, so somebody could have copied it into a mail of their own.
    async fn is_about(
        &self,
        id: JobId,
        tenant: &TenantName,
        recipients: &[(String, String)],
    ) -> Result<bool, StoreError> {
        let Some(mail) = self.env.store.job(id).await? else { return Ok(true) };
        let tried = mail.attempts.iter().filter_map(|attempt| attempt.mail.as_deref());
        let known: Vec<&str> =
            tried.flat_map(|mailed| mailed.recipients.iter().map(|recipient| recipient.address.as_str())).collect();
        let is_known = |address: &str| known.iter().any(|known| known.eq_ignore_ascii_case(address));
        Ok(mail.company_id == *tenant && recipients.iter().all(|(address, _)| is_known(address)))
    }
}
