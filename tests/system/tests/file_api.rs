//! The files of a sandbox over HTTP and as commands: parts, atomic writes, odd names, watches, and hostile insides.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use system_tests::{Res, World, api, process, run, trouble};

use crate::support::{SOON, until, world};

const FILES: &str = "/v1/sandboxes/ada/files";

fn file(path: &str) -> String {
    format!("{FILES}?path={path}")
}

/// The helpers that serve or change files now.
fn helpers(world: &World) -> Vec<i32> {
    let all = world.marks().processes().into_iter();
    all.filter(|pid| process::command(*pid).contains("__box"))
        .collect()
}

fn seq(world: &World) -> Res<u64> {
    let view = world.api()?.get("/v1/sandboxes/ada")?;
    view["seq"].as_u64().ok_or_else(|| trouble("no seq"))
}

#[test]
fn parts_of_a_file_are_read_and_leave_no_trace() -> Res<()> {
    let world = world("ranges")?;
    world.sh(
        "ada",
        "printf 0123456789 > ten; : > empty; mkfifo pipe; mkdir dir",
    )?;
    let before = seq(&world)?;
    let mut api = world.api()?;
    let whole = api.send("GET", &file("ten"), &[])?;
    assert_eq!(
        (whole.status, whole.body.as_slice()),
        (200, &b"0123456789"[..])
    );
    let tag = whole.header("etag").to_owned();
    assert_eq!(whole.header("accept-ranges"), "bytes");
    let head = api.send("HEAD", &file("/workspace/ten"), &[])?;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    assert_eq!(
        (head.header("etag"), head.header("durable-mode")),
        (tag.as_str(), "0644")
    );
    for (range, part, told) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=0-99", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = api.send_with("GET", &file("ten"), &[("Range", range)], &[])?;
        assert_eq!(
            (answer.status, answer.header("content-range")),
            (206, told),
            "{range}"
        );
        assert_eq!(answer.body, part.as_bytes(), "{range}");
    }
    for (path, range, told) in [
        ("ten", "bytes=10-", "bytes */10"),
        ("empty", "bytes=0-", "bytes */0"),
    ] {
        let outside = api.send_with("GET", &file(path), &[("Range", range)], &[])?;
        assert_eq!(
            (outside.status, outside.header("content-range")),
            (416, told)
        );
    }
    let mut conditional =
        |name, value: &str| api.send_with("GET", &file("ten"), &[(name, value)], &[]);
    assert_eq!(conditional("If-None-Match", &tag)?.status, 304);
    assert_eq!(conditional("If-Match", &tag)?.status, 200);
    assert_eq!(conditional("If-Match", "\"other\"")?.status, 412);
    for (path, status) in [
        ("no/such", 404),
        ("dir", 400),
        ("pipe", 400),
        ("", 400),
        ("/dev/zero", 400),
    ] {
        let refused = api.send("GET", &file(path), &[])?;
        assert_eq!(
            refused.status,
            status,
            "{path}: {}",
            String::from_utf8_lossy(&refused.body)
        );
    }
    assert_eq!(api.send("GET", &file("empty"), &[])?.body, b"");

    assert_eq!(world.must(&["cat", "ada", "ten"])?.out(), "0123456789");
    assert_eq!(
        world.must(&["cat", "ada", "ten", "--range", "2-4"])?.out(),
        "234"
    );
    assert_eq!(
        world.must(&["cat", "ada", "ten", "--range", "-2"])?.out(),
        "89"
    );
    let part = ["cat", "ada", "ten", "--offset", "3", "--length", "2"];
    assert_eq!(world.must(&part)?.out(), "34");
    assert!(
        world
            .must(&["cat", "ada", "/proc/version"])?
            .out()
            .contains("Linux")
    );
    for bad in [
        &["cat", "ada", "none"][..],
        &["cat", "ada", "ten", "--range", "4-2"],
        &["ls", "ada", "none"],
    ] {
        let done = world.run(bad)?;
        assert_eq!(
            (done.code, done.err().lines().count()),
            (Some(125), 1),
            "{}",
            done.err()
        );
    }
    let outside = world.run(&["cat", "ada", "ten", "--range", "50-60", "--json"])?;
    let error: Value = serde_json::from_slice(&outside.stderr)?;
    assert_eq!(error["error"]["code"], "invalid");
    assert_eq!(seq(&world)?, before, "a read was journaled");
    until("every helper is gone", || helpers(&world).is_empty())?;

    // A stopped sandbox is started, as for every other command.
    world.must(&["stop", "ada"])?;
    assert_eq!(world.must(&["cat", "ada", "ten"])?.out(), "0123456789");
    world.end_clean()
}

