//! Methods: which ones an outbound request may have.
//! Invariant: no method that passes asks for a tunnel, or for the request itself with its credentials.

use http::Method;
use thiserror::Error;

/// Why a method may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MethodProblem {
    /// `CONNECT` asks for a tunnel, not for an answer.
    #[error("the method CONNECT opens a tunnel and is not supported; use a method such as GET or POST")]
    Tunnel,
    /// `TRACE` asks for what was sent, credentials included.
    #[error("the method TRACE has credentials sent back and is not supported; use a method such as GET or POST")]
    Echo,
}

/// Refuses a method that may not be used, however it is written: some servers take no notice of case.
///
/// # Errors
/// [`MethodProblem`] that names it.
pub fn check_method(method: &Method) -> Result<(), MethodProblem> {
    let is = |name: &str| method.as_str().eq_ignore_ascii_case(name);
    match () {
        () if is("CONNECT") => Err(MethodProblem::Tunnel),
        // TRACK is what one widespread server called it.
        () if is("TRACE") || is("TRACK") => Err(MethodProblem::Echo),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TRACE went out with the operator's token, and its answer brought it to the caller.
    #[test]
    fn a_tunnel_and_an_echo_are_refused() {
        for (method, problem) in [
            ("CONNECT", Some(MethodProblem::Tunnel)),
            ("TRACE", Some(MethodProblem::Echo)),
            ("trace", Some(MethodProblem::Echo)),
            ("TRACK", Some(MethodProblem::Echo)),
            ("GET", None),
            ("OPTIONS", None),
            ("PURGE", None),
        ] {
            assert_eq!(check_method(&Method::from_bytes(method.as_bytes()).unwrap()).err(), problem, "{method}");
        }
    }
}
