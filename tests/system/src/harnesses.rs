//! The real harness programs, installed once and linked into each world.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::{Res, run, trouble, world};

static INSTALLING: Mutex<()> = Mutex::new(());

/// Where they are kept between runs: DURABLE_TEST_HARNESSES, else beside the built binary.
fn cache() -> Res<PathBuf> {
    if let Some(dir) = std::env::var_os("DURABLE_TEST_HARNESSES") {
        return Ok(dir.into());
    }
    let binary = world::binary()?;
    Ok(binary.parent().unwrap_or(Path::new(".")).join("harnesses"))
}

/// Installs a harness, unless it is there, and returns its directory.
///
/// # Errors
/// It cannot be fetched.
pub fn installed(name: &str) -> Res<PathBuf> {
    let _one_at_a_time = INSTALLING.lock();
    let cache = cache()?;
    std::fs::create_dir_all(&cache)?;
    let mut command = Command::new(world::binary()?);
    command
        .arg("--data")
        .arg(&cache)
        .args(["harness", "install", name]);
    let done = run::run(command)?;
    if done.code != Some(0) {
        return Err(trouble(format!(
            "{name} cannot be installed: {}",
            done.err().trim()
        )));
    }
    Ok(cache.join("harness").join(name))
}

/// Links a harness into a world's harness directory; copies it where links do not reach.
///
/// # Errors
/// It cannot be fetched or copied.
pub fn link(name: &str, harness_dir: &Path) -> Res<()> {
    let source = installed(name)?;
    for how in ["-al", "-a"] {
        let mut command = Command::new("cp");
        command.arg(how).arg(&source).arg(harness_dir);
        if run::run(command)?.code == Some(0) {
            return Ok(());
        }
        // Half a tree may be there.
        let _removed = std::fs::remove_dir_all(harness_dir.join(name));
    }
    Err(trouble(format!("{} cannot be copied", source.display())))
}