#[test]
fn a_change_is_an_operation_in_a_cut_and_obeys_its_conditions() -> Res<()> {
    let world = world("changes")?;
    let mut api = world.api()?;
    let made = api
        .send("PUT", &format!("{}&mode=750&owner=7:8", file("f")), b"one")?
        .json()?;
    assert!(made["cut"].is_string(), "{made}");
    let id = made["op"].as_str().ok_or_else(|| trouble("no op"))?;
    let op = world.json(&["op", "ada", id, "--json"])?;
    assert_eq!(
        (op["outcome"].as_str(), &op["cut"]),
        (Some("exited"), &made["cut"])
    );
    assert_eq!(
        world.sh("ada", "stat -c %a,%u,%g,%s f")?.out(),
        "750,7,8,3\n"
    );
    let tag = made["file"]["etag"]
        .as_str()
        .ok_or_else(|| trouble("no tag"))?
        .to_owned();
    assert_eq!(api.send("HEAD", &file("f"), &[])?.header("etag"), tag);
    // What is not said is kept.
    let again = api.send_with("PUT", &file("f"), &[("If-Match", &tag)], b"second")?;
    assert_eq!(
        again.status,
        200,
        "{}",
        String::from_utf8_lossy(&again.body)
    );
    assert_eq!(
        world.sh("ada", "stat -c %a,%u,%g,%s f")?.out(),
        "750,7,8,6\n"
    );
    for header in [("If-Match", tag.as_str()), ("If-None-Match", "*")] {
        assert_eq!(
            api.send_with("PUT", &file("f"), &[header], b"third")?
                .status,
            412
        );
    }
    assert_eq!(
        api.send_with("PUT", &file("g"), &[("If-Match", "*")], b"x")?
            .status,
        412
    );
    assert_eq!(api.send("PUT", &file("no/dir/f"), b"x")?.status, 404);
    assert_eq!(
        api.send("PUT", &format!("{}&parents", file("new/dir/f")), b"x")?
            .status,
        200
    );
    assert_eq!(api.send("PUT", &file("/dev/null"), b"x")?.status, 400);
    assert_eq!(
        api.send("PUT", &format!("{}&user=nobody", file("f")), b"x")?
            .status,
        403
    );
    assert_eq!(
        api.send("PUT", &format!("{}&mode=9", file("f")), b"x")?
            .status,
        400
    );
    // A link is followed to what it names, also where that is not there yet.
    world.sh("ada", "ln -s target link")?;
    api.send("PUT", &file("link"), b"through")?.json()?;
    assert_eq!(
        world.sh("ada", "test -L link && cat target")?.out(),
        "through"
    );

    let mut post =
        |path: &str| -> Res<u16> { Ok(api.send("POST", &format!("{FILES}/{path}"), &[])?.status) };
    assert_eq!(post("mkdir?path=d&mode=700")?, 200);
    assert_eq!(post("mkdir?path=d")?, 409);
    assert_eq!(post("mkdir?path=d/a/b&parents")?, 200);
    assert_eq!(post("rename?path=f&to=target")?, 409);
    assert_eq!(post("rename?path=f&to=target&replace")?, 200);
    assert_eq!(post("rename?path=f&to=x")?, 404);
    assert_eq!(
        world.sh("ada", "cat target; stat -c %a d")?.out(),
        "second700\n"
    );
    assert_eq!(api.send("DELETE", &file("d"), &[])?.status, 409);
    assert_eq!(
        api.send("DELETE", &format!("{}&recursive", file("d")), &[])?
            .status,
        200
    );
    assert_eq!(api.send("DELETE", &file("d"), &[])?.status, 404);
    assert_eq!(world.sh("ada", "ls -A")?.out(), "link\nnew\ntarget\n");

    // Counted up by several at once: what is read and written under a condition is never lost.
    api.send("PUT", &file("count"), b"0")?.json()?;
    let each = 4;
    std::thread::scope(|scope| -> Res<()> {
        let adders: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| (0..each).try_for_each(|_| add_one(&world))))
            .collect();
        adders
            .into_iter()
            .try_for_each(|adder| adder.join().map_err(|_| trouble("panicked"))?)
    })?;
    assert_eq!(
        api.send("GET", &file("count"), &[])?.body,
        format!("{}", 3 * each).as_bytes()
    );
    world.end_clean()
}

