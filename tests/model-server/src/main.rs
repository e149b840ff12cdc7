//! The scripted model server as a program.

fn main() {}
