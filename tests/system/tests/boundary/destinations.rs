//! Section A of the list: tricks with names and addresses.

use system_tests::Res;

use super::world::shared;

#[test]
fn a01_domain_fronting_is_refused_also_on_a_later_request_and_over_http2() -> Res<()> {
    let Some(fake) = shared("a01")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a01",
        r#"
tell(https, "evil.test", "/a01-evil", sni="cdn.test", at="cdn.test")
first = b"GET /a01-first HTTP/1.1\r\nHost: cdn.test\r\n\r\n"
print(said(talk(tls("cdn.test"), first + request("evil.test", "/a01-evil").encode())))
curl = "curl -sk --http2 -o /dev/null -w '%{http_version} %{http_code} ' -H 'Host: evil.test' https://cdn.test/a01-evil"
print(os.popen(curl).read())
curl = "curl -sk --http2 -o /dev/null -w '%{http_code} ' https://cdn.test/a01-kept --next -sk --http2 -o /dev/null -w '%{http_code}' -H 'Host: evil.test' https://cdn.test/a01-evil"
print(os.popen(curl).read())
"#,
    )?;
    assert_eq!(
        told,
        ["421 mismatch", "200 | 421 mismatch", "2 421 ", "200 421"]
    );
    fake.denied("a01", "mismatch")?;
    assert_eq!(fake.got("a01-evil"), []);
    assert_eq!(
        (fake.got("a01-first").len(), fake.got("a01-kept").len()),
        (1, 1)
    );
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a04_a_forged_name_at_a_hard_coded_address_leads_where_the_name_leads() -> Res<()> {
    let Some(fake) = shared("a04")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a04",
        r#"tell(https, "cdn.test", "/a04", at="11.66.66.66")"#,
    )?;
    assert_eq!(told, ["200"]);
    assert_eq!(fake.got("/a04").len(), 1);
    let effects = fake.effects("a04")?;
    assert_eq!(
        (effects.len(), &effects[0]["host"]),
        (1, &"cdn.test".into())
    );
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a05_addresses_in_any_spelling_lead_nowhere() -> Res<()> {
    let Some(fake) = shared("a05")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a05",
        r#"
for place in ["127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
              "[2002:7f00:1::]", "[fe80::1%lo]", "fe80::1%lo.cdn.test", "169.254.169.254", "[fd00:ec2::254]", "11.66.66.66"]:
    print(said(connect(place + ":443")[1]))
    tell(http, place, "/a05", at="11.66.66.66")
"#,
    )?;
    assert_eq!(told.len(), 26);
    for (at, told) in told.iter().enumerate() {
        assert!(
            ["403 no_rule", "400 bad_name"].contains(&told.as_str()),
            "{at}: {told}"
        );
    }
    fake.denied("a05", "no_rule")?;
    fake.denied("a05", "bad_name")?;
    assert_eq!(fake.got("/a05"), []);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a07_a_port_like_the_proxys_at_another_address_has_no_way_out() -> Res<()> {
    let Some(fake) = shared("a07")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a07",
        r#"
for port in [8378, 3128, 1080, 8080, 22, 25, 853, 5432]:
    tell(lambda: talk(tcp("11.66.66.66", port), "CONNECT evil.test:443 HTTP/1.1\r\n\r\n"))
"#,
    )?;
    assert_eq!(told, ["ConnectionRefusedError"; 8]);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a08_spellings_of_a_name_are_that_name_or_none() -> Res<()> {
    let Some(fake) = shared("a08")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a08",
        r#"
for name in ["CDN.test", "cdn.test."]:
    print(said(connect(name + ":443")[1]))
for name in ["cdn..test", ".cdn.test", "\u0441dn.test".encode().decode("latin-1"), "xn--dn-wlc.test", "cdn_.test", "cdn.test.evil.test"]:
    print(said(connect(name + ":443")[1]))
    print(said(talk(tls("cdn.test"), request(name, "/a08"))))
"#,
    )?;
    assert_eq!(told[..2], ["200", "200"]);
    for told in &told[2..] {
        assert!(
            ["403 no_rule", "400 bad_name", "421 mismatch"].contains(&told.as_str()),
            "{told}"
        );
    }
    assert_eq!(fake.got("/a08"), []);
    fake.denied("a08", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a09_wildcards_mean_names_below_and_never_everything() -> Res<()> {
    let Some(fake) = shared("a09")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a09",
        r#"
for name in ["a.wild.test", "wild.test", "evilwild.test", "wild.test.evil.test", "*.wild.test"]:
    tell(https, name, "/a09", at="11.66.66.66")
"#,
    )?;
    assert_eq!(told[0], "200");
    for told in &told[1..4] {
        assert_eq!(told, "403 no_rule");
    }
    // That is no name: there is nobody whom a certificate could be made for.
    assert_eq!(told[4], "SSLZeroReturnError");
    assert_eq!(fake.got("/a09").len(), 1);
    for hosts in ["*", "*.com", "*.github.io", "*.*"] {
        let policy = format!("[[rule]]\nname = \"r\"\naction = \"allow\"\nhosts = [\"{hosts}\"]\n");
        assert_eq!(fake.set_policy("a", &policy)?.code, Some(125), "{hosts}");
    }
    fake.denied("a09", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a10_a_port_is_no_part_of_a_name_and_others_are_closed() -> Res<()> {
    let Some(fake) = shared("a10")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a10",
        r#"
for place in ["evil.test:443.cdn.test", "evil.test:443:cdn.test", "cdn.test:22", "cdn.test:8443", "cdn.test:0", "cdn.test:65979"]:
    print(said(connect(place)[1]))
tell(lambda: read(tcp("cdn.test", 8443)))
"#,
    )?;
    for told in &told[..6] {
        assert!(
            ["403 no_rule", "400 bad_name"].contains(&told.as_str()),
            "{told}"
        );
    }
    assert_eq!(told[6], "ConnectionRefusedError");
    fake.denied("a10", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a11_users_backslashes_and_tabs_in_urls_are_refused() -> Res<()> {
    let Some(fake) = shared("a11")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a11",
        r#"
for url in ["http://plain.test@evil.test/a11", "http://evil.test@plain.test/a11", "http://evil.test\\@plain.test/a11",
            "http://evil.test\\.plain.test/a11", "http://evil.test\t.plain.test/a11", "http://evil.test%00.plain.test/a11",
            "http://evil.test#@plain.test/a11"]:
    print(said(talk(tcp(*PROXY), f"GET {url} HTTP/1.1\r\nHost: plain.test\r\nConnection: close\r\n\r\n")))
for place in ["plain.test@evil.test:443", "evil.test@cdn.test:443", "evil.test\\.cdn.test:443", "evil.test\0.cdn.test:443"]:
    print(said(connect(place)[1]))
"#,
    )?;
    for told in &told {
        assert!(
            told.starts_with("400 ") || ["421 mismatch", "403 no_rule"].contains(&told.as_str()),
            "{told}"
        );
    }
    assert_eq!(fake.got("/a11"), []);
    fake.denied("a11", "bad_name")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a12_a_name_that_is_rebound_is_never_dialled_at_the_new_address() -> Res<()> {
    let Some(fake) = shared("a12")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a12",
        r#"
tell(https, "rebind.test", "/a12-first")
for _ in range(3):
    tell(https, "rebind.test", "/a12-again")
for name in ["mixed.test", "metadata.test", "loopback.test"]:
    tell(https, name, "/a12-inside")
"#,
    )?;
    assert_eq!(told[0], "200");
    for told in &told[1..4] {
        // By the connection that is there; or, asked for anew, it is refused.
        assert!(["200", "403 address"].contains(&told.as_str()), "{told}");
    }
    assert_eq!(told[4..], ["403 address", "403 address", "403 address"]);
    fake.denied("a12", "address")?;
    assert_eq!(fake.got("/a12-inside"), []);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a14_addresses_of_the_host_and_its_network_are_not_dialled() -> Res<()> {
    let Some(fake) = shared("a14")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a14",
        r#"
for name in ["lan.test", "loopback.test", "cgnat.test", "metadata.test"]:
    tell(https, name, "/a14")
for address in ["0.0.0.0", "10.0.0.1", "100.64.0.1", "169.254.169.254", "100.100.100.200", "192.168.0.1"]:
    tell(http, address, "/latest/meta-data/a14", at=address)
"#,
    )?;
    assert_eq!(told[..4], ["403 address"; 4]);
    assert_eq!(told[4..], ["403 no_rule"; 6]);
    fake.denied("a14", "address")?;
    fake.denied("a14", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a15_ipv6_ends_at_the_same_door() -> Res<()> {
    let Some(fake) = shared("a15")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a15",
        r#"
for address in ["2606:4700::1111", "::1", "fd00:ec2::254", "::ffff:11.66.66.66"]:
    tell(http, "evil.test", "/a15", at=address)
    tell(https, "evil.test", "/a15", at=address)
"#,
    )?;
    // The mapped address is one of IPv4, and has a way on every kernel.
    assert_eq!(told[6..], ["403 no_rule"; 2]);
    if std::path::Path::new("/proc/net/if_inet6").exists() {
        assert_eq!(told[..6], ["403 no_rule"; 6]);
    }
    fake.denied("a15", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a16_plain_http_is_judged_like_the_rest() -> Res<()> {
    let Some(fake) = shared("a16")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a16",
        r#"
tell(http, "evil.test", "/a16")
tell(http, "cdn.test", "/a16")
print(said(talk(tcp(*PROXY), "GET http://evil.test/a16 HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")))
two = request("plain.test", "/a16-plain").replace("Connection: close\r\n", "") + request("evil.test", "/a16")
print(said(talk(tcp("plain.test", 80), two)))
"#,
    )?;
    assert_eq!(told[..3], ["403 no_rule"; 3]);
    assert!(
        ["200 | 403 no_rule", "200 | 421 mismatch"].contains(&told[3].as_str()),
        "{told:?}"
    );
    assert_eq!(
        (fake.got("/a16-plain").len(), fake.got("/a16").len()),
        (1, 1)
    );
    fake.denied("a16", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a17_a_relay_inside_changes_nothing() -> Res<()> {
    let Some(fake) = shared("a17")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a17",
        r#"
import threading
relay = socket.create_server(("127.0.0.1", 0))
def pass_on(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve():
    while True:
        inner = relay.accept()[0]
        outer = tcp(*PROXY)
        for pair in [(inner, outer), (outer, inner)]:
            threading.Thread(target=pass_on, args=pair, daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
PROXY_OF_OURS = PROXY
at = relay.getsockname()
for target in ["evil.test:443", "11.66.66.66:443", "127.0.0.1:22"]:
    s = tcp(*at)
    print(said(talk(s, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")))
"#,
    )?;
    assert_eq!(told, ["403 no_rule"; 3]);
    fake.denied("a17", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a18_a_policy_that_is_empty_broken_or_changed_never_opens() -> Res<()> {
    let Some(fake) = shared("a18")? else {
        return Ok(());
    };
    fake.create("a18", "")?;
    let mut asked = 0;
    let mut ask = || {
        asked += 1;
        let script = r#"tell(https, "cdn.test", "/a18")"#;
        fake.attack_in("a18", &format!("a18-{asked}"), script)
    };
    assert_eq!(ask()?, ["403 no_rule"]);
    let rules = fake.rules();
    for broken in [
        "[[rule]]\nname = \"r\"\naction = \"allow\"\nhosts = []\n".to_owned(),
        "[[rule]]\nname = \"r\"\naction = \"allow\"\n".to_owned(),
        "allow = [\"cdn.test\"]\n".to_owned(),
        rules[..rules.len() - 20].to_owned(),
        "\u{0}".to_owned(),
    ] {
        assert_eq!(
            fake.set_policy("a18", &broken)?.code,
            Some(125),
            "{broken:?}"
        );
    }
    assert_eq!(ask()?, ["403 no_rule"]);
    for _ in 0..2 {
        fake.set_policy("a18", &rules)?.ok()?;
        assert_eq!(ask()?, ["200"]);
        fake.set_policy("a18", "")?.ok()?;
        assert_eq!(ask()?, ["403 no_rule"]);
    }
    fake.denied_in("a18", "a18-1", "no_rule")?;
    assert_eq!(fake.got("/a18").len(), 2);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a19_nothing_inside_widens_the_policy() -> Res<()> {
    let Some(fake) = shared("a19")? else {
        return Ok(());
    };
    fake.create("a19", "")?;
    let told = fake.attack_in(
        "a19",
        "a19",
        r#"
import subprocess
open_all = '[[rule]]\nname = "r"\naction = "allow"\nhosts = ["cdn.test"]\n'
for path in ["/workspace/policy.toml", "/workspace/.durable/policy.toml", "/root/.config/durable/policy.toml", "/etc/durable/policy.toml"]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(open_all)
done = subprocess.run(["/opt/durable/bin/durable", "policy", "set", "a19", "/workspace/policy.toml"], capture_output=True,
                      env={**os.environ, "DURABLE_DATA": "/run/durable"})
print(done.returncode)
print(os.access("/run/durable/api.sock", os.F_OK))
tell(https, "cdn.test", "/a19")
"#,
    )?;
    assert_eq!(told, ["125", "False", "403 no_rule"]);
    let shown = fake.world.must(&["policy", "show", "a19"])?.out();
    assert!(!shown.contains("cdn.test"), "{shown}");
    fake.denied_in("a19", "a19", "no_rule")?;
    assert_eq!(fake.got("/a19"), []);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn a20_a_net_of_addresses_allows_no_other_name_and_no_address() -> Res<()> {
    let Some(fake) = shared("a20")? else {
        return Ok(());
    };
    let told = fake.attack(
        "a20",
        r#"
tell(https, "evil.test", "/a20", at="10.0.0.1")
tell(https, "10.0.0.1", "/a20", at="10.0.0.1")
tell(http, "10.0.0.1", "/a20", at="10.0.0.1")
tell(https, "lan.test", "/a20")
"#,
    )?;
    assert_eq!(
        told,
        ["403 no_rule", "403 no_rule", "403 no_rule", "403 address"]
    );
    fake.denied("a20", "address")?;
    fake.nothing_leaked();
    Ok(())
}
