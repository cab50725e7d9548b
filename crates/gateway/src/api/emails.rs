//! Mails: taken, looked at, listed.
//! Invariant: what is answered with an `outboxId` is durable; the same key or the same `externalId` gives the same one.
//! Never: shows one tenant's mails to another.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::{HeaderValue, LOCATION};
use axum::response::{IntoResponse, Response};
use entrega_core::id::JobId;
use entrega_core::job::{JobState, Priority};
use entrega_core::name::TenantName;
use entrega_core::time::{Time, parse_duration};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Reader, Sender};
use super::body::{self, MailBytes, Object};
use super::caller::{Caller, IdempotencyHeader};
use super::idempotency::REPLAYED;
use super::mail_view::{MailStatus, MailView};
use super::page::{Composing, Listing, page};
use super::problem::{ApiError, Problem};
use super::query::{JobPath, Params};
use super::submit::Headers;
use super::{Api, schema};
use entrega::mail::{AttachmentRequest, EXTERNAL_ID, MailRequest, check_mail};
use entrega::refusal::Refusal;
use entrega::store::Idempotency;
use entrega::store::{JobFilter, JobView, Paged};
use entrega::submission::{NewJob, Taken};

const EXTERNAL_ID_BYTES_MAX: usize = 255;
/// How long the same `externalId` gives the same mail: as long as a dead letter is kept.
const EXTERNAL_ID_FOR: Duration = Duration::from_hours(7 * 24);

/// A mail to send.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct MailBody {
    /// `a@example.com` or `Ann <a@example.com>`.
    to: OneOrMore,
    /// Who gets a copy.
    cc: Option<OneOrMore>,
    /// Who gets one that the others do not see.
    bcc: Option<OneOrMore>,
    /// Who it is from; the configured sender if left out.
    from: Option<String>,
    /// Where answers go.
    reply_to: Option<String>,
    /// What it is about.
    subject: String,
    /// As plain text; `html` or `text` is needed.
    text: Option<String>,
    /// As HTML.
    html: Option<String>,
    /// Files, 10 MiB in all.
    #[schema(value_type = Option<Vec<File>>)]
    attachments: Option<Vec<Object<File>>>,
    /// Further header fields.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    headers: Option<Headers>,
    /// Your own name for it: the same one again gives the first answer and sends nothing.
    external_id: Option<String>,
    /// How urgent.
    #[schema(value_type = Option<schema::Priority>)]
    priority: Option<Priority>,
    /// Dropped when it still waits after this: milliseconds, or a text such as `2h`.
    ttl: Option<Ttl>,
    /// For whom; another tenant than the key's own needs the scope `admin`.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
}

/// One address, or an array of them.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
enum OneOrMore {
    /// One.
    One(String),
    /// Several.
    More(Vec<String>),
}

impl From<OneOrMore> for Vec<String> {
    fn from(addresses: OneOrMore) -> Vec<String> {
        match addresses {
            OneOrMore::One(address) => vec![address],
            OneOrMore::More(addresses) => addresses,
        }
    }
}

/// A file that goes with a mail.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// What the recipient sees.
    filename: String,
    /// `application/octet-stream` if left out.
    content_type: Option<String>,
    /// The file in base64.
    content: String,
    /// Under this name the HTML can show it: `<img src="cid:logo">`.
    content_id: Option<String>,
}

/// Milliseconds, or a text such as `2h`.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
enum Ttl {
    /// Milliseconds.
    Millis(u64),
    /// A number and a unit.
    Text(String),
}

impl Ttl {
    fn duration(self) -> Result<Duration, ApiError> {
        match self {
            Ttl::Millis(millis) => Ok(Duration::from_millis(millis)),
            Ttl::Text(text) => parse_duration(&text).map_err(|error| ApiError::invalid("ttl", error.to_string())),
        }
    }
}

