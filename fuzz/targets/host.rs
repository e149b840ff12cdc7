//! Whatever is read as a host is read again as the same one, and never as something else by the standard library.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use policy::{Host, authority, vet};

fuzz_target!(|text: &str| {
    if let Ok(host) = Host::parse(text) {
        let shown = host.to_string();
        assert_eq!(Host::parse(&shown).as_ref(), Ok(&host), "{text:?}");
        assert_eq!(
            authority(&host.in_url(), Some(1)),
            Ok((host.clone(), 1)),
            "{text:?}"
        );
        match host {
            Host::Name(name) => {
                let plain = |byte: u8| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte)
                };
                assert!(name.bytes().all(plain), "{name:?}");
                assert!(name.parse::<IpAddr>().is_err(), "{name:?}");
                assert!(!name.starts_with('.') && !name.ends_with('.') && !name.contains(".."));
                // No resolver takes a name for an address whose last label is not a number.
                let last = name.rsplit('.').next().unwrap_or_default();
                assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{name:?}");
            }
            Host::Ip(ip) => {
                assert_eq!(ip, ip.to_canonical());
                if let Err(refused) = vet(ip) {
                    assert!(!refused.to_string().is_empty());
                }
            }
        }
    }
    if let Ok((host, port)) = authority(text, Some(443)) {
        let shown = format!("{}:{port}", host.in_url());
        assert_eq!(authority(&shown, None), Ok((host, port)));
    }
});
