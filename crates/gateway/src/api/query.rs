//! Queries and paths: what an address says.
//! Invariant: an unknown parameter is refused by name; an id that is none answers as an unknown one.

use std::error::Error as _;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::Api;
use super::body::absent_or_repeated;
use super::problem::ApiError;

/// The parameters after the `?`.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Api>> for Params<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Params<T>, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => {
                let text = rejection.source().map_or_else(|| rejection.body_text(), |cause| cause.to_string());
                let whole = (absent_or_repeated(&text).unwrap_or("query"), text.as_str());
                let (field, detail) = text.split_once(": ").unwrap_or(whole);
                Err(ApiError::invalid(field, detail))
            }
        }
    }
}

/// The id of a job, or of its dead letter, in a path.
pub(super) struct JobPath(pub(super) JobId);

/// The name of a lane in a path.
pub(super) struct LanePath(pub(super) LaneName);

/// A tenant and one of its endpoints in a path.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct EndpointPath {
    /// The tenant that it belongs to.
    pub(super) tenant: String,
    /// The endpoint's name.
    pub(super) name: String,
}

/// Any other id in a path.
pub(super) struct TextPath(pub(super) String);

async fn segment(parts: &mut Parts, what: &'static str) -> Result<String, ApiError> {
    let path = Path::<String>::from_request_parts(parts, &()).await;
    path.map(|Path(text)| text).map_err(|_| ApiError::NotFound { what })
}

async fn named<T: FromStr>(parts: &mut Parts, what: &'static str) -> Result<T, ApiError> {
    segment(parts, what).await?.parse().map_err(|_| ApiError::NotFound { what })
}

impl FromRequestParts<Arc<Api>> for JobPath {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<JobPath, ApiError> {
        named(parts, "job").await.map(JobPath)
    }
}

impl FromRequestParts<Arc<Api>> for LanePath {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<LanePath, ApiError> {
        named(parts, "lane").await.map(LanePath)
    }
}

impl FromRequestParts<Arc<Api>> for EndpointPath {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<EndpointPath, ApiError> {
        let path = Path::<EndpointPath>::from_request_parts(parts, &()).await;
        path.map(|Path(path)| path).map_err(|_| ApiError::NotFound { what: "endpoint" })
    }
}

impl FromRequestParts<Arc<Api>> for TextPath {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<TextPath, ApiError> {
        segment(parts, "entry").await.map(TextPath)
    }
}
