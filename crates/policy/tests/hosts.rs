//! One canonical form, and nothing that another program could read in another way (A5, A8, A10, A11).

use policy::{Host, HostError, authority};

#[test]
fn spellings_of_one_host_are_one_host() {
    for (text, canonical) in [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("example\u{3002}com", "example.com"),
        ("\u{ff45}xample.com", "example.com"),
        ("b\u{fc}cher.example", "xn--bcher-kva.example"),
        ("BU\u{308}CHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("fa\u{df}.example", "xn--fa-hia.example"),
        ("exam\u{ad}ple.com", "example.com"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("my_bucket.s3.example.com", "my_bucket.s3.example.com"),
        ("r3---sn-4g5e.example.com", "r3---sn-4g5e.example.com"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("[::FFFF:7f00:1]", "127.0.0.1"),
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("::1", "::1"),
        ("64:ff9b::7f00:1", "64:ff9b::7f00:1"),
        ("1.2.3.4.example", "1.2.3.4.example"),
    ] {
        let host = Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(host.to_string(), canonical, "{text}");
    }
}

#[test]
fn what_two_could_read_in_two_ways_is_no_host() {
    let long = "a".repeat(64) + ".example";
    let longer = "a.".repeat(127) + "aa";
    let endless = "a".repeat(5000);
    for (text, error) in [
        ("", HostError::Empty),
        (".", HostError::Empty),
        ("\u{ad}", HostError::Empty),
        ("example..com", HostError::EmptyLabel),
        (".example.com", HostError::EmptyLabel),
        ("example.com..", HostError::EmptyLabel),
        (&long, HostError::TooLong),
        (&longer, HostError::TooLong),
        (&endless, HostError::TooLong),
        ("allowed.test@evil.test", HostError::Userinfo),
        ("fe80::1%lo", HostError::Zone),
        ("[fe80::1%25lo]", HostError::Zone),
        ("fe80::1%lo.allowed.test", HostError::Zone),
        ("ex%61mple.com", HostError::Character('%')),
        ("allowed.test\0.evil.test", HostError::Character('\0')),
        ("allowed.test\r\nx", HostError::Character('\r')),
        (" allowed.test", HostError::Character(' ')),
        ("allowed.test\t", HostError::Character('\t')),
        ("allowed\u{a0}test", HostError::Character('\u{a0}')),
        ("evil.test/allowed.test", HostError::Character('/')),
        ("evil.test\\.allowed.test", HostError::Character('\\')),
        ("evil.test?allowed.test", HostError::Character('?')),
        ("evil.test#allowed.test", HostError::Character('#')),
        ("-x.example", HostError::Hyphen),
        ("x-.example", HostError::Hyphen),
        ("ex_ample.com", HostError::Underscore),
        ("example.c_m", HostError::Underscore),
        ("my_host", HostError::Underscore),
        ("a,b.example", HostError::Character(',')),
        ("a*.example", HostError::Character('*')),
        ("xn--a.example", HostError::International),
        ("a\u{fffd}.example", HostError::International),
        ("2130706433", HostError::OddAddress),
        ("0177.0.0.1", HostError::OddAddress),
        ("0x7f.1", HostError::OddAddress),
        ("0X7F000001", HostError::OddAddress),
        ("127.1", HostError::OddAddress),
        ("127.0.1", HostError::OddAddress),
        ("127.0.0.01", HostError::OddAddress),
        ("127.0.0.1.", HostError::OddAddress),
        ("127.0.0.0x1", HostError::OddAddress),
        ("1.2.3.4.5", HostError::OddAddress),
        ("999.1.1.1", HostError::OddAddress),
        ("evil.test.0", HostError::OddAddress),
        ("\u{ff11}27.0.0.1", HostError::OddAddress),
        ("\u{2460}.1", HostError::OddAddress),
        ("0x", HostError::OddAddress),
        ("[127.0.0.1]", HostError::Brackets),
        ("[::1", HostError::Brackets),
        ("::1]", HostError::Brackets),
        ("[]", HostError::Brackets),
        ("[::1]x", HostError::Brackets),
    ] {
        assert_eq!(Host::parse(text), Err(error), "{text:?}");
    }
    for text in [
        "example.com:443",
        "[::1]:443",
        "evil.test:443.allowed.test",
        "a:b",
    ] {
        assert!(
            matches!(Host::parse(text), Err(HostError::Port(_))),
            "{text}"
        );
    }
}

#[test]
fn an_authority_has_one_port() {
    for (text, default, host, port) in [
        ("example.com", Some(443), "example.com", 443),
        ("Example.com:8443", Some(443), "example.com", 8443),
        ("example.com:1", None, "example.com", 1),
        ("[::1]:8080", None, "::1", 8080),
        ("[::1]", Some(80), "::1", 80),
        ("10.0.0.1:65535", None, "10.0.0.1", 65535),
    ] {
        let found = authority(text, default).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (found.0.to_string().as_str(), found.1),
            (host, port),
            "{text}"
        );
    }
    for text in [
        "example.com",
        "example.com:",
        "example.com:0",
        "example.com:65536",
        "example.com:0443",
        "example.com:+443",
        "example.com: 443",
        "example.com:443:80",
        "evil.test:443.allowed.test",
        "evil.test:80@allowed.test",
        "user@example.com:80",
        "user:password@example.com:80",
        "::1:443",
        ":443",
        "[::1]443",
        "[::1]:",
        "[example.com]:443",
        "",
    ] {
        assert!(authority(text, None).is_err(), "{text}");
    }
}
