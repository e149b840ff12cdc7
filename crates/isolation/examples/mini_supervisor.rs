//! The smallest PID 1 that a sandbox can have: runs commands that it is sent and answers with their output.
//!
//! A request is one line of JSON, `{"argv": [...], "uid": 0}`; the answer is one, `{"code", "signal", "out", "err"}`.
//! With the single argument `refuse` it enters and ends without serving. As `ls PATH` and `cat PATH` it is the one program
//! in an image that has no other.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program, not a library"
)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ls", path] => return list(path),
        ["cat", path] => {
            return print!(
                "{}",
                std::fs::read_to_string(path).unwrap_or_else(|e| e.to_string())
            );
        }
        _ => {}
    }
    let Ok(entered) = isolation::container::enter() else {
        std::process::exit(1)
    };
    if args == ["refuse"] {
        eprintln!("not today");
        return;
    }
    let mut ready = std::fs::File::from(entered.ready);
    // Nobody may be waiting any more; the sandbox is there all the same.
    let _told = ready.write_all(b"1");
    drop(ready);
    let _kept = (entered.state, entered.model, entered.shim);
    for connection in entered.control.incoming().flatten() {
        std::thread::spawn(move || serve(connection));
    }
}

fn list(path: &str) {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort();
    for name in names {
        println!("{}", name.to_string_lossy());
    }
}

fn serve(connection: UnixStream) {
    let Ok(reader) = connection.try_clone() else {
        return;
    };
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let answer = serde_json::from_str::<Value>(&line)
            .map_or_else(|e| json!({"err": e.to_string()}), |r| run(&r));
        if writeln!(&connection, "{answer}").is_err() {
            return;
        }
    }
}

fn run(request: &Value) -> Value {
    let argv: Vec<&str> = request["argv"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let Some((program, args)) = argv.split_first() else {
        return json!({"err": "no program"});
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    if let Some(uid) = request["uid"].as_u64().and_then(|u| u32::try_from(u).ok()) {
        command.uid(uid).gid(uid);
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return json!({"err": error.to_string()}),
    };
    // Where memory runs out the operation goes first. After its exec, since before it is as undumpable as we are.
    let _best_effort = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
    match child.wait_with_output() {
        Ok(done) => json!({
            "code": done.status.code(),
            "signal": done.status.signal(),
            "out": String::from_utf8_lossy(&done.stdout),
            "err": String::from_utf8_lossy(&done.stderr),
        }),
        Err(error) => json!({"err": error.to_string()}),
    }
}
