//! Which addresses are dialled (A5, A12, A14).

use std::net::IpAddr;

use policy::{Policy, vet};

use crate::world::{host, policy};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn addresses_of_the_internet_are_dialled() {
    for text in [
        "1.1.1.1",
        "9.255.255.255",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "::ffff:1.1.1.1",
        "64:ff9b::101:101",
    ] {
        assert_eq!(vet(ip(text)), Ok(()), "{text}");
    }
}

#[test]
fn every_other_is_refused_and_told_what_it_is() {
    for (text, what) in [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "this network"),
        ("10.0.0.1", "private"),
        ("100.64.0.1", "CGNAT"),
        ("100.127.255.255", "CGNAT"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.0.1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("192.0.0.192", "metadata"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.8", "protocols"),
        ("192.0.2.1", "documentation"),
        ("198.51.100.1", "documentation"),
        ("203.0.113.9", "documentation"),
        ("192.88.99.1", "6to4"),
        ("192.168.1.1", "private"),
        ("198.18.0.1", "benchmarks"),
        ("198.19.255.255", "benchmarks"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::127.0.0.1", "127.0.0.1 (compatible): a loopback address"),
        ("::8.8.8.8", "8.8.8.8 (compatible)"),
        ("::ffff:127.0.0.1", "127.0.0.1 (mapped): a loopback address"),
        (
            "::ffff:169.254.169.254",
            "169.254.169.254 (mapped): a metadata service",
        ),
        (
            "::ffff:0:10.0.0.1",
            "10.0.0.1 (translated): a private address",
        ),
        ("::ffff:0:8.8.8.8", "8.8.8.8 (translated)"),
        ("64:ff9b::7f00:1", "127.0.0.1 (NAT64): a loopback address"),
        (
            "64:ff9b::a9fe:a9fe",
            "169.254.169.254 (NAT64): a metadata service",
        ),
        ("64:ff9b:1::808:808", "NAT64 of a site"),
        ("2002:7f00:1::", "127.0.0.1 (6to4): a loopback address"),
        ("2002:808:808::1", "8.8.8.8 (6to4)"),
        (
            "2001:0:4136:e378:8000:63bf:f5ff:fffe",
            "10.0.0.1 (Teredo): a private address",
        ),
        (
            "2001:4860::5efe:7f00:1",
            "127.0.0.1 (ISATAP): a loopback address",
        ),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("2001:2::1", "benchmarks"),
        ("2001:10::1", "protocols"),
        ("fc00::1", "private address (ULA)"),
        ("fd00:ec2::254", "metadata"),
        ("fd20:ce::254", "metadata"),
        ("fe80::1", "link-local"),
        ("fec0::1", "site-local"),
        ("ff02::1", "multicast"),
        ("4000::1", "no address of the internet"),
        ("5f00::1", "no address of the internet"),
        ("100::1", "no address of the internet"),
    ] {
        let refused = vet(ip(text)).expect_err(text).to_string();
        assert!(refused.contains(what), "{text}: {refused}");
    }
}

#[test]
fn only_what_a_rule_names_on_purpose_is_dialled_beyond() {
    let rules = policy(
        r#"
        [[rule]]
        name = "intranet"
        hosts = ["db.corp.example"]
        ports = [5432]
        addresses = ["10.1.0.0/16", "127.0.0.1", "169.254.0.0/16", "fd00::/16"]
        action = "allow"
        [[rule]]
        name = "metadata"
        hosts = ["metadata.corp.example", "192.168.0.7"]
        addresses = ["169.254.169.254"]
        action = "allow"
        [[rule]]
        name = "no"
        hosts = ["no.corp.example"]
        action = "deny"
        "#,
    );
    let dials = |name: &str, port: u16, to: &str| rules.dial(&host(name), port, ip(to)).is_ok();
    assert!(
        dials("db.corp.example", 5432, "10.1.2.3") && dials("db.corp.example", 5432, "127.0.0.1")
    );
    assert!(
        dials("db.corp.example", 5432, "::ffff:10.1.2.3")
            && dials("db.corp.example", 5432, "8.8.8.8")
    );
    assert!(
        !dials("db.corp.example", 443, "10.1.2.3") && !dials("other.example", 5432, "10.1.2.3")
    );
    assert!(
        !dials("db.corp.example", 5432, "10.2.0.1") && !dials("no.corp.example", 443, "10.1.2.3")
    );
    // A net is no name of the metadata service in it; the address itself is.
    assert!(dials("db.corp.example", 5432, "169.254.1.1"));
    assert!(
        !dials("db.corp.example", 5432, "169.254.169.254")
            && !dials("db.corp.example", 5432, "fd00:ec2::254")
    );
    assert!(dials("metadata.corp.example", 443, "169.254.169.254"));
    // An address that is itself a host of a rule is named; a name that resolves to it is not.
    assert!(
        dials("192.168.0.7", 443, "192.168.0.7")
            && !dials("metadata.corp.example", 443, "192.168.0.7")
    );
    assert!(
        Policy::empty()
            .dial(&host("a.example"), 443, ip("127.0.0.1"))
            .is_err()
    );
}
