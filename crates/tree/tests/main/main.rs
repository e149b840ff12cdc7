//! The claims of this crate, held against real directories and real git.

#[cfg(test)]
mod patches;
#[cfg(test)]
mod views;
#[cfg(test)]
mod world;
