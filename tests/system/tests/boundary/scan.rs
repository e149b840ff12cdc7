//! A search for secrets after they were used in every way: wherever a sandbox, its files, its copies, the journal or an answer could
//! hold one. In each place something planted is found by the same search, so that finding nothing means something.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use system_tests::{Res, World, process, trouble};

use super::world::{AWS, Fake, SECOND, TOKEN};

/// Looks like a secret, is none, and is put everywhere.
const DECOY: &str = "sk-decoy-9d41c7e05b8af263";

/// Forms of a value as programs write them.
fn forms(value: &str) -> Vec<String> {
    let bytes = value.as_bytes();
    let mut forms = vec![value.to_owned()];
    let mut hex = String::new();
    let mut percent = String::new();
    for byte in bytes {
        // Writing to a string does not fail.
        let _written = write!(hex, "{byte:02x}").and(write!(percent, "%{byte:02X}"));
    }
    forms.extend([hex.to_uppercase(), hex, percent.to_lowercase(), percent]);
    let encoded = value
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace(':', "%3A");
    forms.extend([encoded.to_lowercase(), encoded]);
    for before in 0..3 {
        // Whatever stands before it and behind it: the characters that it alone decides.
        let mut all = vec![0; before];
        all.extend_from_slice(bytes);
        let whole = base64(&all);
        let part = &whole[(before * 8).div_ceil(6)..all.len() * 8 / 6];
        forms.extend([part.to_owned(), part.replace('+', "-").replace('/', "_")]);
    }
    forms.sort();
    forms.dedup();
    forms
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut bits = 0_u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(*chunk.get(at).unwrap_or(&0));
        }
        for at in 0..4 {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

/// The search: by `grep`, for it goes through gigabytes.
struct Search {
    secrets: PathBuf,
    decoy: PathBuf,
}

impl Search {
    fn new(dir: &Path) -> Res<Self> {
        let write = |name: &str, values: &[&str]| -> Res<PathBuf> {
            let path = dir.join(name);
            let forms: Vec<String> = values.iter().flat_map(|value| forms(value)).collect();
            std::fs::write(&path, forms.join("\n") + "\n")?;
            Ok(path)
        };
        let secrets: Vec<&str> = [TOKEN, SECOND].into_iter().chain(AWS.split(':')).collect();
        Ok(Self {
            secrets: write("secrets.grep", &secrets)?,
            decoy: write("decoy.grep", &[DECOY])?,
        })
    }

    fn grep(patterns: &Path) -> Command {
        let mut grep = Command::new("grep");
        grep.args(["-a", "-F", "-f"])
            .arg(patterns)
            .env("LC_ALL", "C")
            .stderr(Stdio::null());
        grep
    }

    /// The secrets are in none of these files and directories, and the decoy is in one of them.
    fn files(&self, what: &str, places: &[PathBuf]) -> Res<()> {
        let options = ["-r", "-D", "skip"];
        let mut secrets = Self::grep(&self.secrets);
        let found = secrets
            .args(options)
            .args(["-l", "--"])
            .args(places)
            .output()?;
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert_eq!(found, "", "{what}: a secret is written there");
        let mut decoy = Self::grep(&self.decoy);
        let planted = decoy
            .args(options)
            .args(["-q", "--"])
            .args(places)
            .status()?;
        assert!(
            planted.success(),
            "{what}: the search does not find what was planted"
        );
        Ok(())
    }

    fn holds(patterns: &Path, bytes: &[u8]) -> Res<bool> {
        let mut grep = Self::grep(patterns);
        let mut child = grep.arg("-q").stdin(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has found something reads no further.
            let _sent = stdin.write_all(bytes);
        }
        Ok(child.wait()?.success())
    }

    /// No secret is in these bytes; returns whether the decoy is.
    fn bytes(&self, what: &str, bytes: &[u8]) -> Res<bool> {
        assert!(
            !Self::holds(&self.secrets, bytes)?,
            "{what}: a secret is in it"
        );
        Self::holds(&self.decoy, bytes)
    }
}

/// Every process of a sandbox, its supervisor among them.
fn processes(supervisor: i32) -> Vec<i32> {
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace(supervisor);
    process::all()
        .into_iter()
        .filter(|pid| own.is_some() && namespace(*pid) == own)
        .collect()
}

/// All that a process has in memory.
fn memory(pid: i32) -> Vec<u8> {
    let maps = String::from_utf8_lossy(&process::file(pid, "maps")).into_owned();
    let mut all = Vec::new();
    let Ok(mut memory) = File::open(format!("/proc/{pid}/mem")) else {
        return all;
    };
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let mode = words.next().unwrap_or_default();
        let ends = range.and_then(|(from, to)| {
            Some((
                u64::from_str_radix(from, 16).ok()?,
                u64::from_str_radix(to, 16).ok()?,
            ))
        });
        let Some((from, to)) = ends.filter(|_| mode.starts_with('r') && !line.ends_with("[vvar]"))
        else {
            continue;
        };
        // Pages that were never touched, and those of devices, are not read.
        if memory.seek(SeekFrom::Start(from)).is_ok() {
            let _read = (&memory).take(to - from).read_to_end(&mut all);
        }
    }
    all
}

