//! What a process took of the machine, as the kernel tells it.

use std::path::PathBuf;

use bench::Failure;

/// Of the times in `stat`, a second: the same on every machine that Linux runs on.
const TICKS: f64 = 100.0;

/// A process that is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process(pub(super) u32);

impl Process {
    fn read(self, file: &str) -> Result<String, Failure> {
        let path = PathBuf::from(format!("/proc/{}/{file}", self.0));
        std::fs::read_to_string(&path).map_err(Failure::cannot(format!("read {}", path.display())))
    }

    /// Returns the seconds of a processor that it used, in itself and in the kernel.
    pub(super) fn cpu(self) -> Result<f64, Failure> {
        let stat = self.read("stat")?;
        // After the name, which may hold anything: `utime` and `stime` are the 14th and 15th of all.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let ticks: f64 = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum();
        Ok(ticks / TICKS)
    }

    /// Returns the mebibytes that it has in memory.
    pub(super) fn memory(self) -> Result<f64, Failure> {
        self.status("VmRSS:")
    }

    /// Returns the most that it had since [`Process::forget_most`].
    pub(super) fn most_memory(self) -> Result<f64, Failure> {
        self.status("VmHWM:")
    }

    /// Lets the most begin at what it has now.
    pub(super) fn forget_most(self) -> Result<(), Failure> {
        let path = format!("/proc/{}/clear_refs", self.0);
        std::fs::write(&path, "5").map_err(Failure::cannot(format!("write {path}")))
    }

    fn status(self, name: &str) -> Result<f64, Failure> {
        let status = self.read("status")?;
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = found.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let kibibytes =
            kibibytes.ok_or_else(|| Failure::wrong(format!("{name} is not told of {}", self.0)))?;
        Ok(kibibytes / 1024.0)
    }
}
