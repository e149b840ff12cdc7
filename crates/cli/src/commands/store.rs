//! Blob stores: `durable push`, `durable pull` and `durable store`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use blob::{GcOptions, Run, SnapshotId, Store};
use clap::Subcommand;
use clap::builder::OsStringValueParser;
use engine::remote;
use hyper::Method;
use protocol::api::{PullSandbox, PushSandbox, PushView, SandboxView};
use protocol::{ApiError, ErrorCode, SandboxName, StoreAt};

use super::{Outcome, World, ago, bytes, parse, print_json, print_line};

/// Which store.
#[derive(clap::Args)]
pub(super) struct Place {
    /// The store: a directory, `s3://BUCKET/PREFIX`, `gs://…` or `az://…` (credentials from the environment of the daemon).
    #[arg(long, env = "DURABLE_STORE", value_name = "STORE")]
    store: String,
    /// A file with an age identity. A store that is made with one is encrypted to it; nobody without it can read anything.
    #[arg(long, env = "DURABLE_STORE_KEY", value_name = "FILE", value_parser = OsStringValueParser::new())]
    key: Option<OsString>,
}

impl Place {
    pub(super) fn at(&self) -> Result<StoreAt, ApiError> {
        // An empty variable is none.
        let key = self.key.as_ref().filter(|key| !key.is_empty());
        at(&self.store, key.map(Path::new))
    }
}

/// A store as the daemon finds it: it has another working directory.
pub(super) fn at(store: &str, key: Option<&Path>) -> Result<StoreAt, ApiError> {
    if store.is_empty() {
        return Err(
            ApiError::new(ErrorCode::Invalid, "the store's name is empty")
                .hint("give a directory or an address such as s3://BUCKET/PREFIX"),
        );
    }
    key.map_or(Ok(()), check_private)?;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let directory = blob::directory(store).map(absolute);
    Ok(StoreAt {
        device: directory.as_deref().and_then(remote::device_of),
        url: directory.map_or_else(|| store.to_owned(), |path| path.display().to_string()),
        key_file: key.map(absolute),
    })
}

/// Refuses a key that others could take, as ssh does. What else may be wrong with the file is told by who reads it.
fn check_private(key: &Path) -> Result<(), ApiError> {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(found) = key.metadata() else {
        return Ok(());
    };
    let mode = found.permissions().mode() & 0o777;
    if !found.is_file() || mode & 0o077 == 0 {
        return Ok(());
    }
    let message = format!(
        "key file {} is open to other users of this machine (mode {mode:04o})",
        key.display()
    );
    Err(ApiError::new(ErrorCode::Denied, message)
        .hint(format!("`chmod 600 {}` closes it", key.display())))
}

/// Put a sandbox into a blob store: its files as they are now, its journal and the output of its operations.
///
/// Only what the store does not have is read and sent; a push that was interrupted goes on where it was. Processes go on
/// meanwhile. The last checkpoint goes along and those with a label; all of them with `--all`.
///
/// Example: durable push ada --store /mnt/backup
#[derive(clap::Args)]
pub(crate) struct PushArgs {
    /// The sandbox.
    name: String,
    #[command(flatten)]
    place: Place,
    /// What to call it in the store; as it is called here where not given.
    #[arg(long = "as", value_name = "NAME")]
    called: Option<String>,
    /// Push every checkpoint.
    #[arg(long)]
    all: bool,
}

