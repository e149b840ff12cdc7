//! Whole-system tests on the real binary.
