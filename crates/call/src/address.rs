//! Addresses: which IP addresses a call may reach.
//! Invariant: an address is judged as what the network makes of it. A form that carries an IPv4
//! address inside IPv6 is judged by that IPv4 address too, and IPv6 outside global unicast is
//! refused even where no rule names it.
//! Never: resolves a name, opens a socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// Decides where calls may go. The default is strict: https to public addresses only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressFilter {
    /// Whether plain `http` URLs may be called.
    pub allow_http: bool,
    /// Networks that are open although they would be refused. An IPv4-mapped IPv6 address counts
    /// as its IPv4 address here, so only IPv4 networks open it.
    pub allow_networks: Vec<IpNet>,
}

/// An address that calls must not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{address}{} is {reason}: calls there are refused unless `[outbound] allow_networks` opens it",
    self.describe_embedded()
)]
pub struct ForbiddenAddress {
    /// The address as it was given.
    pub address: IpAddr,
    /// The IPv4 address inside `address` that is the cause, where there is one.
    pub embedded: Option<Ipv4Addr>,
    /// What the address is, e.g. "a loopback address".
    pub reason: &'static str,
}

impl ForbiddenAddress {
    fn describe_embedded(&self) -> String {
        match self.embedded {
            Some(v4) => format!(" (which carries {v4})"),
            None => String::new(),
        }
    }
}

impl AddressFilter {
    /// Says whether a call may connect to `address`.
    ///
    /// # Errors
    /// [`ForbiddenAddress`] when the address is not public and no allowed network holds it.
    pub fn check_ip(&self, address: IpAddr) -> Result<(), ForbiddenAddress> {
        let forbid = |embedded, reason| ForbiddenAddress { address, embedded, reason };
        match address {
            IpAddr::V4(v4) => self.judge_v4(v4).map_err(|reason| forbid(None, reason)),
            IpAddr::V6(v6) => {
                // The kernel sends to the IPv4 address of a mapped form: the prefix says nothing.
                if let Some(v4) = v6.to_ipv4_mapped() {
                    return self.judge_v4(v4).map_err(|reason| forbid(Some(v4), reason));
                }
                self.judge_v6(v6).map_err(|reason| forbid(None, reason))?;
                // Opening the IPv6 network of a translator does not open what lies behind it.
                for v4 in embedded_v4(v6) {
                    self.judge_v4(v4).map_err(|reason| forbid(Some(v4), reason))?;
                }
                Ok(())
            }
        }
    }

