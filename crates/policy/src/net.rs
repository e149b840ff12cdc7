//! A net of addresses, as `addresses` of a rule names them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// `10.0.0.0/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Net {
    first: IpAddr,
    prefix: u8,
}

/// The widest nets that may be named: a wider one would be named by mistake.
const WIDEST_V4: u8 = 8;
const WIDEST_V6: u8 = 16;

impl Net {
    /// Reads an address or a net; its text when it is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let ip = IpAddr::from_str(ip)
            .map_err(|_| "this is no address")?
            .to_canonical();
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(text) if text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().map_err(|_| "this is no length of a prefix")?
            }
            Some(_) => return Err("this is no length of a prefix"),
        };
        if prefix > bits {
            return Err("this prefix is longer than the address");
        }
        if prefix < if ip.is_ipv4() { WIDEST_V4 } else { WIDEST_V6 } {
            return Err("this net is too wide: name a smaller one");
        }
        let net = Self { first: ip, prefix };
        if number(ip) & !net.mask() != 0 {
            return Err("this address is not the first one of its net");
        }
        Ok(net)
    }

    /// Whether the net holds an address in canonical form.
    pub(crate) fn holds(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && number(ip) & self.mask() == number(self.first)
    }

    /// Whether this is one address, named on purpose.
    pub(crate) fn is_one(&self) -> bool {
        self.prefix == if self.first.is_ipv4() { 32 } else { 128 }
    }

    fn mask(&self) -> u128 {
        let spare = u32::from(if self.first.is_ipv4() { 32 } else { 128 } - self.prefix);
        u128::MAX.checked_shl(spare).unwrap_or(0)
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::Net;

    #[test]
    fn a_net_holds_what_its_prefix_says() {
        let holds = |net: &str, ip: &str| Net::parse(net).unwrap().holds(ip.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("127.0.0.1", "127.0.0.1") && !holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("fd00::/16", "fd00::1") && !holds("fd00::/16", "fd01::1"));
        assert!(!holds("10.0.0.0/8", "::a00:1") && holds("::ffff:10.0.0.1", "10.0.0.1"));
    }

    #[test]
    fn what_is_no_net_is_refused() {
        for text in [
            "",
            "x",
            "10.0.0.1/8",
            "0.0.0.0/0",
            "::/0",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "127.1",
            "1.2.3.4/",
        ] {
            assert!(Net::parse(text).is_err(), "{text}");
        }
    }
}