fn add_one(world: &World) -> Res<()> {
    let mut api = world.api()?;
    loop {
        let seen = api.send("GET", &file("count"), &[])?;
        let number: u32 = String::from_utf8_lossy(&seen.body).parse()?;
        let condition = [("If-Match", seen.header("etag"))];
        let next = (number + 1).to_string();
        match api
            .send_with("PUT", &file("count"), &condition, next.as_bytes())?
            .status
        {
            200 => return Ok(()),
            412 => {}
            other => return Err(trouble(format!("status {other}"))),
        }
    }
}

#[test]
fn a_reader_sees_the_old_file_or_the_new_one_whole() -> Res<()> {
    const SIZE: usize = 700_000;
    let world = world("atomic")?;
    let mut api = world.api()?;
    api.send("PUT", &file("f"), &vec![b'a'; SIZE])?.json()?;
    // Inside, somebody looks all the time as well.
    let script = "while [ ! -e stop ]; do set -- $(tr -d a <f | wc -c) $(wc -c <f); [ $2 = 700000 ] || echo half $2; done";
    let inside = world.start(&["exec", "ada", "--", "sh", "-c", script])?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Res<()> {
        let reader = scope.spawn(|| -> Res<u32> {
            let mut api = world.api()?;
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                let body = api.send("GET", &file("f"), &[])?.body;
                let first = body.first().copied();
                assert!(
                    body.len() == SIZE && body.iter().all(|b| Some(*b) == first),
                    "half a file was read"
                );
                reads += 1;
            }
            Ok(reads)
        });
        for round in 0..12 {
            let content = vec![b"ab"[round % 2]; SIZE];
            api.send("PUT", &file("f"), &content)?.json()?;
        }
        over.store(true, Ordering::Relaxed);
        let reads = reader
            .join()
            .map_err(|_| trouble("the reader panicked"))??;
        assert!(reads > 0);
        Ok(())
    })?;
    world.sh("ada", "touch stop")?.ok()?;
    assert_eq!(inside.finish()?.ok()?.out(), "");

    // A body that breaks off changes nothing, and leaves nobody and nothing behind.
    let mut broken = world.api()?;
    broken.begin("PUT", &file("f"), &[], SIZE, &[b'c'; 5000])?;
    until("the write has begun", || !helpers(&world).is_empty())?;
    drop(broken);
    until("the helper is gone", || helpers(&world).is_empty())?;
    until("the operation has settled", || {
        world
            .json(&["ps", "--json"])
            .is_ok_and(|view| view["open_ops"].as_array().is_some_and(Vec::is_empty))
    })?;
    assert_eq!(
        world.sh("ada", "ls -A; tr -d b <f | wc -c")?.out(),
        "f\nstop\n0\n"
    );

    // So does a daemon that is killed in the middle.
    let mut broken = world.api()?;
    broken.begin("PUT", &file("f"), &[], SIZE, &[b'c'; 5000])?;
    until("the write has begun", || !helpers(&world).is_empty())?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    world.must(&["ps"])?;
    until("the helper is gone", || helpers(&world).is_empty())?;
    assert_eq!(
        world.sh("ada", "ls -A; tr -d b <f | wc -c")?.out(),
        "f\nstop\n0\n"
    );
    world.end_clean()
}

