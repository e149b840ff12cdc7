//! The journal's tests: the contract on both engines, and what an engine must survive.

mod conformance;
mod damage;
mod differential;
mod failure;
mod indexing;
mod kill;
mod open;
mod world;
