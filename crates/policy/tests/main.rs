//! The claims of this crate: tables of what is allowed and what is not, and properties of all inputs.

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod attacks;
#[cfg(test)]
mod decisions;
#[cfg(test)]
mod effects;
#[cfg(test)]
mod explanations;
#[cfg(test)]
mod files;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod preset;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod pushes;
#[cfg(test)]
mod remembered;
#[cfg(test)]
mod world;