#[test]
fn names_of_any_bytes_are_read_written_and_listed() -> Res<()> {
    let world = world("names")?;
    let mut api = world.api()?;
    for (path, content) in [
        ("%FF%0Ax", "odd"),
        ("a%20b%2Bc", "plain"),
        ("new%0Aline", "two"),
    ] {
        api.send("PUT", &file(path), content.as_bytes())?.json()?;
    }
    world.sh("ada", "mkdir -p sub/deep; echo x > sub/deep/f; ln -s /nowhere sub/l; printf '\\033[31m' > \"$(printf 'e\\033')\"")?;
    let inside = world.sh("ada", "ls -1 --quoting-style=c *")?;
    assert!(inside.out().contains("\"\\377\\nx\""), "{}", inside.out());
    let odd = OsStr::from_bytes(b"\xff\nx");
    let mut command = world.command([OsStr::new("cat"), OsStr::new("ada"), odd]);
    command.stdin(Stdio::null());
    assert_eq!(run::run(command)?.ok()?.out(), "odd");
    let list = world.must(&["ls", "ada", ".", "-R", "--json"])?.out();
    let list: Vec<Value> = list
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let names: Vec<&str> = list
        .iter()
        .filter_map(|file| file["name"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "a b+c",
            "e\u{1b}",
            "new\nline",
            "sub",
            "\\xff\nx",
            "sub/deep",
            "sub/l",
            "sub/deep/f"
        ]
    );
    let odd = &list[4];
    assert_eq!(odd["path_base64"], "L3dvcmtzcGFjZS//Cng=", "{odd}");
    assert_eq!(list[6]["target"], "/nowhere");
    let text = world.must(&["ls", "ada", "."])?.out();
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(
        text.contains("new\\nline") && !text.contains('\u{1b}'),
        "{text:?}"
    );
    world.end_clean()
}

#[test]
fn whoever_swaps_paths_inside_reaches_nothing_of_the_host() -> Res<()> {
    let world = world("swap")?;
    let outside = world.root().join("outside");
    std::fs::create_dir(&outside)?;
    let canary = outside.join("canary");
    std::fs::write(&canary, "SECRET of the host")?;
    let before = std::fs::metadata(&canary)?;
    // `d` is now a directory with a file, now a link to the host's directory, and its file now a link to the canary.
    let script = format!(
        "mkdir -p real; echo inside > real/canary; ln -sfn {out} away; ln -sfn real d
         echo ready
         while [ ! -e stop ]; do
             ln -sfn {out} n; mv -T n d; ln -sfn real n; mv -T n d
             ln -sf {can} real/n; mv -f real/n real/canary; echo inside > real/m; mv -f real/m real/canary
             ln -sf /proc/1/root{can} real/n; mv -f real/n real/canary; echo inside > real/m; mv -f real/m real/canary
         done",
        out = outside.display(),
        can = canary.display()
    );
    let attacker = world.start(&["exec", "ada", "--", "sh", "-c", &script])?;
    assert!(attacker.wait_out(6, SOON), "{}", attacker.words());
    let mut api = world.api()?;
    let mut answers = BTreeSet::new();
    let mut leaks = |answer: &api::Answer| {
        answers.insert(answer.status);
        answer.body.windows(6).any(|window| window == b"SECRET")
    };
    for round in 0..60 {
        assert!(!leaks(&api.send("GET", &file("d/canary"), &[])?), "read");
        assert!(
            !leaks(&api.send("GET", &format!("{FILES}/tree?path=."), &[])?),
            "packed"
        );
        if round % 6 == 0 {
            assert!(!leaks(&api.send(
                "PUT",
                &file("d/canary"),
                b"overwritten"
            )?));
            assert!(!leaks(&api.send("DELETE", &file("d/canary"), &[])?));
            let rename = format!("{FILES}/rename?path=d/canary&to=away/canary&replace");
            assert!(!leaks(&api.send("POST", &rename, &[])?));
        }
    }
    assert!(answers.contains(&200), "{answers:?}");
    let back = world.root().join("back");
    // It may fail, as what it copies moves; it must not leave its place.
    let _copied = world.run(&["cp", "ada:/workspace", back.to_str().unwrap_or_default()])?;
    world.sh("ada", "touch stop")?.ok()?;
    attacker.finish()?.ok()?;
    assert_eq!(std::fs::read_to_string(&canary)?, "SECRET of the host");
    let after = std::fs::metadata(&canary)?;
    assert_eq!(
        (after.ino(), after.mtime_nsec()),
        (before.ino(), before.mtime_nsec())
    );
    assert_eq!(std::fs::read_dir(&outside)?.count(), 1);
    world.end_clean()
}

