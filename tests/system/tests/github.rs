//! A GitHub App whose key stays outside: what a sandbox sends carries a token for one repository, and never sees it.

use std::process::Command;

use serde_json::Value;
use system_tests::origin::Origin;
use system_tests::{Res, World, trouble};

use crate::egress::{curl, daemon, lines, put_policy, rule, said};

const TOKEN: &str = "ghs_16C7e42F292c6912E7710c838347Ae178B4a";
const MINT: &str = "/api/v3/app/installations/34/access_tokens";

#[test]
fn a_token_of_an_app_is_minted_for_one_repository_and_stays_outside() -> Res<()> {
    if !crate::is_root("a_token_of_an_app_is_minted_for_one_repository_and_stays_outside") {
        return Ok(());
    }
    let world = World::new("github")?;
    let forge = Origin::https(&["allowed.test"])?;
    let minted = serde_json::json!({
        "token": TOKEN,
        "expires_at": "2199-01-01T00:00:00Z",
        "permissions": {"contents": "read", "metadata": "read"},
        "repository_selection": "selected",
    });
    forge.says(MINT, "201 Created", &minted.to_string());
    let key = world.root().join("app.pem");
    let made = Command::new("openssl")
        .args(["genrsa", "-traditional", "-out"])
        .arg(&key)
        .arg("2048")
        .output()?;
    if !made.status.success() {
        return Err(trouble(String::from_utf8_lossy(&made.stderr)));
    }
    let daemon = daemon(&world)?;
    world.create("a", &[])?;
    let secret = format!(
        "[[secret]]\nname = \"app\"\nfrom = \"file:{}\"\n",
        key.display()
    );
    let app = format!(
        "inject = [{{ secret = \"app\", github_app = {{ app = 12, installation = 34, repository = \"app\", \
         permissions = {{ contents = \"read\" }}, api = \"https://allowed.test:{}/api/v3\" }} }}]",
        forge.port
    );
    let policy = rule("forge", "allow", "allowed.test", &forge, &app) + &secret;
    put_policy(&world, &policy)?;

    let at = format!("https://allowed.test:{}", forge.port);
    let pulls = format!("{at}/api/v3/repos/acme/app/pulls");
    for op in ["one", "two"] {
        let done = curl(&world, op, &[&pulls])?;
        assert_eq!(done.code, Some(0), "{}", said(&done));
        assert!(done.out().contains("ok /api/v3"), "{}", said(&done));
    }
    let seen = forge.seen();
    let asked: Vec<&str> = seen.iter().map(|seen| seen.line.as_str()).collect();
    let get = "GET /api/v3/repos/acme/app/pulls HTTP/1.1";
    assert_eq!(asked, [&format!("POST {MINT} HTTP/1.1"), get, get]);
    let body: Value = serde_json::from_slice(&seen[0].body)?;
    assert_eq!(body["repositories"], serde_json::json!(["app"]));
    assert_eq!(body["permissions"]["contents"], "read");
    let who = seen[0].header("authorization").unwrap_or_default();
    assert_eq!(who.split('.').count(), 3, "a signed statement: {who}");
    for sent in &seen[1..] {
        let bearer = format!("Bearer {TOKEN}");
        assert_eq!(sent.header("authorization"), Some(bearer.as_str()));
    }

    // Who asks for more than the one repository gets no token: there is none for that.
    let other = curl(&world, "other", &["-D", "-", &format!("{at}/api/v3/user")])?;
    assert!(
        other.out().contains("names no repository"),
        "{}",
        said(&other)
    );
    // What the server says back does not have the token.
    let reflected = curl(
        &world,
        "reflected",
        &[&format!("{at}/api/v3/repos/acme/app/reflect")],
    )?;
    assert!(
        reflected.out().contains("authorization: Bearer ") && !reflected.out().contains(TOKEN),
        "{}",
        said(&reflected)
    );
    // A policy that was set anew asks anew.
    put_policy(&world, &policy)?;
    curl(&world, "three", &[&pulls])?;
    let mints = forge.seen();
    let mints = mints.iter().filter(|seen| seen.line.contains(MINT));
    assert_eq!(mints.count(), 2);

    // Neither is anywhere that the sandbox or a reader of the journal looks.
    let told = lines(&world, &["log", "a", "--json"])?;
    let told = serde_json::to_string(&told)?;
    assert!(told.contains("effect_begun"), "{told}");
    for hidden in [TOKEN, "PRIVATE KEY"] {
        assert!(!told.contains(hidden), "{hidden} is in the journal");
    }
    world.end_clean()?;
    drop(daemon);
    Ok(())
}
