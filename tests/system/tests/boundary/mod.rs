//! The list of attacks (docs/attacks.md), each a test with the real binary in an internet of our own: nothing arrives where it
//! must not, the program is told why in words, and the journal has it.

mod attacks;
mod channels;
mod credentials;
mod destinations;
mod doctor;
mod machine;
mod scan;
mod world;
