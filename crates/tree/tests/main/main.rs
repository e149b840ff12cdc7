//! The claims of this crate, held against real directories and real git.

#[cfg(test)]
mod deep;
#[cfg(test)]
mod merges;
#[cfg(test)]
mod patches;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod views;
#[cfg(test)]
mod world;
