//! Data types, weight formats, readings and errors shared by every room of tare.
//!
//! Everything above depends on this crate and this crate depends on nothing of tare. It holds values and arithmetic
//! on them; it does no I/O, starts no threads and prints nothing.

#![forbid(unsafe_code)]

pub mod blob;
pub mod digest;
pub mod dtype;
pub mod fault;
pub mod format;
pub mod pages;
pub mod reading;
pub mod units;
pub mod weight;

pub use blob::{Blob, Source};
pub use dtype::DType;
pub use fault::Fault;
pub use format::{AffineBits, Format};
pub use pages::PageUse;
pub use reading::Reading;
pub use weight::{Affine, Weight, WeightData};
