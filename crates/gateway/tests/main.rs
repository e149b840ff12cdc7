//! The gateway as a whole: real HTTP clients, a real relay process and a scripted model server as a process.

mod client;
mod failures;
mod kills;
mod process;
mod recording;
mod secrets;
mod world;
