//! Feedback: what is heard of a mail after it was sent.
//! Invariant: a report is kept with its mail and, where the address is of no use any more, keeps that tenant from
//! writing to it; hearing the same report twice changes nothing.
//! Never: believes a report; whoever calls has checked its signature.

use entrega_core::email::FailureCode;
use entrega_core::mask::mask_address;

use crate::engine::Engine;
use crate::sns::{SesEvent, SesNotification};
use crate::store::{Feedback, StoreError, Suppression};

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is kept.
    Kept,
    /// It says nothing that matters here, such as a delivery.
    Nothing,
    /// It does not say which mail it is about.
    Unmatched,
}

impl Engine {
    /// Keeps what SES reports of a mail.
    pub async fn hear(&self, notification: SesNotification) -> Result<Heard, StoreError> {
        let (code, suppresses, recipients) = match notification.kind {
            SesEvent::Bounce { permanent: true, recipients } => (FailureCode::BouncePermanent, true, recipients),
            SesEvent::Bounce { permanent: false, recipients } => (FailureCode::BounceTemporary, false, recipients),
            SesEvent::Complaint { recipients } => (FailureCode::Complaint, true, recipients),
            SesEvent::Delivery { .. } | SesEvent::Other(_) => return Ok(Heard::Nothing),
        };
        let Some((id, tenant)) = notification.mail else {
            tracing::warn!(
                sesMessageId = notification.ses_message_id,
                errorCode = code.as_str(),
                "A report of SES names no mail of ours; include the original headers in its notifications"
            );
            return Ok(Heard::Unmatched);
        };
        let now = self.clock.now();
        for (address, detail) in recipients {
            // First the list, then the mail: whoever sees the mail failed can rely on the list.
            if suppresses {
                let (tenant, address, reason) = (tenant.clone(), address.clone(), detail.clone());
                let outbox_id = Some(id);
                self.store.suppress(Suppression { tenant, address, code, reason, since: now, outbox_id }).await?;
            }
            tracing::warn!(lane = "email:send", jobId = %id, companyId = %tenant, errorCode = code.as_str(),
                recipient = mask_address(&address), suppressed = suppresses, "Mail reported");
            let feedback_id = notification.message_id.clone();
            self.store.note_feedback(id, Feedback { recipient: address, code, detail, at: now, feedback_id }).await?;
        }
        Ok(Heard::Kept)
    }
}
