//! File handles: how many this process may have, and who may have how many of them.
//! Invariant: what connections and look-ups may open together leaves the store what it needs; a store that cannot open a file
//! has failed for good.
//! Never: opens or closes anything.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// With fewer the shares are too small to work with.
pub const HANDLES_MIN: usize = 128;
/// Streams, the listener, the runtime's own, keys, exports, connections to Redis.
const OWN: usize = 28;
/// Files that the store has open beside those that it keeps for reading: journals, tables that are being written.
const STORE_WORK: usize = 20;
/// Files that the store keeps open for reading.
const STORE_CACHED_MIN: usize = 16;
const STORE_CACHED_MAX: usize = 512;
/// A look-up asks for both kinds of addresses.
const SOCKETS_PER_LOOK_UP: usize = 2;
const LOOK_UPS_MIN: usize = 4;
const LOOK_UPS_MAX: usize = 128;

/// What configuration asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Connections of callers, reserved ones included.
    pub inbound: usize,
    /// Connections to destinations.
    pub outbound: usize,
    /// Connections to mail servers.
    pub mail: usize,
}

/// Who may have how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Files that the store keeps open for reading.
    pub store_cached: usize,
    /// Look-ups of names under way.
    pub look_ups: usize,
    /// Connections of callers.
    pub inbound: usize,
    /// Connections to destinations.
    pub outbound: usize,
}

/// There are too few to begin with.
#[derive(Debug, thiserror::Error)]
#[error("{handles} file handles are too few: at least {needed} are needed; raise the limit (ulimit -n, LimitNOFILE=)")]
pub struct TooFewHandles {
    /// As many as there are.
    pub handles: usize,
    /// As many as there must be.
    pub needed: usize,
}

/// Raises the limit as far as the system lets this process, and says what it is now.
///
/// # Errors
/// When the system refuses what it said it would allow.
pub fn raise_limit() -> io::Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    // No limit at all is more than anybody shares out.
    Ok(maximum.map_or(usize::MAX, |maximum| usize::try_from(maximum).unwrap_or(usize::MAX)))
}

/// Shares so many handles out. What callers do not want is for destinations, and the other way round.
///
/// # Errors
/// [`TooFewHandles`].
pub fn share(handles: usize, wanted: Wanted) -> Result<Shares, TooFewHandles> {
    let needed = HANDLES_MIN + wanted.mail;
    if handles < needed {
        return Err(TooFewHandles { handles, needed });
    }
    let store_cached = (handles / 8).clamp(STORE_CACHED_MIN, STORE_CACHED_MAX);
    let rest = handles - OWN - STORE_WORK - store_cached - wanted.mail;
    let look_ups = (rest / 8 / SOCKETS_PER_LOOK_UP).clamp(LOOK_UPS_MIN, LOOK_UPS_MAX);
    let rest = rest - look_ups * SOCKETS_PER_LOOK_UP;
    let inbound = wanted.inbound.min((rest / 2).max(rest.saturating_sub(wanted.outbound)));
    Ok(Shares { store_cached, look_ups, inbound, outbound: wanted.outbound.min(rest - inbound) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(shares: Shares, wanted: Wanted) -> usize {
        let Shares { store_cached, look_ups, inbound, outbound } = shares;
        OWN + STORE_WORK + store_cached + look_ups * SOCKETS_PER_LOOK_UP + inbound + outbound + wanted.mail
    }

    #[test]
    fn shares_never_add_up_to_more_than_there_are_and_everybody_has_some() {
        for handles in [HANDLES_MIN + 25, 256, 1024, 4096, 20_000, 1 << 20, usize::MAX] {
            for (inbound, outbound) in [(4112, 8192), (17, 8192), (4112, 1), (1_000_000, 1_000_000)] {
                let wanted = Wanted { inbound, outbound, mail: 25 };
                let shares = share(handles, wanted).unwrap();
                assert!(sum(shares, wanted) <= handles, "{handles}: {shares:?}");
                assert!(shares.inbound <= inbound && shares.outbound <= outbound, "{handles}: {shares:?}");
                assert!(shares.inbound >= inbound.min(10) && shares.outbound >= 1, "{handles}: {shares:?}");
            }
        }
    }

    #[test]
    fn what_is_wanted_is_given_where_there_is_enough() {
        let shares = share(20_000, Wanted { inbound: 4112, outbound: 8192, mail: 25 }).unwrap();
        assert_eq!(shares, Shares { store_cached: 512, look_ups: 128, inbound: 4112, outbound: 8192 });
        assert!(share(HANDLES_MIN - 1, Wanted { inbound: 1, outbound: 1, mail: 0 }).is_err());
    }
}