    fn judge_v4(&self, address: Ipv4Addr) -> Result<(), &'static str> {
        match FORBIDDEN_V4.iter().find(|(net, _)| net.contains(&address)) {
            Some((_, reason)) if !self.opens(address.into()) => Err(reason),
            _ => Ok(()),
        }
    }

    fn judge_v6(&self, address: Ipv6Addr) -> Result<(), &'static str> {
        let named = FORBIDDEN_V6.iter().find(|(net, _)| net.contains(&address));
        let reason = match named {
            Some((_, reason)) => reason,
            None if GLOBAL_UNICAST.contains(&address) || NAT64.contains(&address) => return Ok(()),
            None => "not a global unicast address",
        };
        if self.opens(address.into()) { Ok(()) } else { Err(reason) }
    }

    fn opens(&self, address: IpAddr) -> bool {
        self.allow_networks.iter().any(|net| net.contains(&address))
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// The first match names the reason, so single addresses stand before the network around them.
const FORBIDDEN_V4: &[(Ipv4Net, &str)] = &[
    (v4(169, 254, 169, 254, 32), METADATA),
    (v4(169, 254, 170, 2, 32), METADATA),
    (v4(100, 100, 100, 200, 32), METADATA),
    (v4(168, 63, 129, 16, 32), METADATA),
    (v4(192, 0, 0, 192, 32), METADATA),
    (v4(0, 0, 0, 0, 32), "the unspecified address"),
    (v4(0, 0, 0, 0, 8), "an address of \"this network\""),
    (v4(10, 0, 0, 0, 8), "a private address"),
    (v4(172, 16, 0, 0, 12), "a private address"),
    (v4(192, 168, 0, 0, 16), "a private address"),
    (v4(100, 64, 0, 0, 10), "a carrier-grade NAT address"),
    (v4(127, 0, 0, 0, 8), "a loopback address"),
    (v4(169, 254, 0, 0, 16), "a link-local address"),
    (v4(192, 0, 0, 0, 24), "reserved for protocol assignments"),
    (v4(192, 0, 2, 0, 24), "a documentation address"),
    (v4(198, 51, 100, 0, 24), "a documentation address"),
    (v4(203, 0, 113, 0, 24), "a documentation address"),
    (v4(192, 88, 99, 0, 24), "a 6to4 relay address"),
    (v4(198, 18, 0, 0, 15), "a benchmarking address"),
    (v4(224, 0, 0, 0, 4), "a multicast address"),
    (v4(255, 255, 255, 255, 32), "the broadcast address"),
    (v4(240, 0, 0, 0, 4), "a reserved address"),
];

const FORBIDDEN_V6: &[(Ipv6Net, &str)] = &[
    (v6(0, 0, 0, 128), "the unspecified address"),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), "a loopback address"),
    (v6(0, 0, 0, 96), "an IPv4-compatible address"),
    (v6(0x64, 0xff9b, 1, 48), "a local-use NAT64 address"),
    (Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254), 128), METADATA),
    (Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254), 128), METADATA),
    (v6(0xfc00, 0, 0, 7), "a unique local address"),
    (v6(0xfe80, 0, 0, 10), "a link-local address"),
    (v6(0xfec0, 0, 0, 10), "a site-local address"),
    (v6(0xff00, 0, 0, 8), "a multicast address"),
    (v6(0x2001, 0, 0, 32), "a Teredo address"),
    (v6(0x2001, 2, 0, 48), "a benchmarking address"),
    (v6(0x2001, 0x10, 0, 28), "an ORCHID address"),
    (v6(0x2001, 0x20, 0, 28), "an ORCHID address"),
    (v6(0x2001, 0xdb8, 0, 32), "a documentation address"),
    (v6(0x3fff, 0, 0, 20), "a documentation address"),
];

const METADATA: &str = "a cloud metadata address";
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 3);
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 96);

