//! Keys: who asks, and what they may do.
//! Invariant: a handler gets its caller only with the scope it names, and before a body is read.
//! Never: keeps or logs a key; only SHA-256 of it is looked up.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use entrega_core::name::TenantName;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

use super::Api;
use super::problem::ApiError;
use super::traffic::CallContext;
use entrega::chance::secret_bytes;
use entrega::store::{ApiKey, KeyScope};

const KEY_PREFIX: &str = "ek_";

/// A new key: 256 bits that nobody can guess.
pub fn new_key() -> String {
    format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret_bytes::<32>()))
}

/// What is kept of a key. A fast hash is enough: there is nothing to guess in 256 random bits.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Whoever sent a valid key.
#[derive(Clone, Debug)]
pub(super) struct Principal(Arc<ApiKey>);

impl Principal {
    /// Finds the caller by the `Authorization` header, and counts the call where its tenant may make only so many.
    pub(super) fn of(api: &Api, headers: &HeaderMap) -> Result<Principal, ApiError> {
        let header = headers.get(AUTHORIZATION).ok_or(ApiError::NoKey)?;
        let (scheme, key) = header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(ApiError::NoKey)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::NoKey);
        }
        let hash = hash_key(key.trim());
        // With SHA-256 a leak of where two differ would hardly help, but this costs nothing.
        if bool::from(hash.ct_eq(&api.admin.hash)) {
            return Ok(Principal(api.admin.clone()));
        }
        let principal = api.engine.store().key_by_hash(&hash).map(Principal).ok_or(ApiError::UnknownKey)?;
        let quotas = api.engine.store().tenant_settings(principal.tenant()).quotas;
        if let Some(max) = quotas.requests_per_second {
            api.rates.count(api.engine.env().clock.now(), principal.tenant(), max)?;
        }
        Ok(principal)
    }

    /// Names the key, never shows it.
    pub(super) fn key_id(&self) -> &str {
        &self.0.id
    }

    /// Whose work it does.
    pub(super) fn tenant(&self) -> &TenantName {
        &self.0.tenant
    }

    /// Whether it sees every tenant.
    pub(super) fn is_admin(&self) -> bool {
        self.0.scopes.contains(&KeyScope::Admin)
    }

    /// Refuses a caller without a scope.
    pub(super) fn require(&self, scope: KeyScope) -> Result<(), ApiError> {
        match self.is_admin() || self.0.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(ApiError::MissingScope { scope }),
        }
    }

    /// Whether what belongs to `tenant` exists for this caller.
    pub(super) fn sees(&self, tenant: &TenantName) -> bool {
        self.is_admin() || tenant.is_of(self.tenant())
    }

    /// Which tenant a new piece of work is for: the one named, or the caller's own.
    pub(super) fn acts_for(&self, named: Option<TenantName>) -> Result<TenantName, ApiError> {
        match named {
            Some(tenant) if !self.sees(&tenant) => Err(ApiError::OtherTenant),
            Some(tenant) => {
                TenantName::given(tenant.as_str()).map_err(|error| ApiError::invalid("tenant", error.to_string()))
            }
            None => Ok(self.tenant().clone()),
        }
    }

    /// Which tenant a listing is narrowed to; `None` means all.
    pub(super) fn narrow(&self, named: Option<TenantName>) -> Result<Option<TenantName>, ApiError> {
        match named {
            None if self.is_admin() => Ok(None),
            // Whoever sees every tenant sees what nobody asked with a key, too.
            Some(tenant) if self.is_admin() && !tenant.is_endpoint() => Ok(Some(tenant)),
            named => self.acts_for(named).map(Some),
        }
    }

    /// Leaves an audit record: who, what, to which; the log adds when.
    pub(super) fn audit(&self, action: &str, subject: impl std::fmt::Display) {
        tracing::info!(target: "audit", keyId = self.key_id(), companyId = %self.tenant(), operation = action,
            subject = %subject, "{action}");
    }
}

macro_rules! caller_with_scope {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        pub(super) struct $name(pub(super) Principal);

        impl FromRequestParts<Arc<Api>> for $name {
            type Rejection = ApiError;
            async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<$name, ApiError> {
                let principal = Principal::of(api, &parts.headers)?;
                principal.require($scope)?;
                if let Some(call) = parts.extensions.get::<Arc<CallContext>>() {
                    call.begin(Some(principal.tenant()))?;
                }
                Ok($name(principal))
            }
        }
    };
}

caller_with_scope!(
    /// A caller that may make and cancel work, and replay.
    Sender, KeyScope::Send
);
caller_with_scope!(
    /// A caller that may look.
    Reader, KeyScope::Read
);
caller_with_scope!(
    /// A caller that may do everything, for every tenant.
    Admin, KeyScope::Admin
);

/// A caller that may look, or one without any key.
pub(super) struct MaybeReader(pub(super) Option<Principal>);

impl FromRequestParts<Arc<Api>> for MaybeReader {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<MaybeReader, ApiError> {
        if !parts.headers.contains_key(AUTHORIZATION) {
            return Ok(MaybeReader(None));
        }
        Reader::from_request_parts(parts, api).await.map(|Reader(who)| MaybeReader(Some(who)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_prefix_and_43_characters_and_never_the_same_twice() {
        let (one, other) = (new_key(), new_key());
        assert_eq!(one.strip_prefix("ek_").map(str::len), Some(43), "{one}");
        assert_ne!(one, other);
        assert_eq!(hash_key(&one), hash_key(&one));
        assert_ne!(hash_key(&one), hash_key(&other));
    }
}
