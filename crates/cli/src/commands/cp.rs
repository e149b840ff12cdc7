//! `durable cp`

use std::io::{Read as _, Write as _};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::{ApiError, ErrorCode, SandboxName};

use super::inside::{at, quiet};
use super::{Outcome, World, parse};
use crate::{client, failure};

/// Whose rights a copy has inside: every one on the files. By number, as an image may have no list of users.
const USER: Option<&str> = Some("0");
/// Bytes that travel at a time.
const PIECE: usize = 256 << 10;
/// The longest words of what broke an archive off.
const MAX_WORDS: u64 = 4096;

/// Copy files between the host and a sandbox: into one as an operation, journaled and followed by a cut.
///
/// `NAME:PATH` is a path in a sandbox. A destination that ends with `/` is a directory to copy
/// into; any other is the copy's own path. Directories above it are made where there are none.
/// Symbolic links are copied as links and never followed, on either side. Pipes, sockets and
/// devices are left out. Copying out of a sandbox is no operation and leaves no trace in the journal.
///
/// Example: durable cp ./src ada:/workspace/
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// From where: a path of the host, or NAME:PATH.
    from: String,
    /// To where: a path of the host, or NAME:PATH.
    to: String,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match (place(&args.from)?, place(&args.to)?) {
        (Place::Host(from), Place::Sandbox(name, to)) => {
            let (dir, base) = split(&to, &from)?;
            put(world, &name, &from, &dir, Some(base)).await?;
        }
        (Place::Sandbox(name, from), Place::Host(to)) => {
            fetch(world, &name, &from, &to).await?;
        }
        (Place::Host(_), Place::Host(_)) => {
            return Err(invalid(
                "neither path is in a sandbox",
                "write NAME:PATH for one of them",
            ));
        }
        (Place::Sandbox(..), Place::Sandbox(..)) => {
            return Err(invalid(
                "both paths are in sandboxes",
                "copy to the host first",
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

enum Place {
    Host(PathBuf),
    Sandbox(SandboxName, String),
}

fn place(text: &str) -> Result<Place, ApiError> {
    match text.split_once(':') {
        // A host path may hold a colon: `./a:b` has a slash before it.
        Some((name, path)) if !name.contains('/') => {
            if !path.starts_with('/') {
                return Err(invalid(
                    &format!("`{text}`: the path in the sandbox is not absolute"),
                    "write NAME:/PATH",
                ));
            }
            Ok(Place::Sandbox(parse(name)?, path.to_owned()))
        }
        _ => Ok(Place::Host(PathBuf::from(text))),
    }
}

fn invalid(message: &str, hint: &str) -> ApiError {
    ApiError::new(ErrorCode::Invalid, message).hint(hint)
}

/// Splits a destination in a sandbox into the directory and the copy's name there.
fn split(to: &str, from: &Path) -> Result<(String, String), ApiError> {
    if to.ends_with('/') {
        let name = std::path::absolute(from)
            .ok()
            .and_then(|p| p.file_name().map(|n| n.to_owned()));
        let name = name.and_then(|n| n.into_string().ok());
        let name =
            name.ok_or_else(|| invalid("the source has no name", "give the destination in full"))?;
        return Ok((to.to_owned(), name));
    }
    match to.rsplit_once('/') {
        Some((dir, name)) => Ok((format!("{dir}/"), name.to_owned())),
        None => Err(invalid("the destination has no name", "write NAME:/PATH")),
    }
}

/// Copies a host path into a directory of the sandbox, under `base`; without it, the directory's content.
pub(crate) async fn put(
    world: &World,
    name: &SandboxName,
    from: &Path,
    dir: &str,
    base: Option<String>,
) -> Result<(), ApiError> {
    let failed = |e: &std::io::Error| {
        ApiError::new(
            ErrorCode::Invalid,
            format!("cannot read {}: {e}", from.display()),
        )
        .hint("nothing was copied")
    };
    std::fs::symlink_metadata(from).map_err(|e| failed(&e))?;
    let (sender, pieces) = tokio::sync::mpsc::channel(4);
    let source = from.to_owned();
    let packing = tokio::task::spawn_blocking(move || {
        let base = PathBuf::from(base.unwrap_or_else(|| ".".to_owned()));
        let mut out = std::io::BufWriter::with_capacity(PIECE, Pieces(sender));
        let packed = supervisor::pack(&source, &base, &mut out);
        let flushed = out.flush();
        let (out, _unsent) = out.into_parts();
        match (&packed, flushed) {
            (Ok(_), Ok(())) => {}
            // The request breaks off with this: no daemon takes half an archive for a whole one.
            _ => drop(
                out.0
                    .blocking_send(Err(std::io::Error::other("it was broken off"))),
            ),
        }
        packed
    });
    let query = at(dir.as_ref(), USER);
    let address = format!("/v1/sandboxes/{name}/files/tree?{query}");
    let body = client::streamed(pieces);
    let sent = world
        .client
        .send_with(Method::PUT, &address, &[], body)
        .await;
    let packed = packing
        .await
        .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    match (sent, packed) {
        (Ok(_), Ok(skipped)) => {
            note_skipped(skipped);
            Ok(())
        }
        (Err(error), Ok(_)) => Err(explained(name, error)),
        // What the daemon says explains why no more could be sent.
        (Err(error), Err(_)) if error.code != ErrorCode::Unavailable => Err(explained(name, error)),
        (_, Err(words)) => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("cannot copy {}: {words}", from.display()),
        )
        .hint("the copy was broken off; what had arrived by then is there")),
    }
}

fn explained(name: &SandboxName, error: ApiError) -> ApiError {
    let message = format!("the copy failed in sandbox `{name}`: {}", error.message);
    ApiError { message, ..error }
}

fn note_skipped(skipped: u64) {
    if skipped > 0 {
        failure::note(&format!(
            "{skipped} pipes, sockets or devices were left out"
        ));
    }
}

/// Copies a path of the sandbox to the host.
async fn fetch(world: &World, name: &SandboxName, from: &str, to: &Path) -> Result<(), ApiError> {
    let into = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let to = to.to_owned();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Bytes>(4);
    let query = at(from.as_ref(), USER);
    let address = format!("/v1/sandboxes/{name}/files/tree?{query}");
    let ask = || world.client.send(Method::GET, &address, Bytes::new());
    let response = crate::again::retry_broken(ask).await;
    let mut body = response.map_err(|e| explained(name, e))?.into_body();
    let unpacking = tokio::task::spawn_blocking(move || unpack(receiver, &to, into));
    let mut broken = None;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data()
                    && sender.send(data).is_err()
                {
                    break;
                }
            }
            Err(error) => {
                broken = Some(client::lost(&error));
                break;
            }
        }
    }
    drop(sender);
    let unpacked = unpacking
        .await
        .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    match (unpacked, broken) {
        (
            Ok(Unpacked {
                words: Some(words), ..
            }),
            _,
        ) => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("the copy failed in sandbox `{name}`: {words}"),
        )),
        (_, Some(broken)) => Err(broken),
        (Err(error), None) => Err(ApiError::new(
            ErrorCode::Unavailable,
            format!("cannot write the copy: {}", reason(&error)),
        )
        .hint(
            "files that are there are whole; the one that failed is not, nor what came after it",
        )),
        (Ok(unpacked), None) => {
            note_skipped(unpacked.skipped);
            Ok(())
        }
    }
}

