//! The OpenAPI document.
//! Invariant: it lists every route of the router, each with the problems it can answer.

use axum::Json;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr};
use utoipa::{Modify, OpenApi};

use super::problem::{PROBLEM_JSON, Problem};
use super::{
    connectors, deliveries, dlq, emails, endpoints, events, export, health, jobs, keys, lanes, nodes, proxy, replays,
    requests, schema, secrets, ses, submit, suppressions, tenants,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Entrega",
        description = "An outbound gateway: jobs go in, are made durable, and are delivered. Errors are RFC 9457 \
                       problem documents; lists are paged with `cursor` and `nextCursor`."
    ),
    paths(
        submit::submit, proxy::ask_openly, proxy::ask_with_key,
        connectors::set, connectors::list, connectors::show, connectors::remove, requests::send,
        jobs::list, jobs::show, jobs::cancel, jobs::unblock, jobs::explain,
        emails::send, emails::list, emails::show,
        suppressions::list, suppressions::add, suppressions::remove, ses::hear,
        lanes::list, lanes::pause, lanes::resume,
        dlq::list, dlq::show, dlq::stats, export::export, dlq::replay, replays::start, dlq::discard,
        replays::list, replays::show,
        tenants::list, tenants::set, nodes::list,
        endpoints::set, endpoints::list, endpoints::show, endpoints::remove, secrets::rotate,
        secrets::forget_old_secret,
        keys::create, keys::list, keys::remove,
        deliveries::list, deliveries::test, deliveries::discard, events::list,
        health::live, health::ready, health::metrics, document,
    ),
    components(schemas(Problem, schema::CountBy)),
    modifiers(&Bearer, &CommonProblems),
)]
struct Document;

/// The OpenAPI document of the API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = Object))
)]
pub(super) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(openapi())
}

/// Keys are bearer tokens.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, `ek_…`. Each call names the scope it needs: `send`, `read` or `admin`."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}

/// The problems that follow from the shape of a call: whoever needs a key can be refused one, whoever sends a body can
/// send a bad one.
struct CommonProblems;

impl Modify for CommonProblems {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut document.paths.paths {
            for operation in operations(item) {
                add_problems(path, operation);
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten()
}

fn add_problems(path: &str, operation: &mut Operation) {
    let needs_key = operation.security.is_some();
    let has_body = operation.request_body.is_some();
    let has_parameters = operation.parameters.iter().flatten().any(can_be_wrong);
    let problems: [(bool, u16, &str); 11] = [
        (needs_key, 401, "No key, or an unknown one"),
        (needs_key, 403, "The key lacks a scope"),
        (path.contains('{'), 404, "Not found, or of another tenant"),
        (has_body, 400, "The body is no JSON, or too deeply nested"),
        (has_body, 408, "The body took too long"),
        (has_body, 413, "The body is too large"),
        (has_body, 415, "The content type is not JSON"),
        (has_body || has_parameters, 422, "A field or parameter is wrong, or a key was used for something else"),
        (needs_key, 500, "The store cannot be read"),
        (needs_key, 429, "The tenant is over one of its quotas, which is named"),
        (needs_key, 503, "The store takes no writes, or the lane is full"),
    ];
    for (applies, status, description) in problems {
        if applies {
            operation.responses.responses.entry(status.to_string()).or_insert_with(|| problem(description));
        }
    }
}

/// What is wrong in a path is not found.
fn can_be_wrong(parameter: &RefOr<Parameter>) -> bool {
    matches!(parameter, RefOr::T(parameter) if parameter.parameter_in != ParameterIn::Path)
}

fn problem(description: &str) -> RefOr<Response> {
    let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem"))));
    ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build().into()
}
