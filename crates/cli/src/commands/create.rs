//! `durable create`

use std::path::PathBuf;
use std::process::ExitCode;

use hyper::Method;
use protocol::api::{CreateSandbox, SandboxView};
use protocol::{
    ApiError, CrashPolicy, ErrorCode, Image, Limits, SandboxName, SandboxSpec, StoreAt,
};

use super::{Outcome, World, environment, parse, print_json, print_line};

/// What a setting is that was not made.
const NONE: &str = "none";

/// Create a sandbox.
///
/// Example: durable create ada --image dir:/srv/images/debian --memory 2G
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to call it: lower-case letters, digits, `-`, `_`, `.`.
    name: String,
    #[command(flatten)]
    shape: Shape,
}

/// What a sandbox is made from; shared by `create` and `run`.
#[derive(clap::Args)]
pub(crate) struct Shape {
    /// Where its root comes from: `host` (where not given), `dir:PATH`, `oci:REF` from a registry, `oci-archive:FILE` or
    /// `docker-archive:FILE`.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Memory for all of its processes, such as 512M or 2G.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Space on disk for what it writes, such as 10G; its image and its old cuts do not count. `durable ps` tells how much is
    /// used: `df` inside shows the disk of all sandboxes, as the kernel knows no other.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,
    /// Processes and threads at one time.
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// CPU cores, such as 1.5.
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpus: Option<u64>,
    /// Output kept on disk, all operations together, such as 16G.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    spool: Option<u64>,
    /// What the files look like after its supervisor was lost: as they were (`keep`, where not given), or as of the last cut.
    #[arg(long, value_name = "POLICY", value_parser = ["keep", "rollback"])]
    on_crash: Option<String>,
    /// A blob store that every cut goes to before anyone hears of the operation that it was taken after (see `durable push`).
    #[arg(long, value_name = "STORE")]
    replicate: Option<String>,
    /// A file with an age identity, for an encrypted store.
    #[arg(long, value_name = "FILE", requires = "replicate")]
    replicate_key: Option<PathBuf>,
    /// A file that says what may leave (see `durable policy`); without one nothing may.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Environment of every operation.
    #[arg(long, value_name = "K=V")]
    sandbox_env: Vec<String>,
}

impl Shape {
    pub(crate) fn ask(&self, name: &str) -> Result<CreateSandbox, ApiError> {
        let defaults = Limits::default();
        Ok(CreateSandbox {
            name: parse(name)?,
            image: self.image()?,
            limits: Limits {
                memory_bytes: self.memory,
                disk_bytes: self.disk,
                pids: self.pids.or(defaults.pids),
                cpu_milli: self.cpus,
                spool_bytes: self.spool.unwrap_or(defaults.spool_bytes),
            },
            on_crash: match self.on_crash.as_deref() {
                Some("rollback") => CrashPolicy::Rollback,
                _ => CrashPolicy::Keep,
            },
            replicate: self
                .replicate
                .as_deref()
                .map(|store| super::store::at(store, self.replicate_key.as_deref()))
                .transpose()?,
            policy: self
                .policy
                .as_deref()
                .map(super::policy::read)
                .transpose()?,
            env: environment(&self.sandbox_env)?,
            cwd: None,
        })
    }

    fn image(&self) -> Result<Image, ApiError> {
        self.image.as_deref().map_or(Ok(Image::Host), image)
    }