/// What an archive told beside its files.
#[derive(Default)]
struct Unpacked {
    /// Why it is not whole.
    words: Option<String>,
    skipped: u64,
}

impl Unpacked {
    /// Reads the records at an archive's end.
    fn hear(&mut self, entry: &mut tar::Entry<'_, impl std::io::Read>) -> std::io::Result<()> {
        let mut records = Vec::new();
        entry.take(MAX_WORDS).read_to_end(&mut records)?;
        let records = String::from_utf8_lossy(&records);
        let record = records.split_once(' ').map_or("", |(_, record)| record);
        match record.trim_end().split_once('=') {
            Some((supervisor::PACK_ERROR, words)) => {
                self.words = Some(quiet(words));
            }
            Some((supervisor::PACK_SKIPPED, count)) => self.skipped = count.parse().unwrap_or(0),
            _ => {}
        }
        Ok(())
    }
}

/// Unpacks an archive whose entries all lie below one name; that name becomes `to`, or stays below it.
fn unpack(
    chunks: std::sync::mpsc::Receiver<Bytes>,
    to: &Path,
    into: bool,
) -> std::io::Result<Unpacked> {
    let mut told = Unpacked::default();
    let reader = Reader {
        chunks,
        current: Bytes::new(),
    };
    let (parent, name) = if into {
        (to.to_owned(), None)
    } else {
        let name = to.file_name().map(|n| n.to_owned());
        (
            to.parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
                .to_owned(),
            name,
        )
    };
    std::fs::create_dir_all(&parent)?;
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_mtime(true);
    archive.set_preserve_permissions(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_pax_global_extensions() {
            told.hear(&mut entry)?;
            // What follows a failure is made to be no archive.
            if told.words.is_some() {
                break;
            }
            continue;
        }
        let path = entry.path()?.into_owned();
        let mut parts = path
            .components()
            .filter(|c| !matches!(c, Component::CurDir));
        let first = parts.next();
        let mut target = PathBuf::new();
        match (&name, first) {
            (Some(name), _) => target.push(name),
            (None, Some(first)) => target.push(first),
            (None, None) => continue,
        }
        target.extend(parts);
        // The archive was made inside the sandbox: it is not trusted. Anything that is no plain name is refused.
        if target
            .components()
            .any(|c| !matches!(c, Component::Normal(_)))
        {
            return Err(std::io::Error::other(format!(
                "entry {} is refused",
                path.display()
            )));
        }
        let kind = entry.header().entry_type();
        if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
            continue;
        }
        let at = parent.join(&target);
        no_links_above(&parent, &target)?;
        if let Some(above) = at.parent() {
            std::fs::create_dir_all(above)?;
        }
        if kind.is_file() && is_special(&at) {
            // `cp` writes into a device; to put a file in its place would take it from everybody. One deeper in a tree
            // was named by nobody, and a pipe would wait for ever.
            if target.components().nth(1).is_some() {
                return Err(std::io::Error::other(format!(
                    "{} is no regular file",
                    at.display()
                )));
            }
            let mut device = std::fs::OpenOptions::new().write(true).open(&at)?;
            std::io::copy(&mut entry, &mut device)?;
            continue;
        }
        if kind.is_file() {
            unpack_file(&mut entry, &at)?;
        } else {
            entry.unpack(&at)?;
        }
    }
    Ok(told)
}