pub(crate) async fn push(args: PushArgs, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let ask = PushSandbox {
        store: args.place.at()?,
        name: args.called.as_deref().map(parse).transpose()?,
        all: args.all,
    };
    let path = format!("/v1/sandboxes/{name}/push");
    let view: PushView = world.client.call(Method::POST, &path, &ask).await?;
    if world.json {
        print_json(&view)?;
    } else {
        print_line(&format!(
            "{} at {}: {} checkpoints; {} of {} files read, {} new, {} stored",
            view.name,
            view.seq,
            view.checkpoints,
            bytes(view.read_bytes),
            view.read_files,
            bytes(view.new_bytes),
            bytes(view.stored_bytes)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Bring a sandbox out of a blob store, bit for bit, with its journal; it goes on here.
///
/// What was running when it was pushed is `lost`. Of two places that both go on, the second to push is refused.
///
/// Example: durable pull ada --store /mnt/backup
#[derive(clap::Args)]
pub(crate) struct PullArgs {
    /// What it is called in the store.
    from: String,
    #[command(flatten)]
    place: Place,
    /// What to call it here; the same where not given.
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn pull(args: PullArgs, world: &World) -> Outcome {
    let from: SandboxName = parse(&args.from)?;
    let name = args.name.as_deref().map(parse).transpose()?;
    let ask = PullSandbox {
        store: args.place.at()?,
        name: name.unwrap_or_else(|| from.clone()),
        from,
    };
    let view: SandboxView = world.client.call(Method::POST, "/v1/pull", &ask).await?;
    if world.json {
        print_json(&view)?;
    } else {
        print_line(view.name.as_str());
    }
    Ok(ExitCode::SUCCESS)
}

/// Look into a blob store, check it, and give back what nothing needs. No daemon is asked.
///
/// Example: durable store ls --store /mnt/backup
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the sandboxes in a store.
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Read and check every chunk; each one that is missing or damaged is named, with what needs it.
    Verify {
        #[command(flatten)]
        place: Place,
        /// Forget packs with damage, so that the next push of a sandbox from where it lives writes what it needs of them anew.
        #[arg(long)]
        repair: bool,
    },
    /// Take a sandbox out of a store; `gc` gives the room back.
    Rm {
        /// What it is called there.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Remove what no sandbox in the store needs. Pushes and pulls may go on meanwhile.
    Gc {
        #[command(flatten)]
        place: Place,
        /// Leave alone what is younger than this many hours: a push under way may need it.
        #[arg(long, default_value_t = 24, value_name = "HOURS")]
        grace: u64,
        /// Only tell what would go.
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a key for an encrypted store: an age identity in a new file that only you can read.
    Keygen {
        /// The file.
        file: PathBuf,
    },
}

pub(crate) fn run(args: Args, json: bool) -> Outcome {
    match args.verb {
        Verb::Ls { place } => list(&place.at()?, json)?,
        Verb::Verify { place, repair } => return verify(&open(&place)?, repair, json),
        Verb::Rm { name, place } => remote::forget(&open(&place)?, &parse(&name)?)?,
        Verb::Gc {
            place,
            grace,
            dry_run,
        } => collect(&open(&place)?, grace, dry_run, json)?,
        Verb::Keygen { file } => keygen(&file, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn open(place: &Place) -> Result<Store, ApiError> {
    remote::open_existing(&place.at()?, None)
}

fn list(at: &StoreAt, json: bool) -> Result<(), ApiError> {
    let (listed, damaged) = remote::list(&remote::open_existing(at, None)?)?;
    for (name, note) in listed {
        if json {
            print_json(&serde_json::json!({
                "name": name, "seq": note.head.seq, "image": note.image, "node": note.node, "at_ms": note.at_ms,
                "cut": note.tip, "checkpoints": note.cuts,
            }))?;
            continue;
        }
        print_line(&format!(
            "{name}  at {}  {} checkpoints  {}  pushed {} by {}",
            note.head.seq,
            note.cuts.len() + usize::from(note.tip.is_some()),
            note.image,
            ago(note.at_ms),
            note.node
        ));
    }
    told(&damaged)
}

/// What cannot be read is told after what can.
fn told(damaged: &[(String, ApiError)]) -> Result<(), ApiError> {
    let Some((name, error)) = damaged.first() else {
        return Ok(());
    };
    let more = match damaged.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let message = format!("ref {name} cannot be read{more}: {}", error.message);
    Err(ApiError::new(ErrorCode::Corrupt, message)
        .hint("`durable store rm NAME` takes it out; push again from where the sandbox lives"))
}

fn verify(store: &Store, repair: bool, json: bool) -> Outcome {
    let of_blob = |e: blob::Error| remote::of_blob(&e);
    let (mut chunks, mut read, mut damaged) = (0, 0, Vec::new());
    let mut packs = Vec::new();
    for name in store.ref_names().map_err(of_blob)? {
        let looked = match store.get_ref(&name) {
            Ok(None) => continue,
            Ok(Some((id, _))) => store.verify(&id),
            Err(error) => Err(error),
        };
        match looked {
            Ok(report) => {
                chunks += report.chunks;
                read += report.bytes;
                damaged.extend(report.damaged_indexes);
                packs.extend(report.damage.iter().filter_map(|damage| damage.pack));
                let told = report.damage.iter();
                damaged.extend(told.map(|damage| format!("{name}: {damage}")));
            }
            Err(error) => damaged.push(format!("{name}: {}", of_blob(error).message)),
        }
    }
    damaged.sort();
    damaged.dedup();
    packs.sort();
    packs.dedup();
    if repair {
        store.forget_packs(&packs).map_err(of_blob)?;
    }
    if json {
        print_json(&serde_json::json!({
            "chunks": chunks, "bytes": read, "damage": damaged, "forgotten_packs": if repair { packs.len() } else { 0 },
        }))?;
    } else {
        damaged.iter().for_each(|line| print_line(line));
        print_line(&format!(
            "{chunks} chunks, {}: {} damaged",
            bytes(read),
            damaged.len()
        ));
        if !damaged.is_empty() {
            print_line(if repair {
                "damaged packs were forgotten: push again from where the sandboxes live"
            } else {
                "`durable store verify --repair` forgets damaged packs, so that a push from where a sandbox lives writes them anew"
            });
        }
    }
    Ok(ExitCode::from(u8::from(!damaged.is_empty())))
}

fn collect(store: &Store, grace: u64, dry_run: bool, json: bool) -> Result<(), ApiError> {
    let options = GcOptions {
        grace: Duration::from_secs(grace.saturating_mul(3600)),
        run: if dry_run { Run::Dry } else { Run::Wet },
        ..GcOptions::default()
    };
    let report = store.gc(&[] as &[SnapshotId], &options);
    let report = report.map_err(|e| remote::of_blob(&e))?;
    if json {
        return print_json(&serde_json::json!({
            "snapshots": report.snapshots, "packs": report.packs, "freed_bytes": report.freed_bytes,
            "repacked_bytes": report.repacked_bytes, "young": report.young, "dry_run": dry_run,
        }));
    }
    print_line(&format!(
        "{} snapshots and {} packs {}, {}; {} are younger than {grace} h",
        report.snapshots.len(),
        report.packs,
        if dry_run { "would go" } else { "removed" },
        bytes(report.freed_bytes),
        report.young
    ));
    Ok(())
}

fn keygen(file: &Path, json: bool) -> Result<(), ApiError> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let key = blob::Key::generate();
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let written = made.and_then(|mut file| {
        writeln!(file, "# public key: {}", key.recipient())?;
        writeln!(file, "{}", key.secret().as_str())?;
        file.sync_all()
    });
    written.map_err(|e| {
        let message = format!("cannot make the key file {}: {e}", file.display());
        let error = ApiError::new(ErrorCode::Invalid, message);
        match e.kind() {
            std::io::ErrorKind::AlreadyExists => {
                error.hint("an existing file is never written over")
            }
            std::io::ErrorKind::NotFound => error.hint("make its directory first"),
            _ => error.hint("give the name of a new file in a directory that you may write to"),
        }
    })?;
    if json {
        return print_json(&serde_json::json!({"file": file, "recipient": key.recipient()}));
    }
    print_line(&key.recipient());
    Ok(())
}
