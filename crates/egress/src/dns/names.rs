//! Which synthetic address belongs to which name.
//!
//! An address follows from the name's hash, so that it is nearly always the same after a restart of the daemon: a program that
//! kept it goes on. Where two names fall on one place, the later one takes the next free place.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use policy::Host;

/// Names that are remembered; beyond it the oldest are forgotten. A program that looks up more is leaking data, not working.
const MAX_NAMES: usize = 16 << 10;
/// Addresses of 198.18.0.0/15 (benchmarking, RFC 2544; never routed), without the first and last 256.
const PLACES: u32 = (1 << 17) - 512;
const FIRST: u32 = u32::from_be_bytes([198, 18, 1, 0]);
/// A ULA prefix of ours, `fd64:7572:6162:6c65::/64`.
const PREFIX: [u16; 4] = [0xfd64, 0x7572, 0x6162, 0x6c65];

#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<String, u32>,
    by_place: HashMap<u32, String>,
    in_order: VecDeque<u32>,
}

impl Names {
    /// Returns the address of a name, giving it one where it has none.
    pub(crate) fn address_of(&self, name: &str, v6: bool) -> Option<IpAddr> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match table.by_name.get(name) {
            Some(place) => *place,
            None => table.add(name),
        };
        Some(if v6 { v6_of(place) } else { v4_of(place) })
    }

    /// Returns the name that an address was given to.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<Host> {
        let place = place_of(address)?;
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.by_place.get(&place).cloned().map(Host::Name)
    }
}

impl Table {
    fn add(&mut self, name: &str) -> u32 {
        if self.in_order.len() >= MAX_NAMES
            && let Some(oldest) = self.in_order.pop_front()
            && let Some(forgotten) = self.by_place.remove(&oldest)
        {
            self.by_name.remove(&forgotten);
        }
        let hash = blake3::hash(name.as_bytes());
        let [a, b, c, d, ..] = *hash.as_bytes();
        let mut place = u32::from_be_bytes([a, b, c, d]) % PLACES;
        // Ends: there are eight times more places than names.
        while self.by_place.contains_key(&place) {
            place = (place + 1) % PLACES;
        }
        self.by_name.insert(name.to_owned(), place);
        self.by_place.insert(place, name.to_owned());
        self.in_order.push_back(place);
        place
    }
}

fn v4_of(place: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(FIRST + place))
}

fn v6_of(place: u32) -> IpAddr {
    let [a, b, c, d] = PREFIX;
    let [high, low] = [place >> 16, place & 0xffff].map(|half| u16::try_from(half).unwrap_or(0));
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, high, low))
}

fn place_of(address: IpAddr) -> Option<u32> {
    let place = match address.to_canonical() {
        IpAddr::V4(v4) => u32::from(v4).checked_sub(FIRST)?,
        IpAddr::V6(v6) => {
            let [a, b, c, d, 0, 0, high, low] = v6.segments() else {
                return None;
            };
            if [a, b, c, d] != PREFIX {
                return None;
            }
            u32::from(high) << 16 | u32::from(low)
        }
    };
    (place < PLACES).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_back_to_its_name_in_both_families() {
        let names = Names::default();
        for name in ["a.test", "b.test", "a.b.c.test"] {
            for v6 in [false, true] {
                let address = names.address_of(name, v6).unwrap();
                assert_eq!(address.is_ipv6(), v6);
                assert!(place_of(address).is_some());
                assert_eq!(names.name_of(address), Some(Host::Name(name.to_owned())));
                assert_eq!(names.address_of(name, v6), Some(address));
            }
        }
    }

    #[test]
    fn addresses_are_the_same_in_the_next_daemon() {
        let (one, two) = (Names::default(), Names::default());
        assert_ne!(
            one.address_of("x.test", false),
            one.address_of("y.test", false)
        );
        for name in ["y.test", "x.test"] {
            assert_eq!(one.address_of(name, true), two.address_of(name, true));
        }
    }

    #[test]
    fn the_oldest_names_are_forgotten_and_no_two_share_an_address() {
        let names = Names::default();
        let first = names.address_of("first.test", false).unwrap();
        let mut seen = std::collections::HashSet::new();
        for number in 0..MAX_NAMES {
            let address = names.address_of(&format!("n{number}.test"), false).unwrap();
            assert!(seen.insert(address), "{address} was given twice");
        }
        let table = names.table.lock().unwrap();
        assert_eq!(table.by_name.len(), MAX_NAMES);
        assert_eq!(table.by_place.len(), MAX_NAMES);
        drop(table);
        assert_ne!(names.name_of(first), Some(Host::Name("first.test".into())));
    }

    #[test]
    fn other_addresses_have_no_name() {
        for text in [
            "198.18.0.255",
            "198.20.0.0",
            "127.0.0.1",
            "fd64:7572:6162:6c65:1::",
            "::1",
        ] {
            assert_eq!(place_of(text.parse().unwrap()), None, "{text}");
        }
    }
}
