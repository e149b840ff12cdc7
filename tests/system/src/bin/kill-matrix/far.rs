//! What is at the far end where something leaves a sandbox: a server of HTTPS on loopback that keeps what came, and stands still
//! at a place that a run names. Below `/kill/` it is `git http-backend`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use system_tests::origin::certified;
use system_tests::{Res, trouble};

/// The name that it has: no names need to be known then.
pub(crate) const HOST: &str = "127.0.0.1";
/// Of a body whose length nobody said, this is the middle.
const MIDDLE: u64 = 3 << 20;
/// What it answers; long enough to have a middle.
const ANSWER: usize = 16 << 10;

/// Where it can stand still with a request that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Head,
    Body,
    Whole,
    AnswerHead,
    AnswerMiddle,
}

/// One request as far as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Came {
    /// `OP/TRY`, as the program said.
    pub(crate) agent: String,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) bytes: u64,
    pub(crate) digest: String,
    /// Whether all of it came.
    pub(crate) whole: bool,
    /// Whether all of the answer was written.
    pub(crate) answered: bool,
}

/// A request that it stands still with; dropped, it goes on.
pub(crate) struct Held {
    _go: Sender<()>,
}

#[derive(Default)]
struct Log {
    came: Mutex<Vec<Came>>,
    armed: Mutex<Option<(Place, Sender<Held>)>>,
}

/// The server.
pub(crate) struct Far {
    port: u16,
    root: String,
    git: PathBuf,
    log: Arc<Log>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Far {
    /// Starts one, with its repositories in a directory.
    pub(crate) fn new(git: &Path) -> Res<Self> {
        std::fs::create_dir_all(git)?;
        let (root, tls) = certified(&[HOST])?;
        let listener = TcpListener::bind((HOST, 0))?;
        let port = listener.local_addr()?.port();
        let log = Arc::new(Log::default());
        let (keeps, repositories) = (Arc::clone(&log), git.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, tls, git) = (Arc::clone(&keeps), tls.clone(), repositories.clone());
                // Whoever breaks off is seen by what is missing.
                std::thread::spawn(move || serve(stream, tls, &log, &git));
            }
        });
        Ok(Self {
            port,
            root,
            git: git.to_owned(),
            log,
        })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}{path}", self.port)
    }

    /// The policy that lets what the cells send out to it: after a person's word below `/held/`, and with the secret.
    pub(crate) fn policy(&self) -> String {
        let rule = |name: &str, action: &str, more: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\naction = \"{action}\"\nhosts = [\"{HOST}\"]\nports = [{}]\naddresses = [\"{HOST}\"]\n\
                 roots = '''\n{}'''\ninject = [{{ secret = \"key\", bearer = true }}]\n{more}\n\n",
                self.port, self.root
            )
        };
        [
            rule("git", "allow", "git = { push = [\"kill/*\"] }"),
            rule(
                "held",
                "ask",
                "methods = [\"POST\"]\npaths = [\"/held/**\"]\ntimeout = \"60s\"",
            ),
            rule("take", "allow", "paths = [\"/take/**\"]"),
            "[[secret]]\nname = \"key\"\nfrom = \"env:MATRIX_KEY\"\n".to_owned(),
        ]
        .concat()
    }

    /// Makes an empty repository for a sandbox.
    pub(crate) fn repository(&self, sandbox: &str) -> Res<PathBuf> {
        let path = self.git.join("kill").join(format!("{sandbox}.git"));
        let made = git(&self.git)
            .args(["init", "-q", "--bare"])
            .arg(&path)
            .status()?;
        made.success()
            .then_some(path)
            .ok_or_else(|| trouble("git init failed"))
    }

    /// What a branch of a repository is at.
    pub(crate) fn branch(&self, repository: &Path) -> Res<String> {
        let mut show = git(&self.git);
        show.arg("--git-dir").arg(repository);
        let shown = show.args(["rev-parse", "refs/heads/main"]).output()?;
        Ok(String::from_utf8_lossy(&shown.stdout).trim().to_owned())
    }

    /// Stands still with the first request from now on that changes something and comes to this place.
    pub(crate) fn arm(&self, place: Place) -> Receiver<Held> {
        let (tell, held) = channel();
        *lock(&self.log.armed) = Some((place, tell));
        held
    }

    pub(crate) fn disarm(&self) {
        *lock(&self.log.armed) = None;
    }

    /// What came for a sandbox: its name is in the path.
    pub(crate) fn came(&self, sandbox: &str) -> Vec<Came> {
        let came = lock(&self.log.came);
        let names = |path: &str| {
            path.split(['/', '?', '.'])
                .any(|segment| segment == sandbox)
        };
        came.iter()
            .filter(|one| names(&one.path))
            .cloned()
            .collect()
    }
}

