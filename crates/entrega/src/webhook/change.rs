//! Changing an endpoint that others change at the same time: deliveries that learn of it, callers of the API, nodes.
//! Invariant: a change is made to the endpoint as it stands when it is written; none undoes another.
//! Never: tries without end.

use std::sync::Arc;

use entrega_core::name::TenantName;

use crate::store::{Endpoint, PutEndpointError, Store};

/// As many deliveries, callers and nodes as may change one endpoint at once, and then some.
const TRIES_MAX: usize = 32;

/// Changes an endpoint. `change` is given the one that is there and says what it is to be, or `None` to leave it; it is
/// asked again if somebody else was faster.
///
/// # Errors
/// Those of `change`; the store cannot be written; or others were faster again and again.
pub async fn change_endpoint<E: From<PutEndpointError>>(
    store: &dyn Store,
    tenant: &TenantName,
    name: &str,
    mut change: impl FnMut(Option<&Endpoint>) -> Result<Option<Endpoint>, E>,
) -> Result<Option<Arc<Endpoint>>, E> {
    for _ in 0..TRIES_MAX {
        let Some(changed) = change(store.endpoint(tenant, name).as_deref())? else { return Ok(None) };
        match store.put_endpoint(changed).await {
            Ok(kept) => return Ok(Some(kept)),
            Err(PutEndpointError::Changed) => {}
            Err(error @ PutEndpointError::Store(_)) => return Err(error.into()),
        }
    }
    Err(PutEndpointError::Changed.into())
}