#[test]
fn a_watch_tells_what_happens_and_ends_with_its_client() -> Res<()> {
    let world = world("watch")?;
    world.sh(
        "ada",
        "mkdir -p src/deep; echo 1 > src/kept; echo 1 > alone",
    )?;
    let before = seq(&world)?;
    let mut tree = world.start(&["watch", "ada", "src", "-r", "--json"])?;
    let one = world.start(&["watch", "ada", "alone"])?;
    let begun = |client: &run::Client| {
        let text = String::from_utf8_lossy(&client.so_far()).into_owned() + &client.words();
        text.contains("watching")
    };
    until("both watch", || begun(&tree) && begun(&one))?;
    assert_eq!(seq(&world)?, before, "a watch was journaled");
    world.sh(
        "ada",
        "cd src; echo 2 >> kept; echo 1 > deep/new; mkdir -p made/below; echo 1 > made/below/f; mv kept moved; rm deep/new
         mv made gone; echo 2 >> gone/below/f; chmod 600 moved; mv moved ../left; echo 3 > ../alone",
    )?
    .ok()?;
    let events = || -> BTreeSet<String> {
        let text = String::from_utf8_lossy(&tree.so_far()).into_owned();
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let short = |value: &Value| value.as_str().unwrap_or("").replace("/workspace/src", "");
        let word = |event: &Value| match event.get("from") {
            Some(from) => format!(
                "{} {} {}",
                short(&event["event"]),
                short(from),
                short(&event["path"])
            ),
            None => format!("{} {}", short(&event["event"]), short(&event["path"])),
        };
        events.map(|event| word(&event)).collect()
    };
    let wanted = [
        "modify /kept",
        "create /deep/new",
        "delete /deep/new",
        "create /made",
        "rename /kept /moved",
        "rename /made /gone",
        "attributes /moved",
        "delete /moved",
    ];
    let all = until("every change is told", || {
        let seen = events();
        wanted.iter().all(|event| seen.contains(*event))
            && seen.iter().any(|event| event.ends_with("/below/f"))
    });
    assert!(all.is_ok(), "{:#?}", events());
    until("the one file's change is told", || {
        String::from_utf8_lossy(&one.so_far()).contains("modify /workspace/alone")
    })?;

    // A helper that somebody inside has stopped is ended all the same.
    assert_eq!(helpers(&world).len(), 2);
    world.sh("ada", "kill -STOP $(pgrep -f '__box f[i]les')")?;
    tree.kill();
    drop(one);
    until("no helper is left", || helpers(&world).is_empty())?;
    drop(tree);
    let gone = world.start(&["watch", "ada", "src"])?;
    until("it watches", || begun(&gone))?;
    world.sh("ada", "rm -r src")?.ok()?;
    assert!(
        gone.finish()?
            .ok()?
            .out()
            .ends_with("gone /workspace/src\n")
    );
    world.end_clean()
}

#[test]
fn a_large_read_is_passed_on_and_not_kept() -> Res<()> {
    const SIZE: u64 = 200 << 20;
    let world = world("large")?;
    world.sh("ada", &format!("truncate -s {SIZE} big"))?.ok()?;
    let spool = world.state_dir("ada")?.join("spool");
    let size = |dir: &Path| -> u64 {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|e| Some(e.metadata().ok()?.len())).sum()
    };
    let daemon = world.daemon().ok_or_else(|| trouble("no daemon"))?;
    let (spooled, place) = (size(&spool), seq(&world)?);
    let mut api = world.api()?;
    api.send("HEAD", &file("big"), &[])?;
    let memory = process::anonymous_memory(daemon);
    let mut most = 0;
    let mut looks = 0;
    let read = api.drain(&file("big"), || {
        looks += 1;
        if looks % 64 == 0 {
            most = most.max(process::anonymous_memory(daemon));
        }
    })?;
    assert_eq!(read, SIZE);
    let grown = most.saturating_sub(memory);
    assert!(grown < 16 << 20, "the daemon grew by {grown} bytes");
    assert_eq!((size(&spool), seq(&world)?), (spooled, place));
    // One that does not read on holds up nobody, and is let go.
    let mut slow = world.api()?;
    slow.begin("GET", &file("big"), &[], 0, &[])?;
    assert_eq!(
        world.must(&["cat", "ada", "big", "--range", "0-2"])?.stdout,
        [0, 0, 0]
    );
    drop(slow);
    until("the helper is gone", || helpers(&world).is_empty())?;
    world.end_clean()
}