fn git(home: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

fn serve(stream: TcpStream, tls: Arc<ServerConfig>, log: &Log, git: &Path) -> io::Result<()> {
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    while one(&mut stream, log, git)? {}
    Ok(())
}

/// One request that is being served.
struct Serving<'a> {
    log: &'a Log,
    number: usize,
    changes: bool,
}

impl Serving<'_> {
    fn note(&self, note: impl FnOnce(&mut Came)) {
        note(&mut lock(&self.log.came)[self.number]);
    }

    fn stand(&self, place: Place) {
        let mut armed = lock(&self.log.armed);
        if !self.changes || armed.as_ref().is_none_or(|(at, _)| *at != place) {
            return;
        }
        let Some((_, tell)) = armed.take() else {
            return;
        };
        drop(armed);
        let (go, wait) = channel();
        // Nobody waits any more: then it goes on, by the drop.
        let _told = tell.send(Held { _go: go });
        let _gone = wait.recv();
    }
}

fn one<S: Read + Write>(stream: &mut BufReader<S>, log: &Log, git: &Path) -> io::Result<bool> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(false);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut came = Came {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        ..Came::default()
    };
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let header = |name: &str| -> String {
        let found = headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    came.agent = header("user-agent");
    came.authorization = header("authorization");
    let (method, path) = (came.method.clone(), came.path.clone());
    let serving = {
        let mut all = lock(&log.came);
        all.push(came);
        Serving {
            log,
            number: all.len() - 1,
            changes: method == "POST",
        }
    };
    serving.stand(Place::Head);
    let length: Option<u64> = header("content-length").parse().ok();
    let body = if header("transfer-encoding") == "chunked" {
        chunked(stream, &serving)?
    } else {
        let mut body = Vec::new();
        let length = length.unwrap_or(0);
        pieces(stream, &serving, &mut body, length, length / 2)?;
        body
    };
    serving.note(|came| {
        came.whole = true;
        came.digest = blake3::hash(&body).to_hex().to_string();
    });
    let (head, answer) = if path.starts_with("/kill/") {
        backend(git, &method, &path, &header, &body)?
    } else {
        let answer = b"ok".repeat(ANSWER / 2);
        ("HTTP/1.1 200 OK\r\n".to_owned(), answer)
    };
    serving.stand(Place::Whole);
    let to = stream.get_mut();
    write!(to, "{head}content-length: {}\r\n\r\n", answer.len())?;
    to.flush()?;
    serving.stand(Place::AnswerHead);
    let (first, rest) = answer.split_at(answer.len() / 2);
    to.write_all(first)?;
    to.flush()?;
    serving.stand(Place::AnswerMiddle);
    to.write_all(rest)?;
    to.flush()?;
    serving.note(|came| came.answered = true);
    Ok(true)
}

/// Reads so many bytes, and stands still in the middle.
fn pieces(
    from: &mut impl Read,
    serving: &Serving<'_>,
    body: &mut Vec<u8>,
    mut left: u64,
    middle: u64,
) -> io::Result<()> {
    while left > 0 {
        let before = body.len() as u64;
        let until_middle = middle.saturating_sub(before);
        let most = if until_middle > 0 {
            until_middle.min(left)
        } else {
            left
        };
        let read = from.by_ref().take(most.min(64 << 10)).read_to_end(body)? as u64;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= read;
        let now = body.len() as u64;
        serving.note(|came| came.bytes = now);
        if before < middle && now >= middle {
            serving.stand(Place::Body);
        }
    }
    Ok(())
}

fn chunked(from: &mut impl BufRead, serving: &Serving<'_>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        from.read_line(&mut size)?;
        let size = u64::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        pieces(from, serving, &mut body, size, MIDDLE)?;
        from.read_line(&mut String::new())?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Asks `git http-backend`. Returns the head of its answer without its end, and the body.
fn backend(
    root: &Path,
    method: &str,
    path: &str,
    header: &dyn Fn(&str) -> String,
    body: &[u8],
) -> io::Result<(String, Vec<u8>)> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut child = git(root)
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "matrix")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(body)?;
    }
    let out = child.wait_with_output()?.stdout;
    let end = out.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| io::Error::other("git http-backend said nothing"))?;
    let head = String::from_utf8_lossy(&out[..end]).into_owned();
    let (status, rest): (Vec<&str>, Vec<&str>) =
        head.lines().partition(|line| line.starts_with("Status: "));
    let status = status.first().map_or("200 OK", |line| &line[8..]);
    let rest: String = rest.iter().map(|line| format!("{line}\r\n")).collect();
    Ok((
        format!("HTTP/1.1 {status}\r\n{rest}"),
        out[end + 4..].to_vec(),
    ))
}
