//! The supervisor as a process, driven over its real control socket with real commands.

mod commands;
mod crash;
mod fence;
mod input;
mod load;
mod shim;
mod world;
