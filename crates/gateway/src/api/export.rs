//! Dead letters as a file: JSON Lines or CSV.
//! Invariant: one page is in memory at a time, however many entries there are; a cell is never a formula, and
//! secrets are not written.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::name::{LaneName, TenantName};
use futures_util::stream;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::auth::Reader;
use super::mask::shown;
use super::page::{Composing, LIMIT_MAX};
use super::problem::ApiError;
use super::query::Params;
use super::{Api, schema};
use entrega::engine::Engine;
use entrega::store::{DeadLetterCursor, DeadLetterFilter, Page, Paged, StoreError};

const CSV_HEAD: &str = "jobId,companyId,lane,status,failedAttempts,lastFailureCode,lastFailureReason,enqueuedAt,\
                        movedToDLQAt,destination\r\n";

/// How to write entries.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// One whole entry per line.
    Jsonl,
    /// One row per entry, for spreadsheets.
    Csv,
}

/// Which dead letters, and how.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// `jsonl` if left out.
    #[param(inline)]
    format: Option<Format>,
    /// Of this lane.
    #[param(value_type = Option<String>)]
    lane: Option<LaneName>,
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// With this failure code.
    code: Option<String>,
    /// With this status.
    #[param(value_type = Option<schema::DeadLetterStatus>)]
    status: Option<DeadLetterStatus>,
    /// Dead for at least this long.
    #[param(format = "uint64")]
    older_than_seconds: Option<u64>,
    /// With this text in the reason.
    text: Option<String>,
}

/// Export dead letters
///
/// All that fit, newest first, as a stream. If the store fails on the way, the connection is cut: a file that ends
/// normally is whole.
#[utoipa::path(
    get, path = "/v1/dlq/export", tag = "dead letters", security(("key" = ["read"])), params(ExportQuery),
    responses((status = 200, description = "The file", content(
        (String = "application/jsonl"),
        (String = "text/csv"),
    )))
)]
pub(super) async fn export(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<ExportQuery>,
    _composing: Composing,
) -> Result<Response, ApiError> {
    let filter = DeadLetterFilter {
        lane: query.lane,
        tenant: who.narrow(query.tenant)?,
        code: query.code,
        status: query.status,
        older_than_seconds: query.older_than_seconds,
        text: query.text,
        ..DeadLetterFilter::default()
    };
    let format = query.format.unwrap_or(Format::Jsonl);
    let (content_type, disposition) = match format {
        Format::Jsonl => ("application/jsonl; charset=utf-8", "attachment; filename=\"dead-letters.jsonl\""),
        Format::Csv => ("text/csv; charset=utf-8", "attachment; filename=\"dead-letters.csv\""),
    };
    // The first page is read before the answer begins, so that a store that fails at once is a problem, not a cut.
    let first = read(&api.engine, &filter, None).await?;
    let tenant = who.tenant().clone();
    let writer = Writer { api, tenant, filter, format, at: Place::First(first) };
    let pages = stream::try_unfold(writer, Writer::next);
    Ok(([(CONTENT_TYPE, content_type), (CONTENT_DISPOSITION, disposition)], Body::from_stream(pages)).into_response())
}

async fn read(
    engine: &Engine,
    filter: &DeadLetterFilter,
    after: Option<DeadLetterCursor>,
) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
    engine.store().dead_letters(filter, Page { after, limit: LIMIT_MAX }).await
}

enum Place {
    First(Paged<DeadLetter, DeadLetterCursor>),
    After(DeadLetterCursor),
    End,
}

struct Writer {
    api: Arc<Api>,
    tenant: TenantName,
    filter: DeadLetterFilter,
    format: Format,
    at: Place,
}

impl Writer {
    async fn next(mut self) -> Result<Option<(Bytes, Writer)>, StoreError> {
        let mut text = Vec::new();
        let _composing = self.api.composing.take(self.tenant.as_str()).await;
        let paged = match std::mem::replace(&mut self.at, Place::End) {
            Place::End => return Ok(None),
            Place::After(place) => read(&self.api.engine, &self.filter, Some(place)).await.inspect_err(|error| {
                tracing::error!(errorReason = ?error, "An export broke off");
            })?,
            Place::First(paged) => {
                if matches!(self.format, Format::Csv) {
                    text.extend_from_slice(CSV_HEAD.as_bytes());
                }
                paged
            }
        };
        paged.items.into_iter().for_each(|dead| self.format.write(&dead, &mut text));
        self.at = paged.next.map_or(Place::End, Place::After);
        Ok(Some((text.into(), self)))
    }
}

impl Format {
    fn write(self, dead: &DeadLetter, text: &mut Vec<u8>) {
        match self {
            Format::Jsonl => {
                // Plain data always encodes, and a Vec always takes it.
                drop(serde_json::to_writer(&mut *text, &shown(dead)));
                text.push(b'\n');
            }
            Format::Csv => {
                let cells = csv_cells(dead).map(|cell| csv_cell(&cell)).join(",");
                text.extend_from_slice(cells.as_bytes());
                text.extend_from_slice(b"\r\n");
            }
        }
    }
}

fn csv_cells(dead: &DeadLetter) -> [String; 10] {
    let status = match dead.status {
        DeadLetterStatus::Pending => "pending",
        DeadLetterStatus::Replaying => "replaying",
        DeadLetterStatus::Replayed => "replayed",
        DeadLetterStatus::Discarded => "discarded",
    };
    [
        dead.job_id.to_string(),
        dead.company_id.to_string(),
        dead.lane.to_string(),
        status.to_owned(),
        dead.failed_attempts.to_string(),
        dead.last_failure_code.clone().unwrap_or_default(),
        dead.last_failure_reason.clone(),
        dead.enqueued_at.to_string(),
        dead.moved_to_dlq_at.to_string(),
        dead.original_data.destination.clone().unwrap_or_default(),
    ]
}

/// A cell that a spreadsheet shows as text: reasons and addresses come from strangers, and a cell that begins like a
/// formula would be run.
fn csv_cell(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{guard}{}\"", text.replace('"', "\"\"")),
        false => format!("{guard}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (text, cell) in [
            ("plain", "plain"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("he said \"no\"", "\"he said \"\"no\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("=HYPERLINK(\"x\",\"y\")", "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\""),
            ("a=1", "a=1"),
        ] {
            assert_eq!(csv_cell(text), cell);
        }
    }
}