/// Uses every secret in every way, keeps what came back in memory and files, then waits.
const USE: &str = r#"
import base64, subprocess, sys
sys.path.insert(0, "/workspace")
from attack import *
decoy = sys.argv[1]
kept = [decoy, base64.b64encode(b"me:" + decoy.encode())]
shown = os.environ["SHOWN_KEY"]
basic = base64.b64encode(("me:" + shown).encode()).decode()
scope = "Credential=AKIAFAKE/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00"
signed = [("authorization", "AWS4-HMAC-SHA256 " + scope), ("x-amz-date", "20260101T000000Z"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD")]
for host, path, headers in [
    ("api.test", "/reflect/header", []),
    ("git.test", "/acme/app.git/info/refs?service=git-upload-pack", []),
    ("query.test", "/reflect/query", []),
    ("shown.test", "/reflect/placeholder", [("x-api-key", shown)]),
    ("shown.test", "/reflect/basic", [("authorization", "Basic " + basic)]),
    ("other.test", "/reflect/other", [("x-api-key", os.environ["SECOND_KEY"])]),
    ("aws.test", "/reflect/aws", signed),
    # And in every way that fails.
    ("unknown.test", "/reflect", []),
    ("shown.test", "/reflect/" + shown, []),
    ("strict.test", "/reflect", [("authorization", "Bearer " + decoy)]),
    ("api.test", "/coded", []),
]:
    answer = https(host, path, headers=headers)
    kept.append(answer)
    print(host, said(answer), flush=True)
for place in ["/workspace/kept", "/root/kept", "/tmp/kept", "/var/tmp/kept", "/dev/shm/kept"]:
    with open(place, "wb") as f:
        f.write(repr(kept).encode())
planted = subprocess.Popen(["sleep", "1000"], env={"PLANTED": decoy})
print(decoy, "ready", flush=True)
open(sys.argv[2]).read(1)
planted.kill()
"#;

#[test]
fn a_secret_that_was_used_in_every_way_is_nowhere() -> Res<()> {
    if !crate::is_root("a_secret_that_was_used_in_every_way_is_nowhere") {
        return Ok(());
    }
    let fake = Fake::new("scan")?;
    let world = &fake.world;
    let search = Search::new(world.root())?;
    let gate = world.effects().gate("scan")?;
    let args = [
        "exec",
        "a",
        "--op",
        "use",
        "--",
        "/usr/bin/python3",
        "-c",
        USE,
        DECOY,
        gate.inside(),
    ];
    let client = world.start(&args)?;
    crate::support::until("every secret was used", || {
        String::from_utf8_lossy(&client.so_far()).ends_with("ready\n") || !client.words().is_empty()
    })?;
    let told = String::from_utf8_lossy(&client.so_far()).into_owned();
    assert_eq!(
        told.matches(" 200\n").count(),
        7,
        "{told}\n{}",
        client.words()
    );
    used_on_the_wire(&fake);

    // Memory, environments and arguments, read from the host, where nothing is hidden.
    let supervisor = world
        .supervisor("a")
        .ok_or_else(|| trouble("no supervisor"))?;
    let inside = processes(supervisor);
    assert!(inside.len() >= 3, "{inside:?}");
    for name in ["memory", "environ", "cmdline"] {
        let mut planted = false;
        for pid in &inside {
            let bytes = if name == "memory" {
                memory(*pid)
            } else {
                process::file(*pid, name)
            };
            let what = format!("{name} of {pid} ({})", process::command(*pid));
            planted |= search.bytes(&what, &bytes)?;
        }
        assert!(planted, "{name}: the search does not find what was planted");
    }
    for pid in world.marks().processes() {
        for name in ["environ", "cmdline"] {
            search.bytes(
                &format!("{name} of {pid} on the host"),
                &process::file(pid, name),
            )?;
        }
    }

    // Files inside; those of the host's image are the host's.
    let root = PathBuf::from(format!("/proc/{supervisor}/root"));
    for place in ["workspace", "root", "tmp", "var/tmp", "dev/shm"] {
        search.files(&format!("/{place} inside"), &[root.join(place)])?;
    }
    search.files(
        "all of the sandbox",
        &[
            "workspace",
            "root",
            "tmp",
            "run",
            "etc",
            "home",
            "var",
            "opt/durable/harness",
            "dev/shm",
        ]
        .map(|place| root.join(place)),
    )?;

    // Copies: a cut, a fork, a store and what is pulled from it.
    gate.open()?;
    client.finish()?.ok()?;
    world.must(&["checkpoint", "a", "--label", "used"])?;
    world.must(&["fork", "a", "--name", "f"])?;
    let store = world.root().join("pushed");
    let store = store.to_string_lossy();
    world.must(&["push", "a", "--store", &store])?;
    world.must(&["pull", "a", "--store", &store, "--name", "pulled"])?;
    let listed = world.sh("pulled", &format!("cat /workspace/kept; echo {DECOY}"))?;
    assert!(search.bytes("a file of what was pulled", &listed.stdout)?);
    let packed = Search::grep(&search.secrets)
        .args(["-r", "-l"])
        .arg(&*store)
        .output()?;
    assert_eq!(
        String::from_utf8_lossy(&packed.stdout),
        "",
        "a secret is in the store"
    );

    // The data directory, as the daemon sees it: journal, output, cuts, forks, logs.
    let data = world.as_daemon_sees(world.data())?;
    for place in ["journal", "sandboxes", "pool"] {
        search.files(place, &[data.join(place)])?;
    }
    search.files("the data directory", &[data])?;
    answers(world, &search)?;
    fake.nothing_leaked();
    fake.end_clean()
}

/// The servers have the secrets: each way was gone.
fn used_on_the_wire(fake: &Fake) {
    let (id, _) = AWS.split_once(':').unwrap_or_default();
    let (_, session) = AWS.rsplit_once(':').unwrap_or_default();
    let basic = |user: &str| base64(format!("{user}:{TOKEN}").as_bytes());
    for (path, value) in [
        ("/reflect/header", format!("Bearer {TOKEN}")),
        (
            "git-upload-pack",
            basic("x-access-token").trim_end_matches('A').to_owned(),
        ),
        ("/reflect/query", format!("key={TOKEN}")),
        ("/reflect/placeholder", TOKEN.to_owned()),
        (
            "/reflect/basic",
            basic("me").trim_end_matches('A').to_owned(),
        ),
        ("/reflect/other", SECOND.to_owned()),
        ("/reflect/aws", id.to_owned()),
        ("/reflect/aws", session.to_owned()),
    ] {
        let seen = fake.got(path);
        assert_eq!(seen.len(), 1, "{path}: {seen:?}");
        assert!(format!("{seen:?}").contains(&value), "{path}: {seen:?}");
    }
}

/// What commands print and the API answers.
fn answers(world: &World, search: &Search) -> Res<()> {
    let mut planted = false;
    for args in [
        &["effects", "a"][..],
        &["policy", "log", "a"],
        &["policy", "show", "a"],
        &["approvals", "a"],
        &["secret", "ls"],
        &["op", "a", "use"],
        &["log", "a"],
        &["ps"],
        &["ps", "a"],
        &["read", "a", "use"],
        &["diff", "b", "a"],
    ] {
        for json in [false, true] {
            let mut args = args.to_vec();
            if json {
                args.push("--json");
            }
            let done = world.run(&args)?;
            let all = [done.stdout, done.stderr].concat();
            planted |= search.bytes(&args.join(" "), &all)?;
        }
    }
    assert!(planted, "no command prints what was planted");
    let mut api = world.api()?;
    let mut planted = 0;
    for path in [
        "",
        "/approvals",
        "/checkpoints",
        "/denials",
        "/effects",
        "/journal",
        "/ops",
        "/ops/use",
        "/ops/use/output/stdout",
        "/ops/use/output/stderr",
        "/policy",
        "/sessions",
        "/files?path=/workspace/kept",
        "/files/tree?path=/workspace",
    ] {
        let answer = api.send("GET", &format!("/v1/sandboxes/a{path}"), b"")?;
        assert_eq!(answer.status, 200, "GET {path}");
        planted += u32::from(search.bytes(&format!("GET {path}"), &answer.body)?);
    }
    // In the journal, the operation, its output, and the files.
    assert!(
        planted >= 5,
        "the API answers with what was planted {planted} times"
    );
    let answer = api.send("GET", "/v1/secrets", b"")?;
    assert_eq!(answer.status, 200);
    search.bytes("GET /v1/secrets", &answer.body)?;
    Ok(())
}

#[test]
fn the_search_knows_a_value_in_every_coding() -> Res<()> {
    let world = World::new("forms")?;
    let search = Search::new(world.root())?;
    for before in ["", "x", "xy", "user:", "x-access-token:"] {
        for behind in ["", "z", "zz"] {
            let text = format!("{before}{DECOY}{behind}");
            assert!(search.bytes("text", text.as_bytes())?);
            assert!(
                search.bytes("base64", base64(text.as_bytes()).as_bytes())?,
                "{text}"
            );
        }
    }
    assert!(!search.bytes("nothing", b"sk-decoy-9d41c7e05b8af26")?);
    Ok(())
}
