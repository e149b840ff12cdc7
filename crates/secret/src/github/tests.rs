//! GitHub's side is played by the test, with what its reference says: it verifies the signature with the public key.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

use super::*;

const PUBLIC: &[u8] = include_bytes!("../../tests/keys/app.public.der");
const PKCS1: &str = include_str!("../../tests/keys/app.pkcs1.pem");
const PKCS8: &str = include_str!("../../tests/keys/app.pkcs8.pem");
const ENCRYPTED: &str = include_str!("../../tests/keys/app.encrypted.pem");
const ELLIPTIC: &str = include_str!("../../tests/keys/ec.pkcs8.pem");
/// 2026-11-30T21:25:00Z.
const NOW: u64 = 1_796_073_900;

fn at(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(secs)
}

/// What is answered to the request for a token, and what was asked.
struct GitHub {
    status: u16,
    answer: Json,
    asked: Mutex<Vec<(String, String)>>,
    minted: AtomicUsize,
}

impl GitHub {
    fn new(status: u16, answer: Json) -> Self {
        Self {
            status,
            answer,
            asked: Mutex::default(),
            minted: AtomicUsize::new(0),
        }
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().expect("nobody panicked").clone()
    }

    /// Checks who signed, and for how long.
    fn verify(&self, bearer: &HeaderValue) -> Json {
        assert!(bearer.is_sensitive());
        let text = bearer.to_str().expect("it is text");
        let token = text.strip_prefix("Bearer ").expect("it is a bearer token");
        let (signed, signature) = token.rsplit_once('.').expect("it has a signature");
        let decode = |part| BASE64_URL_SAFE_NO_PAD.decode(part).expect("it is base64");
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, PUBLIC)
            .verify(signed.as_bytes(), &decode(signature))
            .expect("the app signed it");
        let (head, claims) = signed.split_once('.').expect("it has two parts");
        let head: Json = serde_json::from_slice(&decode(head)).expect("it is JSON");
        assert_eq!(head, json!({"alg": "RS256", "typ": "JWT"}));
        serde_json::from_slice(&decode(claims)).expect("it is JSON")
    }
}

impl Http for GitHub {
    fn send(
        &self,
        request: Request<Vec<u8>>,
    ) -> BoxFuture<'_, std::result::Result<Response<Vec<u8>>, String>> {
        let claims = self.verify(&request.headers()[AUTHORIZATION]);
        let (from, to) = (claims["iat"].as_u64(), claims["exp"].as_u64());
        let (from, to) = (from.expect("it is a number"), to.expect("it is a number"));
        assert!(to - from <= 600, "GitHub takes ten minutes at most");
        assert_eq!(claims["iss"], "Iv23app");
        assert_eq!(request.headers()[ACCEPT], "application/vnd.github+json");
        assert!(request.headers().contains_key(USER_AGENT));
        let asked = format!("{} {}", request.method(), request.uri());
        let body = String::from_utf8(request.into_body()).expect("it is text");
        let finding = asked.ends_with("/installation");
        self.asked
            .lock()
            .expect("nobody panicked")
            .push((asked, body));
        let (status, answer) = if finding {
            (200, json!({"id": 77}))
        } else {
            let mut answer = self.answer.clone();
            let nth = self.minted.fetch_add(1, Ordering::Relaxed);
            if answer["token"].is_string() {
                answer["token"] = json!(format!("ghs_minted{nth}"));
            }
            (self.status, answer)
        };
        Box::pin(async move {
            tokio::task::yield_now().await;
            let response = Response::builder().status(status);
            let response = response.body(answer.to_string().into_bytes());
            response.map_err(|why| why.to_string())
        })
    }
}

fn app(pem: &str) -> App {
    App {
        id: "Iv23app".into(),
        installation: Some(42),
        key: Arc::new(Value::new(pem)),
        api: API.into(),
    }
}

fn wanted() -> Wanted {
    Wanted {
        repository: "acme/app".into(),
        permissions: [("contents".to_owned(), "write".to_owned())].into(),
    }
}

fn granted() -> Json {
    json!({
        "token": "ghs_minted",
        "expires_at": "2026-11-30T22:25:00Z",
        "permissions": {"contents": "write", "metadata": "read"},
        "repository_selection": "selected",
        "repositories": [{"id": 1, "full_name": "Acme/App"}],
    })
}

#[tokio::test]
async fn a_token_is_for_one_repository_and_what_was_asked() {
    for pem in [PKCS1, PKCS8] {
        let github = GitHub::new(201, granted());
        let token = installation_token(&github, &app(pem), &wanted(), at(NOW)).await;
        let token = token.expect("it is minted");
        assert_eq!(token.value.expose(), b"ghs_minted0");
        assert_eq!(token.until, at(NOW + 3600));
        let body = r#"{"repositories":["app"],"permissions":{"contents":"write"}}"#;
        let asked = "POST https://api.github.com/app/installations/42/access_tokens";
        assert_eq!(github.asked(), [(asked.to_owned(), body.to_owned())]);
        assert!(!format!("{token:?}").contains("ghs_"));
    }
}