/// Writes beside the target first: what is there under its name is whole.
fn unpack_file(entry: &mut tar::Entry<'_, impl std::io::Read>, at: &Path) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = at.file_name().unwrap_or_default().as_bytes();
    // Names may be 255 bytes long; the ending must fit too.
    let mut beside = std::ffi::OsString::from(".");
    beside.push(std::ffi::OsStr::from_bytes(&name[..name.len().min(200)]));
    beside.push(format!(".durable-{}", std::process::id()));
    let beside = at.with_file_name(beside);
    let written = entry
        .unpack(&beside)
        .and_then(|_| std::fs::rename(&beside, at));
    if written.is_err() {
        // The failure is told; a half that cannot be removed has a name that says what it is.
        let _gone = std::fs::remove_file(&beside);
    }
    written.map_err(|e| std::io::Error::new(e.kind(), format!("{}: {}", at.display(), reason(&e))))
}

/// The last cause says why: the library around it names what it was at.
fn reason(error: &std::io::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Whether a device, a pipe or a socket is there.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Refuses to write through a symbolic link that an earlier entry made.
fn no_links_above(parent: &Path, target: &Path) -> std::io::Result<()> {
    let mut at = parent.to_owned();
    let mut parts: Vec<Component<'_>> = target.components().collect();
    parts.pop();
    for part in parts {
        at.push(part);
        if std::fs::symlink_metadata(&at).is_ok_and(|m| m.is_symlink()) {
            return Err(std::io::Error::other(format!(
                "{} is a link, nothing is written through it",
                at.display()
            )));
        }
    }
    Ok(())
}

/// Writes into a channel; ends when the other side is gone.
struct Pieces(tokio::sync::mpsc::Sender<std::io::Result<Bytes>>);

impl std::io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let take = &bytes[..bytes.len().min(PIECE)];
        self.0
            .blocking_send(Ok(Bytes::copy_from_slice(take)))
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        Ok(take.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads from a channel.
struct Reader {
    chunks: std::sync::mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl std::io::Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.current.is_empty() {
            match self.chunks.recv() {
                Ok(chunk) => self.current = chunk,
                Err(_) => return Ok(0),
            }
        }
        let n = out.len().min(self.current.len());
        out[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}