/// A mail that was taken.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TakenMail {
    /// Its id; also the job's.
    #[schema(value_type = String, example = "out_01J9Z3K5V8N4QW6R7T2Y0X1ABC")]
    outbox_id: JobId,
    /// `QUEUED`.
    status: MailStatus,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    company_id: TenantName,
    /// Your own name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// When it was taken.
    #[schema(value_type = String, format = DateTime)]
    queued_at: Time,
}

/// Send a mail
///
/// Answered once the mail is durable. The same `Idempotency-Key` with the same body, or the same `externalId`, gives
/// the first answer again and sends nothing twice. Several recipients get one message, and a result each.
#[utoipa::path(
    post, path = "/v1/email/send", tag = "e-mail", security(("key" = ["send"])),
    params(IdempotencyHeader),
    request_body(content = MailBody, description = "The mail, 14 MiB at most"),
    responses(
        (status = 201, description = "Taken", body = TakenMail,
            headers(("location" = String, description = "Where it can be looked at"),
                ("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 403, description = "The tenant is bound to other senders", body = Problem,
            content_type = "application/problem+json"),
        (status = 507, description = "The disk is nearly full", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    caller: Caller,
    MailBytes { json, .. }: MailBytes,
) -> Result<Response, ApiError> {
    if !api.engine.mail().has_transport() {
        return Err(ApiError::NoTransport);
    }
    let Object(given): Object<MailBody> = body::parse(&json)?;
    let tenant = who.acts_for(given.tenant.clone())?;
    let external_id = given.external_id.clone();
    let once: Vec<Idempotency> =
        caller.idempotency(&json)?.into_iter().chain(external_id.as_deref().map(external_key).transpose()?).collect();
    let mut job = given.into_job(&api, &tenant)?;
    job.labels.extend(caller.trace());
    let mut answers = api.engine.submit_once(&tenant, vec![(job, once)]).await;
    let Taken { id, is_repeat } = answers.pop().expect("one answer per job").map_err(by_ttl)?;
    let taken = TakenMail {
        outbox_id: id,
        status: MailStatus::Queued,
        company_id: tenant,
        external_id,
        queued_at: id.made_at(),
    };
    let mut response = (StatusCode::CREATED, Json(taken)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/emails/{id}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    if is_repeat {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The field is called `ttl` here.
fn by_ttl(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Invalid { field, problem } if field == "ttlMs" => Refusal::Invalid { field: "ttl".into(), problem },
        other => other,
    }
}

/// What a mail is remembered by. The space keeps it apart from every `Idempotency-Key`.
fn external_key(external_id: &str) -> Result<Idempotency, ApiError> {
    let fits = (1..=EXTERNAL_ID_BYTES_MAX).contains(&external_id.len()) && !external_id.contains(char::is_control);
    match fits {
        // Whatever else the mail says, the first one with this name counts.
        true => {
            Ok(Idempotency { key: format!("{EXTERNAL_ID} {external_id}"), request: [0; 32], lasts: EXTERNAL_ID_FOR })
        }
        false => Err(ApiError::invalid(
            EXTERNAL_ID,
            format!("use 1 to {EXTERNAL_ID_BYTES_MAX} bytes without control characters"),
        )),
    }
}

impl MailBody {
    fn into_job(self, api: &Api, tenant: &TenantName) -> Result<NewJob, ApiError> {
        let files = self.attachments.unwrap_or_default().into_iter().map(|Object(file)| AttachmentRequest {
            filename: file.filename,
            content_type: file.content_type,
            content_base64: file.content,
            content_id: file.content_id,
        });
        let request = MailRequest {
            to: self.to.into(),
            cc: self.cc.map_or_else(Vec::new, Vec::from),
            bcc: self.bcc.map_or_else(Vec::new, Vec::from),
            from: self.from,
            reply_to: self.reply_to,
            subject: self.subject,
            text: self.text,
            html: self.html,
            attachments: files.collect(),
            headers: self.headers.map_or_else(Vec::new, |headers| headers.0),
        };
        let mail = check_mail(request, api.engine.mail().from())?;
        api.engine.mail().check_sender(tenant, &mail)?;
        Ok(NewJob {
            lane: api.mail_lane.clone(),
            priority: self.priority.unwrap_or_default(),
            content: Arc::new(mail),
            labels: self.external_id.map(|id| (EXTERNAL_ID.to_owned(), id)).into_iter().collect(),
            ttl: self.ttl.map(Ttl::duration).transpose()?,
            delay: Duration::ZERO,
            idempotency_key: None,
        })
    }
}

/// Show a mail
///
/// Status, every attempt with what came of it for each recipient, and what was reported later: bounces and complaints.
#[utoipa::path(
    get, path = "/v1/emails/{id}", tag = "e-mail", security(("key" = ["read"])),
    params(("id" = String, Path, description = "The mail's `outboxId`")),
    responses((status = 200, description = "The mail", body = MailView))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    JobPath(id): JobPath,
) -> Result<Json<MailView>, ApiError> {
    let found = if id.is_mail() { api.engine.store().job(id).await? } else { None };
    let job = found.filter(|job| who.sees(&job.company_id)).ok_or(ApiError::NotFound { what: "mail" })?;
    let mut mails = views(&api, vec![job]).await?;
    mails.pop().map(Json).ok_or(ApiError::NotFound { what: "mail" })
}

/// Which mails, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MailsQuery {
    /// With this name of your own. Known for seven days.
    external_id: Option<String>,
    /// In this status.
    status: Option<MailStatus>,
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// The `nextCursor` of the page before.
    cursor: Option<String>,
    /// Rows on a page; 50 if left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List mails
///
/// Newest first. A page may be shorter than its limit before the last one: a search looks at a bounded number of
/// records.
#[utoipa::path(
    get, path = "/v1/emails", tag = "e-mail", security(("key" = ["read"])), params(MailsQuery),
    responses((status = 200, description = "A page", body = Listing<MailView>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<MailsQuery>,
    _composing: Composing,
) -> Result<Json<Listing<MailView>>, ApiError> {
    let page = page::<JobId>(query.cursor.as_deref(), query.limit)?;
    let jobs = match &query.external_id {
        Some(external_id) => {
            let tenant = who.acts_for(query.tenant)?;
            let key = external_key(external_id)?;
            let job = match api.engine.store().job_by_key(&tenant, &key.key).await? {
                Some(id) => api.engine.store().job(id).await?,
                None => None,
            };
            Paged { items: job.into_iter().collect(), next: None }
        }
        None => {
            let states = query.status.map_or(&[][..], states_of).to_vec();
            let lane = Some(api.mail_lane.clone());
            let filter = JobFilter { lane, tenant: who.narrow(query.tenant)?, states };
            api.engine.store().jobs(&filter, page).await?
        }
    };
    let mut items = views(&api, jobs.items).await?;
    items.retain(|mail| query.status.is_none_or(|status| mail.status == status));
    Ok(Json(Listing::of(Paged { items, next: jobs.next })))
}

/// Jobs as mails, with what was reported of them.
async fn views(api: &Api, jobs: Vec<JobView>) -> Result<Vec<MailView>, ApiError> {
    let ids: Vec<JobId> = jobs.iter().map(|job| job.job_id).collect();
    let feedback = api.engine.store().feedback(&ids).await?;
    Ok(jobs.into_iter().zip(feedback).map(|(job, feedback)| MailView::of(job, feedback)).collect())
}

/// Which states a mail of this status may be in. One that bounced later was delivered as far as its job knows.
const fn states_of(status: MailStatus) -> &'static [JobState] {
    use JobState::*;
    match status {
        MailStatus::Queued => &[Idle, Queued, Replaying],
        MailStatus::Sending => &[Running],
        MailStatus::RetryScheduled => &[RetryWait],
        MailStatus::Sent => &[Done],
        MailStatus::Failed => &[Done, Dlq, Dropped, Cancelled, Blocked],
    }
}