/// The IPv4 addresses inside an IPv6 address: at most one in its prefix (6to4) and one in its
/// last 32 bits. Both can be there at once, so both are returned.
fn embedded_v4(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let s = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));

    let in_prefix = (s[0] == 0x2002).then(|| join(s[1], s[2]));
    let compatible = s[..6] == [0; 6] && !address.is_loopback() && !address.is_unspecified();
    let translated = s[..6] == [0, 0, 0, 0, 0xffff, 0];
    let nat64 = NAT64.contains(&address) || s[..3] == [0x64, 0xff9b, 1];
    // ISATAP: the interface id is 5efe, with any universal/group bits before it.
    let isatap = s[4] & !0x0300 == 0 && s[5] == 0x5efe;
    let in_suffix = (compatible || translated || nat64 || isatap).then(|| join(s[6], s[7]));

    [in_prefix, in_suffix].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(networks: &[&str]) -> AddressFilter {
        AddressFilter { allow_http: false, allow_networks: networks.iter().map(|net| net.parse().unwrap()).collect() }
    }

    #[test]
    fn strict_filter_refuses_every_special_form() {
        let strict = AddressFilter::default();
        for (address, reason) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "this network"),
            ("10.0.0.1", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("100.64.0.1", "carrier-grade"),
            ("100.127.255.255", "carrier-grade"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "metadata"),
            ("169.254.170.2", "metadata"),
            ("100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
            ("192.0.0.192", "metadata"),
            ("192.0.0.8", "protocol"),
            ("192.0.2.1", "documentation"),
            ("198.51.100.1", "documentation"),
            ("203.0.113.1", "documentation"),
            ("192.88.99.1", "6to4 relay"),
            ("198.18.0.1", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::7f00:1", "IPv4-compatible"),
            ("::8.8.8.8", "IPv4-compatible"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:169.254.169.254", "metadata"),
            ("::ffff:10.0.0.1", "private"),
            ("::ffff:0:127.0.0.1", "not a global"),
            ("64:ff9b::127.0.0.1", "loopback"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b:1::8.8.8.8", "local-use NAT64"),
            ("2002:7f00:1::", "loopback"),
            ("2002:a9fe:a9fe::1", "metadata"),
            ("2002:c0a8:101::1", "private"),
            ("2600:1::5efe:10.0.0.1", "private"),
            ("2600:1::200:5efe:192.168.0.1", "private"),
            ("2002:808:808::5efe:10.0.0.1", "private"),
            ("fc00::1", "unique local"),
            ("fdff::1", "unique local"),
            ("fd00:ec2::254", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("2001::1", "Teredo"),
            ("2001:2::1", "benchmarking"),
            ("2001:10::1", "ORCHID"),
            ("2001:20::1", "ORCHID"),
            ("2001:db8::1", "documentation"),
            ("3fff::1", "documentation"),
            ("100::1", "not a global"),
            ("4000::1", "not a global"),
            ("5f00::1", "not a global"),
        ] {
            let refused = strict.check_ip(address.parse().unwrap()).expect_err(address);
            let message = refused.to_string();
            assert!(refused.reason.contains(reason), "{address}: {message}");
            assert!(message.contains("`[outbound] allow_networks`"), "{message}");
            assert!(message.contains(&refused.address.to_string()), "{message}");
        }
    }

    #[test]
    fn strict_filter_lets_public_addresses_through() {
        let strict = AddressFilter::default();
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:4860:4860::8888",
            "2600:1::5efe:8.8.8.8",
            "2606:4700:4700::1111",
        ] {
            assert_eq!(strict.check_ip(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn allowed_networks_open_what_they_hold_and_nothing_else() {
        for (networks, address, open) in [
            (&["127.0.0.0/8"][..], "127.0.0.1", true),
            (&["127.0.0.0/8"], "::ffff:127.0.0.1", true),
            (&["127.0.0.0/8"], "::1", false),
            (&["127.0.0.0/8"], "10.0.0.1", false),
            (&["::1/128"], "::1", true),
            (&["::1/128"], "127.0.0.1", false),
            (&["::/0"], "::ffff:127.0.0.1", false),
            (&["10.0.0.0/8"], "64:ff9b::10.0.0.1", true),
            (&["64:ff9b:1::/48"], "64:ff9b:1::8.8.8.8", true),
            (&["64:ff9b:1::/48"], "64:ff9b:1::10.0.0.1", false),
            (&["64:ff9b:1::/48", "10.0.0.0/8"], "64:ff9b:1::10.0.0.1", true),
            (&["fd00::/8"], "fd12::1", true),
            (&["fd00::/8"], "fd12::5efe:10.0.0.1", false),
        ] {
            let answer = filter(networks).check_ip(address.parse().unwrap());
            assert_eq!(answer.is_ok(), open, "{networks:?} {address}: {answer:?}");
        }
    }

    #[test]
    fn message_names_the_embedded_address() {
        let refused = AddressFilter::default().check_ip("64:ff9b::10.0.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "64:ff9b::a00:1 (which carries 10.0.0.1) is a private address: calls there are \
             refused unless `[outbound] allow_networks` opens it"
        );
    }

    proptest! {
        #[test]
        fn no_embedding_hides_a_refused_v4_address(bits: u32) {
            let strict = AddressFilter::default();
            let v4 = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = v4.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            let refused = strict.check_ip(v4.into()).is_err();
            for v6 in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2600, 1, 0, 0, 0, 0x5efe, high, low),
            ] {
                prop_assert_eq!(strict.check_ip(v6.into()).is_err(), refused, "{}", v6);
            }
        }
    }
}
