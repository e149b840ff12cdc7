//! The journal's tests: the contract on both engines, and what an engine must survive.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod failure;
#[cfg(test)]
mod indexing;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod open;
#[cfg(test)]
mod room;
#[cfg(test)]
mod world;
