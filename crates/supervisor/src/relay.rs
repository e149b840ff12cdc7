//! The way of model traffic out of the sandbox: from the loopback port to the daemon's socket, byte by byte.
//!
//! While the daemon is away a connection is held, so that a harness sees a slow model and not a lost one.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::paths::state::GATEWAY;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::core::Core;

/// The most connections at one time; further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection is held for a daemon.
const HOLD: Duration = Duration::from_mins(10);
/// A daemon may open its socket a little after it fenced, and a client may go, for which there is no event.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Relays for ever.
pub(crate) async fn serve(core: Rc<Core>, listener: TcpListener) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((client, _)) => {
                let core = Rc::clone(&core);
                tokio::task::spawn_local(async move {
                    // Both ends see the end of the other; there is nobody else to tell.
                    let _copied: io::Result<()> = relay(&core, client).await;
                    drop(place);
                });
            }
            Err(error) if crate::is_passing(&error) => {
                tokio::time::sleep(crate::ACCEPT_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn relay(core: &Core, mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let Some(mut gateway) = reach(core, &client).await? else {
        return Ok(());
    };
    tokio::io::copy_bidirectional(&mut client, &mut gateway).await?;
    Ok(())
}

/// Connects to the daemon, waiting for it if need be; `None` if the client did not wait.
async fn reach(core: &Core, client: &TcpStream) -> io::Result<Option<UnixStream>> {
    let until = Instant::now() + HOLD;
    loop {
        let fenced = core.link.next_fence();
        // Our working directory is the state directory.
        match UnixStream::connect(GATEWAY).await {
            Ok(gateway) => return Ok(Some(gateway)),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => {}
        }
        if has_hung_up(client) {
            return Ok(None);
        }
        tokio::select! {
            () = fenced => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Whether the client has closed its connection; it would have to keep it open for an answer.
fn has_hung_up(client: &TcpStream) -> bool {
    let mut fds = [PollFd::new(client, PollFlags::RDHUP)];
    let now = Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}
