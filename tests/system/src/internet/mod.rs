//! A whole internet on this machine: a network and a mount namespace in which every address leads to us.
//!
//! Servers of the test have addresses there, names are answered by a server of the test, and everything else that anybody sends,
//! to whatever address and port, is seen by the [`Canary`]. A daemon that runs in it (see [`Internet::command`]) knows no other
//! internet. Needs root.

mod canary;
mod names;

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::thread::LinkNameSpaceType;

use crate::origin::Origin;
use crate::{Res, trouble};

pub use canary::{Canary, Packet};
pub use names::{Names, Zone};

/// Where names are asked.
pub const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 53);
/// Where a name leads that nobody has: whoever follows it is seen.
pub const NOWHERE: Ipv4Addr = Ipv4Addr::new(11, 66, 66, 66);

/// Makes the namespaces, says so, and waits until the test lets go or is gone: then what still runs in them is ended.
const HOLD: &str = r#"set -e
root=$1 durable=$2; shift 2
mount --bind "$root/hosts" /etc/hosts
mount --bind "$root/resolv.conf" /etc/resolv.conf
ip link set lo up
for address; do ip addr add "$address/32" dev lo; done
ip route add local default dev lo
ip -6 route add local default dev lo 2>/dev/null || true
echo ready
cat >/dev/null
set +e
if [ -S "$DURABLE_DATA/api.sock" ] && kill -0 "$(cat "$DURABLE_DATA/daemon.lock")"; then
    for name in $("$durable" ps --json | sed -n 's/.*"name":"\([^"]*\)".*/\1/p'); do "$durable" rm --force "$name"; done
    daemon=$(cat "$DURABLE_DATA/daemon.lock")
    kill "$daemon"
    timeout 30 tail --pid="$daemon" -f /dev/null
    rm -rf "$root"
fi
"#;

/// The namespaces, and who is in them. Dropped, they end.
pub struct Internet {
    /// None once it was let go.
    holder: Option<Child>,
    pid: u32,
    /// Everything that went where nobody is.
    pub canary: Canary,
    /// Who answers for names.
    pub names: Names,
}

impl Internet {
    /// Makes it, with these addresses for servers. `command` has the environment of a world: when the test process is gone,
    /// however it went, the sandboxes and the daemon of that world are ended, and its directory `root` is removed.
    ///
    /// # Errors
    /// We are not root, or `ip`, `unshare` or `mount` is missing.
    pub fn new(root: &Path, command: &Command, addresses: &[Ipv4Addr], zone: Zone) -> Res<Self> {
        std::fs::write(root.join("hosts"), "127.0.0.1 localhost\n")?;
        // A question that gets no answer is asked again by the library: one second tells it soon.
        let resolver = format!("nameserver {NAME_SERVER}\noptions timeout:1 attempts:2\n");
        std::fs::write(root.join("resolv.conf"), resolver)?;
        let mut all = vec![NAME_SERVER];
        all.extend(addresses);
        let log = std::fs::File::create(root.join("internet.log"))?;
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "slave", "--"])
            .args(["sh", "-c", HOLD, "hold"])
            .arg(root)
            .arg(command.get_program())
            .args(all.iter().map(Ipv4Addr::to_string))
            .env_clear()
            .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut said = String::new();
        if let Some(stdout) = &mut holder.stdout {
            use std::io::BufRead as _;
            std::io::BufReader::new(stdout).read_line(&mut said)?;
        }
        if said != "ready\n" {
            let log = std::fs::read_to_string(root.join("internet.log")).unwrap_or_default();
            return Err(trouble(format!("no fake internet: {}", log.trim())));
        }
        let pid = holder.id();
        let inside = within(pid, move || {
            let names = Names::new(NAME_SERVER, zone)?;
            Ok((Canary::new()?, names))
        });
        let (canary, names) = inside?;
        canary.expect((NAME_SERVER, 53));
        Ok(Self {
            holder: Some(holder),
            pid,
            canary,
            names,
        })
    }

    /// Runs something in it, such as what binds a socket.
    ///
    /// # Errors
    /// What that says.
    pub fn within<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> Res<T> + Send + 'static,
    ) -> Res<T> {
        within(self.pid, run)
    }

    /// Starts a server with TLS in it, which the canary does not tell of.
    ///
    /// # Errors
    /// The address is taken, or not one of its own.
    pub fn https(&self, address: Ipv4Addr, names: &[&str]) -> Res<Origin> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.canary.expect((address, 443));
        self.within(move || {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Origin::https_at((address, 443).into(), &names)
        })
    }

    /// Starts a server without TLS in it, which the canary does not tell of.
    ///
    /// # Errors
    /// The address is taken, or not one of its own.
    pub fn http(&self, address: Ipv4Addr) -> Res<Origin> {
        self.canary.expect((address, 80));
        self.within(move || Origin::http_at((address, 80).into()))
    }

    /// Makes a command that runs in it.
    #[must_use]
    pub fn command(&self, inside: &Command) -> Command {
        let pid = self.pid;
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg(format!("--mount=/proc/{pid}/ns/mnt"))
            .arg("--")
            .arg(inside.get_program())
            .args(inside.get_args())
            .env_clear()
            .envs(inside.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::null());
        command
    }

    /// What was seen that must not be, in words; empty where nothing was.
    #[must_use]
    pub fn leaks(&self) -> String {
        let mut words = String::new();
        for packet in self.canary.seen() {
            // Writing to a string does not fail.
            let _written = writeln!(words, "{packet}");
        }
        words
    }

    /// Lets go of the namespaces; a daemon that runs in them goes on.
    pub fn let_go(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            // Killed: its script would end the daemon.
            let _killed = holder.kill();
            let _status = holder.wait();
        }
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            drop(holder.stdin.take());
            let _status = holder.wait();
        }
    }
}

fn within<T: Send + 'static>(pid: u32, run: impl FnOnce() -> Res<T> + Send + 'static) -> Res<T> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let namespace = std::fs::File::open(&path)?;
    // A thread of its own: it never comes back from there, and what it starts is there too.
    let thread = std::thread::spawn(move || {
        rustix::thread::move_into_link_name_space(
            namespace.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?;
        run()
    });
    thread.join().map_err(|_| trouble("a thread panicked"))?
}
