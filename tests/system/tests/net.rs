//! The API over TCP, and its document.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::api::Api;
use system_tests::{Client, Res, World, trouble};

fn connect(address: &str, token: Option<&str>) -> Res<Api> {
    let begun = Instant::now();
    loop {
        match Api::tcp(address, token) {
            Ok(api) => return Ok(api),
            Err(error) if begun.elapsed() > Duration::from_secs(20) => return Err(error),
            // It has not begun to listen; a port tells nobody when it does.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[test]
fn tcp_needs_the_token_and_serves_the_same_api_with_its_document() -> Res<()> {
    let world = World::new("tcp")?;
    // Free a moment ago: the daemon takes no port 0.
    let address = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .to_string();
    let pid_file = world.root().join("pid");
    let mut command = world.command(["serve", "--listen", &address, "--pid-file"]);
    command.arg(&pid_file).stdin(std::process::Stdio::null());
    let daemon = Client::start(command)?;
    for token in [None, Some("wrong"), Some("")] {
        let answer = connect(&address, token)?.send("GET", "/v1/health", b"")?;
        assert_eq!(answer.status, 401, "with token {token:?}");
        let error: Value = serde_json::from_slice(&answer.body)?;
        assert_eq!(error["code"], "denied");
    }
    let path = world.data().join("token");
    let token = std::fs::read_to_string(&path)?;
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        std::fs::metadata(&path)?.permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        std::fs::metadata(world.data())?.permissions().mode() & 0o777,
        0o700
    );
    let mut api = connect(&address, Some(token.trim()))?;
    let health = api.get("/v1/health")?;
    assert_eq!(health["pid"], daemon.pid());
    assert_eq!(
        std::fs::read_to_string(&pid_file)?.trim(),
        daemon.pid().to_string()
    );
    api.call(
        "POST",
        "/v1/sandboxes",
        &serde_json::json!({ "name": "net" }),
    )?;
    assert_eq!(world.must(&["ps", "--json"])?.json()?["name"], "net");

    let served = api.get("/v1/openapi.json")?;
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let committed: Value = serde_json::from_slice(&std::fs::read(committed)?)?;
    assert!(
        served == committed,
        "docs/openapi.json is not what is served: `make openapi`"
    );
    let paths = served["paths"]
        .as_object()
        .ok_or_else(|| trouble("no paths"))?;
    assert!(paths.contains_key("/v1/sandboxes/{name}/ops/{op}"));
    drop(api);
    world.end_clean()?;
    drop(daemon);
    Ok(())
}

#[test]
fn a_request_that_makes_no_sense_is_refused_in_words() -> Res<()> {
    let world = World::new("request")?;
    world.create("a", &[])?;
    let mut api = world.api()?;
    for (method, path, body, status) in [
        ("PUT", "/v1/sandboxes/a/ops/x", "{", 400),
        ("PUT", "/v1/sandboxes/a/ops/x", "{}", 400),
        ("PUT", "/v1/sandboxes/a/ops/x", r#"{"argv":[]}"#, 400),
        (
            "PUT",
            "/v1/sandboxes/a/ops/a%20b",
            r#"{"argv":["true"]}"#,
            400,
        ),
        (
            "PUT",
            "/v1/sandboxes/ghost/ops/x",
            r#"{"argv":["true"]}"#,
            404,
        ),
        ("POST", "/v1/sandboxes", r#"{"name":"Bad Name"}"#, 400),
        ("GET", "/v1/sandboxes/a/ops/none", "", 404),
        ("GET", "/v1/sandboxes/a/ops/none/output/stdin", "", 400),
    ] {
        let answer = api.send(method, path, body.as_bytes())?;
        let error: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        assert_eq!(answer.status, status, "{method} {path} {body}: {error}");
        assert!(
            error["message"].is_string(),
            "{method} {path} {body}: {error}"
        );
    }
    assert_eq!(
        api.get("/v1/sandboxes/a/ops")?.as_array().map(Vec::len),
        Some(0)
    );
    drop(api);
    world.end_clean()
}
