//! The shim's side of its connection to the supervisor.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use bytes::BytesMut;
use protocol::control::{decode, encode};
use protocol::paths::SHIM_SOCKET;
use protocol::shim::{Exec, Reply, Request};
use protocol::{Outcome, Settlement, Stream};

use super::{NO_EXIT_CODE, tell};
use crate::sys::EndSignals;

/// Overrides the socket where there is no sandbox around.
const SOCKET: &str = "DURABLE_SHIM_SOCKET";

/// Runs the command as an operation; returns the exit code for the harness.
pub(super) fn run(exec: Exec) -> i32 {
    let path = std::env::var_os(SOCKET).unwrap_or_else(|| SHIM_SOCKET.into());
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) => {
            tell(&format!(
                "the command was not run: the sandbox's supervisor cannot be reached ({error})"
            ));
            return NO_EXIT_CODE;
        }
    };
    match attend(&stream, exec) {
        Ok(code) => code,
        Err(error) => {
            tell(&format!(
                "the connection to the sandbox's supervisor was lost ({error}); whether the command took effect is \
                 unknown, look before running it again"
            ));
            NO_EXIT_CODE
        }
    }
}

fn attend(stream: &UnixStream, exec: Exec) -> io::Result<i32> {
    send(stream, &exec)?;
    cancel_on_signal(stream.try_clone()?)?;
    let mut input = BytesMut::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        while let Some(reply) = decode::<Reply>(&mut input).map_err(io::Error::other)? {
            match reply {
                Reply::Output { stream, data, .. } => show(stream, &data),
                Reply::Settled { settlement } => return Ok(end(&settlement)),
                Reply::Refused { message } => {
                    tell(&format!("the command was not run: {message}"));
                    return Ok(NO_EXIT_CODE);
                }
            }
        }
        let mut from = stream;
        match from.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => input.extend_from_slice(&buffer[..length]),
        }
    }
}

/// A harness that does not read any more does not stop the command: it stays an operation of the sandbox.
fn show(stream: Stream, data: &[u8]) {
    let _shown: io::Result<()> = match stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(data).and_then(|()| out.flush())
        }
        Stream::Stderr => io::stderr().write_all(data),
    };
}

/// Says how it ended where the exit code alone does not; returns the code.
fn end(settlement: &Settlement) -> i32 {
    if let Some(error) = &settlement.error {
        tell(error);
    }
    match settlement.outcome {
        Outcome::Exited { exit_code } => i32::from(exit_code),
        Outcome::Signaled { signal } => 128 + i32::from(signal),
        Outcome::TimedOut => {
            tell("the command ran out of time and was killed");
            124
        }
        Outcome::Cancelled => {
            tell("the command was cancelled");
            NO_EXIT_CODE
        }
        Outcome::Lost => {
            tell(
                "the sandbox was lost while the command ran; whether it took effect is unknown, look before running it \
                 again",
            );
            NO_EXIT_CODE
        }
    }
}

/// From now on a signal to end reaches the operation and not only this window on it.
fn cancel_on_signal(stream: UnixStream) -> io::Result<()> {
    let signals = EndSignals::block()?;
    std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(move || {
            let signal = signals.wait();
            // A supervisor that has gone has ended the operation already.
            let _sent: io::Result<()> = send(&stream, &Request::Cancel);
            std::process::exit(128 + signal);
        })?;
    Ok(())
}

fn send<T: serde::Serialize>(mut stream: &UnixStream, message: &T) -> io::Result<()> {
    let mut frame = BytesMut::new();
    encode(message, &mut frame).map_err(io::Error::other)?;
    stream.write_all(&frame)
}
