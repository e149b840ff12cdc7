//! Requests that are signed anew, sent to a server that verifies signatures: moto (Apache-2.0), where it is on the PATH.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use http::Request;
use http::header::HOST;
use http::request::Parts;
use secret::sigv4::{Error, Keys, Payload, Scope, resign, sign};

use crate::world::value;

/// A running server. Dropped, it is killed.
struct Server {
    child: Child,
    at: String,
}

impl Server {
    /// Starts it; none if it is not installed.
    fn start() -> Option<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec moto_server -H 127.0.0.1 -p 0 2>&1"])
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Command::new("moto_server").arg("--help").output().ok()?;
        let mut child = command.spawn().ok()?;
        let said = BufReader::new(child.stdout.take()?);
        let mut lines = said.lines().map_while(Result::ok);
        let at = lines.find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()));
        // It goes on writing, and must find somebody who reads.
        std::thread::spawn(move || lines.count());
        let at = at?;
        Some(Self { child, at })
    }

    /// Sends a request and returns the status and the body.
    fn send(&self, parts: &Parts, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.at).expect("it listens");
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut head = format!("{} {path} HTTP/1.1\r\n", parts.method).into_bytes();
        for (name, value) in &parts.headers {
            head.extend_from_slice(
                &[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat(),
            );
        }
        let end = format!(
            "content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream
            .write_all(&[&head, end.as_bytes(), body].concat())
            .expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").expect("it has a body");
        (status.expect("it has a status"), body.to_owned())
    }

    fn request(&self, method: &str, uri: &str) -> Parts {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, &self.at);
        request.body(()).expect("it is a request").into_parts().0
    }

    /// Asks for something that needs no key.
    fn plainly(&self, service: &str, method: &str, uri: &str, body: &str) -> String {
        let mut parts = self.request(method, uri);
        let (key, scope) = (value("x"), scope(service));
        let keys = Keys {
            id: "x",
            key: &key,
            session: None,
        };
        parts.headers.insert(
            "content-type",
            "application/x-www-form-urlencoded"
                .parse()
                .expect("it is one"),
        );
        sign(
            &mut parts,
            &keys,
            &scope,
            SystemTime::now(),
            Payload::Bytes(body.as_bytes()),
        )
        .expect("it is signed");
        let (status, said) = self.send(&parts, body.as_bytes());
        assert_eq!(status, 200, "{method} {uri} {body}: {said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn scope(service: &str) -> Scope<'_> {
    Scope {
        region: "us-east-1",
        service,
    }
}

fn between<'a>(text: &'a str, tag: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("<{tag}>")).expect("it is there");
    rest.split('<').next().unwrap_or_default()
}

#[test]
fn a_server_that_verifies_signatures_takes_what_is_signed_anew() {
    let Some(server) = Server::start() else {
        eprintln!("skipped: `moto_server` is not on the PATH (from PyPI: moto[s3,server])");
        return;
    };
    let iam =
        |body: &str| server.plainly("iam", "POST", "/", &format!("{body}&Version=2010-05-08"));
    iam("Action=CreateUser&UserName=ada");
    let made = iam("Action=CreateAccessKey&UserName=ada");
    let all =
        r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}"#;
    let all: String = all.bytes().map(|b| format!("%{b:02X}")).collect();
    iam(&format!(
        "Action=PutUserPolicy&UserName=ada&PolicyName=all&PolicyDocument={all}"
    ));
    server.plainly("s3", "PUT", "/bucket", "");
    // From here on every request needs a key.
    let (status, said) = server.send(&server.request("POST", "/moto-api/reset-auth"), b"0");
    assert_eq!(status, 200, "{said}");

    let (id, key) = (
        between(&made, "AccessKeyId"),
        value(between(&made, "SecretAccessKey")),
    );
    let (fake_id, fake) = ("AKIAFAKEFAKEFAKEFAKE", value("fake"));
    let body: &[u8] = b"what is kept";
    for (service, method, uri, body, wanted) in [
        ("s3", "PUT", "/bucket/plain", body, 200),
        ("s3", "GET", "/bucket/plain", b"", 200),
        ("s3", "PUT", "/bucket/a%20b/c~d-e_f.txt", body, 200),
        ("s3", "GET", "/bucket?prefix=a%20b&list-type=2", b"", 200),
        ("s3", "GET", "/bucket?versioning", b"", 200),
        ("s3", "GET", "/bucket/none", b"", 404),
        (
            "sts",
            "POST",
            "/",
            b"Action=GetCallerIdentity&Version=2011-06-15",
            200,
        ),
    ] {
        let mut parts = server.request(method, uri);
        if service == "sts" {
            parts.headers.insert(
                "content-type",
                "application/x-www-form-urlencoded"
                    .parse()
                    .expect("it is one"),
            );
        }
        // As a client inside makes it, with what it has.
        let client = Keys {
            id: fake_id,
            key: &fake,
            session: None,
        };
        sign(
            &mut parts,
            &client,
            &scope(service),
            SystemTime::now(),
            Payload::Bytes(body),
        )
        .expect("it is signed");
        let (status, said) = server.send(&parts, body);
        assert_eq!(status, 403, "{method} {uri}: {said}");
        let keys = Keys {
            id,
            key: &key,
            session: None,
        };
        let payload = match service {
            "s3" => Payload::AsTold,
            _ => Payload::Bytes(body),
        };
        resign(
            &mut parts,
            fake_id,
            &keys,
            &scope(service),
            SystemTime::now(),
            payload,
        )
        .expect("it is signed");
        let (status, said) = server.send(&parts, body);
        assert_eq!(status, wanted, "{method} {uri}: {said}");
        // What is changed after it was signed is not taken.
        let wrong = value("wrong");
        let mut again = parts.clone();
        let keys = Keys {
            id,
            key: &wrong,
            session: None,
        };
        resign(
            &mut again,
            id,
            &keys,
            &scope(service),
            SystemTime::now(),
            payload,
        )
        .expect("it is signed");
        let (status, said) = server.send(&again, body);
        assert_eq!(status, 403, "{method} {uri}: {said}");
        let other = resign(
            &mut again,
            fake_id,
            &keys,
            &scope(service),
            SystemTime::now(),
            payload,
        );
        assert_eq!(other, Err(Error::OtherKey));
    }
}
