//! Named points at which a crash test can stop a process and kill it.
//!
//! With `DURABLE_FAILPOINT_SOCKET` and `DURABLE_FAILPOINT=name[,name…]` set, [`hit`] tells the test over the socket
//! where it stands (`name pid\n`) and waits for one byte or the end of the connection. Without them it is one relaxed load.
//! It never decides anything: the test does the killing. It may be slow, block a thread and end with the process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};

struct Armed {
    points: Vec<String>,
    socket: Mutex<UnixStream>,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Connects to the test, where there is one. Call it early: before the process loses sight of the socket's path.
pub fn arm() {
    let _armed = armed();
}

fn armed() -> Option<&'static Armed> {
    ARMED
        .get_or_init(|| {
            let path = std::env::var_os("DURABLE_FAILPOINT_SOCKET")?;
            let points = std::env::var("DURABLE_FAILPOINT").ok()?;
            let socket = Mutex::new(UnixStream::connect(path).ok()?);
            Some(Armed {
                points: points.split(',').map(str::to_owned).collect(),
                socket,
            })
        })
        .as_ref()
}

/// Waits for the test at `point`, if the test asked for it.
pub fn hit(point: &str) {
    let Some(armed) = armed() else { return };
    if !armed.points.iter().any(|p| p == point) {
        return;
    }
    let mut socket = armed.socket.lock().unwrap_or_else(PoisonError::into_inner);
    // A test that went away means that nobody stops us any more.
    if writeln!(socket, "{point} {}", std::process::id()).is_ok() {
        let _read: std::io::Result<usize> = socket.read(&mut [0]);
    }
}