#[tokio::test]
async fn the_installation_is_found_and_the_api_can_be_elsewhere() {
    let github = GitHub::new(201, granted());
    let mut app = app(PKCS8);
    app.installation = None;
    app.api = "https://git.acme.test/api/v3".into();
    let token = installation_token(&github, &app, &wanted(), at(NOW)).await;
    assert!(token.is_ok(), "{token:?}");
    let asked: Vec<String> = github.asked().into_iter().map(|(asked, _)| asked).collect();
    let all = [
        "GET https://git.acme.test/api/v3/repos/acme/app/installation",
        "POST https://git.acme.test/api/v3/app/installations/77/access_tokens",
    ];
    assert_eq!(asked, all);
    for api in ["http://git.acme.test", "git.acme.test", "ftp://x", ""] {
        app.api = api.into();
        let why = installation_token(&github, &app, &wanted(), at(NOW)).await;
        assert_eq!(why.expect_err(api).why, Why::Address);
    }
}

#[tokio::test]
async fn a_token_is_minted_once_until_four_fifths_of_its_life_are_over() {
    let github = Arc::new(GitHub::new(201, granted()));
    let tokens = Tokens::new(github.clone(), app(PKCS8));
    let (wanted, later) = (wanted(), |secs| at(NOW + secs));
    let both = tokio::join!(tokens.get(&wanted, at(NOW)), tokens.get(&wanted, at(NOW)));
    let (one, two) = (both.0.expect("it is minted"), both.1.expect("it is minted"));
    assert!(one.value.is(two.value.expose()));
    for (secs, minted) in [(2879, 1), (2880, 2)] {
        tokens
            .get(&wanted, later(secs))
            .await
            .expect("it is minted");
        assert_eq!(
            github.minted.load(Ordering::Relaxed),
            minted,
            "after {secs} s"
        );
    }
    tokens.refused(&wanted);
    tokens.get(&wanted, later(10)).await.expect("it is minted");
    assert_eq!(github.minted.load(Ordering::Relaxed), 3);
    assert!(!format!("{tokens:?}").contains("PRIVATE"));
}

#[tokio::test]
async fn a_token_for_more_than_was_asked_is_not_used() {
    for (at_key, more) in [
        ("repository_selection", json!("all")),
        (
            "repositories",
            json!([{"full_name": "acme/app"}, {"full_name": "acme/other"}]),
        ),
        (
            "permissions",
            json!({"contents": "write", "issues": "read"}),
        ),
        ("permissions", json!({"contents": "admin"})),
        ("permissions", json!({"metadata": "write"})),
    ] {
        let mut answer = granted();
        answer[at_key] = more;
        let github = GitHub::new(201, answer);
        let why = installation_token(&github, &app(PKCS8), &wanted(), at(NOW)).await;
        assert!(matches!(why.expect_err(at_key).why, Why::Wider(_)));
    }
    let github = GitHub::new(201, granted());
    let mut less = wanted();
    less.permissions = [("contents".to_owned(), "read".to_owned())].into();
    let why = installation_token(&github, &app(PKCS8), &less, at(NOW)).await;
    assert!(matches!(why.expect_err("it is more").why, Why::Wider(_)));
}

#[tokio::test]
async fn every_failure_says_what_to_do_and_nothing_of_the_key() {
    let line = PKCS8.lines().nth(3).expect("it is long");
    let mut said = Vec::new();
    for (status, advice) in [
        (401, "private key"),
        (403, "suspended"),
        (404, "installed"),
        (422, "permissions"),
        (500, "later"),
        (302, "settings"),
    ] {
        let github = GitHub::new(status, json!({"message": line}));
        let why = installation_token(&github, &app(PKCS8), &wanted(), at(NOW)).await;
        let why = why.expect_err("it is refused");
        assert!(why.to_string().contains(advice), "{why}");
        said.push(format!("{why} {why:?}"));
    }
    let garbled = PKCS8.replace(&line[..20], "????????????????????");
    let cut = &PKCS8[..400];
    for pem in [ENCRYPTED, ELLIPTIC, &garbled, cut, "hunter2hunter2", ""] {
        let github = GitHub::new(201, granted());
        let why = installation_token(&github, &app(pem), &wanted(), at(NOW)).await;
        let why = why.expect_err("it is no key");
        assert!(matches!(why.why, Why::Key(_)), "{why}");
        assert!(github.asked().is_empty());
        said.push(format!("{why} {why:?}"));
    }
    for answer in [json!({}), json!({"token": "", "expires_at": 1}), json!([])] {
        let github = GitHub::new(201, answer);
        let why = installation_token(&github, &app(PKCS8), &wanted(), at(NOW)).await;
        assert!(matches!(why.expect_err("it is none").why, Why::Answer(_)));
    }
    for repository in [
        "acme",
        "acme/",
        "acme/app/x",
        "../app",
        "acme/a?b",
        "acme/..",
    ] {
        let github = GitHub::new(201, granted());
        let mut wanted = wanted();
        wanted.repository = repository.into();
        let why = installation_token(&github, &app(PKCS8), &wanted, at(NOW)).await;
        assert_eq!(why.expect_err(repository).why, Why::Repository);
    }
    let github = GitHub::new(201, granted());
    let mut everything = wanted();
    everything.permissions.clear();
    let why = installation_token(&github, &app(PKCS8), &everything, at(NOW)).await;
    assert_eq!(why.expect_err("it is too much").why, Why::NoPermissions);
    let said = said.join("\n");
    let lines = [PKCS8, ENCRYPTED, ELLIPTIC].map(|pem| pem.lines().nth(3).unwrap_or("?"));
    for secret in lines.into_iter().chain(["hunter2", "ghs_"]) {
        assert!(!said.contains(secret), "{said}");
    }
}
