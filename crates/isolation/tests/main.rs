//! The container level from the inside and the outside, with real processes. Needs root.

mod boundary;
mod hostile;
mod life;
mod limits;
mod unprivileged;
mod workspace;
mod world;
