//! The journal's tests: the contract on both engines, and what an engine must survive.

mod conformance;