#[test]
fn a_copy_passes_pipes_by_and_a_killed_one_leaves_no_helper() -> Res<()> {
    let world = world("special")?;
    let source = world.root().join("source");
    std::fs::create_dir(&source)?;
    std::fs::write(source.join("f"), "content")?;
    let pipe = source.join("pipe");
    make_pipe(&pipe)?;
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket"))?;
    let done = world.must(&[
        "cp",
        source.to_str().unwrap_or_default(),
        "ada:/workspace/in",
    ])?;
    assert!(done.err().contains("2 pipes"), "{}", done.err());
    assert_eq!(world.sh("ada", "ls in; mkfifo in/pipe")?.out(), "f\n");
    let before = seq(&world)?;
    let back = world.root().join("back");
    let done = world.must(&["cp", "ada:/workspace/in", back.to_str().unwrap_or_default()])?;
    assert!(done.err().contains("1 pipes"), "{}", done.err());
    assert_eq!(std::fs::read_dir(&back)?.count(), 1);
    assert_eq!(seq(&world)?, before, "a copy to the host was journaled");
    // A pipe in the way on the host is not waited for.
    std::fs::remove_file(back.join("f"))?;
    make_pipe(&back.join("f"))?;
    let done = world.run(&["cp", "ada:/workspace/in", back.to_str().unwrap_or_default()])?;
    assert_eq!(done.code, Some(125), "{}", done.err());
    assert!(
        std::fs::symlink_metadata(back.join("f"))?
            .file_type()
            .is_fifo()
    );
    // What may not be read is named, and nothing is called whole.
    let done = world.run(&["cp", "ada:/proc/1/mem", back.to_str().unwrap_or_default()])?;
    assert_eq!(
        (done.code, done.err().lines().count()),
        (Some(125), 1),
        "{}",
        done.err()
    );
    assert!(done.err().contains("/proc/1/mem"), "{}", done.err());

    // So does any other program that reads the archive.
    let mut api = world.api()?;
    world.sh("ada", "mkdir -p bad; echo first > bad/f; ln -s /proc/1/mem bad/link; cp -r bad whole; mkdir whole/sub")?.ok()?;
    for (path, whole) in [("whole", true), ("/proc/1/mem", false)] {
        let archive = api.send("GET", &format!("{FILES}/tree?path={path}"), &[])?;
        assert_eq!(archive.status, 200);
        let file = world.root().join("archive.tar");
        std::fs::write(&file, archive.body)?;
        let mut tar = std::process::Command::new("tar");
        tar.arg("-tf").arg(&file);
        assert_eq!(run::run(tar)?.code == Some(0), whole, "{path}");
    }

    let endless = std::fs::File::create(source.join("endless"))?;
    endless.set_len(64 << 30)?;
    let text = source.join("endless");
    let mut copy = world.start(&[
        "cp",
        text.to_str().unwrap_or_default(),
        "ada:/workspace/endless",
    ])?;
    until("the copy has begun", || {
        world
            .sh("ada", "test -s .endless.durable-*")
            .is_ok_and(|done| done.code == Some(0))
    })?;
    copy.kill();
    until("the helper is gone", || helpers(&world).is_empty())?;
    world.end_clean()
}

fn make_pipe(path: &Path) -> Res<()> {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    Ok(rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0)?)
}

#[test]
fn helpers_are_bounded_and_what_is_over_is_told_to_come_again() -> Res<()> {
    const MOST: usize = 64;
    let world = world("bounded")?;
    world.sh("ada", "echo x > f")?.ok()?;
    let mut held = Vec::new();
    for _ in 0..MOST {
        let mut api = world.api()?;
        // Nothing of it is read: the helper stays.
        api.begin("GET", &format!("{FILES}/watch?path=."), &[], 0, &[])?;
        held.push(api);
    }
    until("all of them serve", || helpers(&world).len() == MOST)?;
    let mut api = world.api()?;
    let over = api.send("GET", &file("f"), &[])?;
    assert_eq!(over.status, 503, "{}", String::from_utf8_lossy(&over.body));
    // Operations, and changes with them, go on.
    assert_eq!(world.sh("ada", "cat f")?.out(), "x\n");
    api.send("PUT", &file("f"), b"y")?.json()?;
    drop(held);
    until("all of them are gone", || helpers(&world).is_empty())?;
    assert_eq!(api.send("GET", &file("f"), &[])?.body, b"y");
    world.end_clean()
}
