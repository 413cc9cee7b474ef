//! Peers: other engines that do the same work, token ids in and token ids out, so that there is a denominator.
//!
//! - [`registry`]: which engines there are, at which version, built or installed how. [`install`] does it, from
//!   [`sources`] that were downloaded or carried there.
//! - [`convert`]: a model in a format that an engine's own tools write, which tare can read beside it.
//! - [`runner`]: an engine behind its shim as a [`crate::Runner`]. The protocol is in docs/reference/peers.md.
//! - [`tune`]: the same tuning budget for each of them, on a request that is never the measured one.
//! - [`class`]: what an engine's arithmetic is called, read out of it.

pub mod class;
pub mod convert;
pub mod install;
mod process;
pub mod registry;
pub mod runner;
pub mod sources;
pub mod tune;

pub use class::Declared;
pub use install::{Installed, found, install, pack};
pub use registry::{ENTRIES, Entry, Package, Recipe, entry};
pub use runner::PeerRunner;
