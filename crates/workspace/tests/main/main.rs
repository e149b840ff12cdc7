//! What both engines promise, tried on real file systems.
//!
//! The btrfs tests need root, loop devices and mkfs.btrfs; without them they say so and pass.

#[cfg(test)]
mod compared;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod image;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod overlay;
#[cfg(test)]
mod picture;
#[cfg(test)]
mod pushed;
#[cfg(test)]
mod random;
#[cfg(test)]
mod room;
#[cfg(test)]
mod world;
