//! `durable cp`

use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::api::OpView;
use protocol::{ApiError, ErrorCode, OpId, OpSpec, Replay, Role, SandboxName};

use super::{Outcome, World, fresh_op, parse};
use crate::stream::escape;

/// Copy files between the host and a sandbox, as an operation: journaled, and followed by a cut.
///
/// `NAME:PATH` is a path in a sandbox. A destination that ends with `/` is a directory to copy into; any other is the
/// copy's own path. Symbolic links are copied as links and never followed, on either side.
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
    let meta = std::fs::symlink_metadata(from).map_err(|e| failed(&e))?;
    let op: OpId = parse(&format!("~cp-{}", fresh_op()))?;
    start(world, name, &op, &["tar-in", dir], true).await?;
    let (sender, mut chunks) = tokio::sync::mpsc::channel::<Bytes>(4);
    let source = from.to_owned();
    let packing = tokio::task::spawn_blocking(move || {
        let out =
            std::io::BufWriter::with_capacity(protocol::control::MAX_STDIN_CHUNK, Chunks(sender));
        let mut tar = tar::Builder::new(out);
        tar.follow_symlinks(false);
        let base = base.unwrap_or_else(|| ".".to_owned());
        if meta.is_dir() {
            tar.append_dir_all(&base, &source)?;
        } else {
            tar.append_path_with_name(&source, &base)?;
        }
        tar.into_inner()?.flush()
    });
    let path = op_path(name, &op);
    let mut offset = 0_u64;
    while let Some(chunk) = chunks.recv().await {
        let length = chunk.len() as u64;
        let url = format!("{path}/stdin?offset={offset}&eof=false");
        world.client.send(Method::PUT, &url, chunk).await?;
        offset += length;
    }
    let packed = packing
        .await
        .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    if let Err(error) = packed {
        let _view: OpView = world
            .client
            .call(Method::POST, &format!("{path}/cancel"), &())
            .await?;
        return Err(
            failed(&error).hint("the copy was broken off; what had arrived by then is there")
        );
    }
    let url = format!("{path}/stdin?offset={offset}&eof=true");
    world.client.send(Method::PUT, &url, Bytes::new()).await?;
    settled(world, name, &op).await.map(drop)
}

/// Copies a path of the sandbox to the host.
async fn fetch(world: &World, name: &SandboxName, from: &str, to: &Path) -> Result<(), ApiError> {
    let op: OpId = parse(&format!("~cp-{}", fresh_op()))?;
    start(world, name, &op, &["tar-out", from], false).await?;
    let into = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let to = to.to_owned();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Bytes>(4);
    let unpacking = tokio::task::spawn_blocking(move || unpack(receiver, &to, into));
    let url = format!("{}/output/stdout?follow=true", op_path(name, &op));
    let mut body = world
        .client
        .send(Method::GET, &url, Bytes::new())
        .await?
        .into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| crate::client::lost(&e))?.into_data() else {
            continue;
        };
        if sender.send(data).is_err() {
            break;
        }
    }
    drop(sender);
    let unpacked = unpacking
        .await
        .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    // What went wrong inside explains a broken archive better than the archive does.
    settled(world, name, &op).await?;
    unpacked.map_err(|e| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("cannot write the copy: {e}"),
        )
    })
}

/// Unpacks an archive whose entries all lie below one name; that name becomes `to`, or stays below it.
fn unpack(chunks: std::sync::mpsc::Receiver<Bytes>, to: &Path, into: bool) -> std::io::Result<()> {
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
            // `cp` writes into a device; to put a file in its place would take it from everybody.
            let mut device = std::fs::OpenOptions::new().write(true).open(&at)?;
            std::io::copy(&mut entry, &mut device)?;
            continue;
        }
        entry.unpack(&at)?;
    }
    Ok(())
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

fn op_path(name: &SandboxName, op: &OpId) -> String {
    format!("/v1/sandboxes/{name}/ops/{}", escape(op.as_str()))
}

async fn start(
    world: &World,
    name: &SandboxName,
    op: &OpId,
    args: &[&str],
    stdin: bool,
) -> Result<(), ApiError> {
    let argv = [protocol::paths::BIN, "__box"]
        .iter()
        .chain(args)
        .map(|s| (*s).to_owned())
        .collect();
    let spec = OpSpec {
        argv,
        cwd: Some("/".to_owned()),
        env: std::collections::BTreeMap::new(),
        user: None,
        timeout_ms: None,
        tty: None,
        stdin,
        replay: Replay::Never,
        role: Role::Internal,
    };
    let _view: OpView = world
        .client
        .call(Method::PUT, &op_path(name, op), &spec)
        .await?;
    Ok(())
}

async fn settled(world: &World, name: &SandboxName, op: &OpId) -> Result<OpView, ApiError> {
    let view: OpView = world
        .client
        .get(&format!("{}?wait=true", op_path(name, op)))
        .await?;
    if view.exit_code == Some(0) {
        return Ok(view);
    }
    let url = format!("{}/output/stderr", op_path(name, op));
    let body = world
        .client
        .send(Method::GET, &url, Bytes::new())
        .await?
        .into_body();
    let said = body
        .collect()
        .await
        .map_err(|e| crate::client::lost(&e))?
        .to_bytes();
    let said = String::from_utf8_lossy(&said[..said.len().min(4096)])
        .trim()
        .to_owned();
    let said = if said.is_empty() {
        view.error.unwrap_or_default()
    } else {
        said
    };
    Err(ApiError::new(
        ErrorCode::Invalid,
        format!("the copy failed in sandbox `{name}`: {said}"),
    ))
}

/// Writes into a channel; ends when the other side is gone.
struct Chunks(tokio::sync::mpsc::Sender<Bytes>);

impl std::io::Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let take = &bytes[..bytes.len().min(protocol::control::MAX_STDIN_CHUNK)];
        self.0
            .blocking_send(Bytes::copy_from_slice(take))
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
