//! Addresses that are never dialled for a sandbox, whatever name led to them: only what the whole internet reaches is left.
//!
//! For IPv6 the list is of what is allowed, since most of its space has no meaning yet; for IPv4 of what is not.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that must not be dialled, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The address.
    pub ip: IpAddr,
    /// What it is, in words: `a loopback address`.
    pub what: &'static str,
    /// The address of IPv4 that it stands for, and how.
    pub inside: Option<(Ipv4Addr, &'static str)>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inside {
            None => write!(f, "{} is {}", self.ip, self.what),
            Some((v4, how)) => write!(f, "{} stands for {v4} ({how}): {}", self.ip, self.what),
        }
    }
}

impl std::error::Error for Refused {}

/// Says whether an address may be dialled for a sandbox.
///
/// An address of IPv6 that stands for one of IPv4 is judged by that one: a mapped one and one of NAT64's own prefix are as
/// good as it; of the other ways to write one (compatible, translated, 6to4, Teredo, ISATAP, NAT64 of a site) none is dialled.
///
/// # Errors
///
/// [`Refused`], which says in words what the address is.
pub fn vet(ip: IpAddr) -> Result<(), Refused> {
    match ip {
        IpAddr::V4(v4) => match special_v4(v4) {
            None => Ok(()),
            Some(what) => Err(refused(ip, what, None)),
        },
        IpAddr::V6(v6) => vet_v6(v6),
    }
}

/// Whether instances of a cloud ask this address who they are: the answer is a credential.
pub(crate) fn is_metadata(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => METADATA_V4.contains(&ip),
        IpAddr::V6(ip) => METADATA_V6.contains(&ip),
    }
}

/// AWS, Azure, GCP and most others; AWS ECS; Alibaba; Azure's wire server, which is a public address; Oracle.
const METADATA_V4: [Ipv4Addr; 5] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// AWS; GCP.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];
const METADATA: &str = "a metadata service of a cloud";

fn refused(ip: IpAddr, what: &'static str, inside: Option<(Ipv4Addr, &'static str)>) -> Refused {
    Refused { ip, what, inside }
}

/// What an address of IPv4 is, if it is not simply one of the internet (the registry of RFC 6890 and its successors).
fn special_v4(ip: Ipv4Addr) -> Option<&'static str> {
    if METADATA_V4.contains(&ip) {
        return Some(METADATA);
    }
    Some(match ip.octets() {
        [0, 0, 0, 0] => "the unspecified address, which is this machine",
        [0, ..] => "an address of `this network`",
        [127, ..] => "a loopback address",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private address",
        [100, 64..=127, ..] => "an address of a carrier's own network (CGNAT)",
        [169, 254, ..] => "a link-local address",
        [192, 0, 0, _] => "an address reserved for protocols",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "an address for documentation",
        [192, 88, 99, _] => "a relay of 6to4",
        [198, 18..=19, ..] => "an address for benchmarks, which sandboxes use for names",
        [224..=239, ..] => "a multicast address",
        [255, 255, 255, 255] => "the broadcast address",
        [240..=255, ..] => "a reserved address",
        _ => return None,
    })
}

fn vet_v6(ip: Ipv6Addr) -> Result<(), Refused> {
    let whole = ip.segments();
    let last = v4(whole[6], whole[7]);
    let no = |what| Err(refused(ip.into(), what, None));
    let stands = |inside: Ipv4Addr, how| {
        let what = special_v4(inside).unwrap_or("this way of writing an address is not dialled");
        Err(refused(ip.into(), what, Some((inside, how))))
    };
    if METADATA_V6.contains(&ip) {
        return no(METADATA);
    }
    match whole {
        [0, 0, 0, 0, 0, 0, 0, 0] => no("the unspecified address, which is this machine"),
        [0, 0, 0, 0, 0, 0, 0, 1] => no("a loopback address"),
        [0, 0, 0, 0, 0, 0xffff, ..] => match special_v4(last) {
            None => Ok(()),
            Some(what) => Err(refused(ip.into(), what, Some((last, "mapped")))),
        },
        [0, 0, 0, 0, 0, 0, ..] => stands(last, "compatible"),
        [0, 0, 0, 0, 0xffff, 0, ..] => stands(last, "translated"),
        // What a resolver of a network without IPv4 answers for a name that has nothing else.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => match special_v4(last) {
            None => Ok(()),
            Some(what) => Err(refused(ip.into(), what, Some((last, "NAT64")))),
        },
        [0x64, 0xff9b, 1, ..] => stands(last, "NAT64 of a site"),
        [0x2002, a, b, ..] => stands(v4(a, b), "6to4"),
        [0x2001, 0, ..] => stands(v4(!whole[6], !whole[7]), "Teredo"),
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => stands(last, "ISATAP"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => no("an address for documentation"),
        [0x2001, 2, 0, ..] => no("an address for benchmarks"),
        [0x2001, 0..=0x1ff, ..] => no("an address reserved for protocols"),
        [0x2000..=0x3fff, ..] => Ok(()),
        [0xfc00..=0xfdff, ..] => no("a private address (ULA)"),
        [0xfe80..=0xfebf, ..] => no("a link-local address"),
        [0xfec0..=0xfeff, ..] => no("a site-local address"),
        [0xff00..=0xffff, ..] => no("a multicast address"),
        _ => no("no address of the internet"),
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}