    /// Refuses what is asked for and is not so in a sandbox that is there. What was not asked for does not matter.
    pub(crate) fn must_fit(&self, name: &SandboxName, spec: &SandboxSpec) -> Result<(), ApiError> {
        let asked = self.ask(name.as_str())?;
        let mut differ = Vec::new();
        let mut look = |flag: &str, given: bool, want: String, has: String| {
            if given && want != has {
                differ.push(format!(
                    "{flag} is {}, not {}",
                    has.escape_debug(),
                    want.escape_debug()
                ));
            }
        };
        let size = |bytes: Option<u64>| bytes.map_or_else(|| NONE.to_owned(), exact);
        let number = |n: Option<u64>| n.map_or_else(|| NONE.to_owned(), |n| n.to_string());
        let cores = |milli: Option<u64>| {
            milli.map_or_else(
                || NONE.to_owned(),
                |milli| (milli as f64 / 1000.0).to_string(),
            )
        };
        let policy = |policy: CrashPolicy| format!("{policy:?}").to_lowercase();
        let store = |at: Option<&StoreAt>| at.map_or(NONE.to_owned(), |at| at.url.clone());
        let key = |at: Option<&StoreAt>| {
            let file = at.and_then(|at| at.key_file.as_ref());
            file.map_or(NONE.to_owned(), |file| file.display().to_string())
        };
        let image = |image: &Image| image.to_string();
        let (want, has) = (&asked.limits, &spec.limits);
        look(
            "--image",
            self.image.is_some(),
            image(&asked.image),
            image(&spec.image),
        );
        look(
            "--memory",
            self.memory.is_some(),
            size(want.memory_bytes),
            size(has.memory_bytes),
        );
        look(
            "--disk",
            self.disk.is_some(),
            size(want.disk_bytes),
            size(has.disk_bytes),
        );
        look(
            "--pids",
            self.pids.is_some(),
            number(want.pids),
            number(has.pids),
        );
        look(
            "--cpus",
            self.cpus.is_some(),
            cores(want.cpu_milli),
            cores(has.cpu_milli),
        );
        look(
            "--spool",
            self.spool.is_some(),
            exact(want.spool_bytes),
            exact(has.spool_bytes),
        );
        look(
            "--on-crash",
            self.on_crash.is_some(),
            policy(asked.on_crash),
            policy(spec.on_crash),
        );
        let (want, has) = (asked.replicate.as_ref(), spec.replicate.as_ref());
        look(
            "--replicate",
            self.replicate.is_some(),
            store(want),
            store(has),
        );
        look(
            "--replicate-key",
            self.replicate_key.is_some(),
            key(want),
            key(has),
        );
        for (name, value) in &asked.env {
            if spec.env.get(name) != Some(value) {
                // What it is may be nobody's business.
                differ.push(format!("--sandbox-env {name} is another"));
            }
        }
        if differ.is_empty() {
            return Ok(());
        }
        let differ = differ.join("; ");
        let message = format!("sandbox `{name}` exists already, and in it {differ}");
        Err(ApiError::new(ErrorCode::Conflict, message)
            .hint("leave that out to use it as it is, or pick another `--name`"))
    }
}

/// Writes a size as [`size`] reads it, with nothing rounded off.
fn exact(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = units
        .iter()
        .find(|(bits, _)| bytes > 0 && bytes.trailing_zeros() >= *bits);
    whole.map_or_else(
        || bytes.to_string(),
        |(bits, unit)| format!("{}{unit}", bytes >> bits),
    )
}

/// Reads an image; a relative path becomes absolute, for the daemon has another working directory.
pub(super) fn image(text: &str) -> Result<Image, ApiError> {
    let text = match text.split_once(':') {
        Some((scheme @ ("dir" | "oci-archive" | "docker-archive"), path)) if !path.is_empty() => {
            let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
            format!("{scheme}:{}", path.display())
        }
        _ => text.to_owned(),
    };
    text.parse()
        .map_err(|e: protocol::IdError| ApiError::new(ErrorCode::Invalid, e.to_string()))
}

/// Reads `512`, `64K`, `512M`, `2G`, `1T` as bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1_u64 << 40,
        other => return Err(format!("unit `{other}` is unknown; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size"))?;
    number
        .checked_mul(unit)
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("`{text}` is no usable size"))
}

fn cores(text: &str) -> Result<u64, String> {
    let cores: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is no number of cores"))?;
    if !(0.01..=4096.0).contains(&cores) {
        return Err("it must lie between 0.01 and 4096".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0.01 to 4096 cores fit"
    )]
    let milli = (cores * 1000.0).round() as u64;
    Ok(milli)
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let ask = args.shape.ask(&args.name)?;
    let view: SandboxView = world
        .client
        .call(Method::POST, "/v1/sandboxes", &ask)
        .await?;
    if world.json {
        print_json(&view)?;
    } else {
        print_line(view.name.as_str());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_as_it_is_read() {
        for told in ["1", "1000", "64K", "512M", "3G", "1025M", "2T"] {
            assert_eq!(exact(size(told).unwrap()), told);
        }
    }

    #[test]
    fn sizes_are_read_with_units_and_nonsense_is_refused() {
        assert_eq!(size("2G"), Ok(2 << 30));
        assert_eq!(size("64kib"), Ok(64 << 10));
        for bad in ["", "G", "0", "1X", "99999999T", "-1"] {
            assert!(size(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(cores("1.5"), Ok(1500));
        assert!(cores("0").is_err() && cores("nan").is_err());
    }
}
