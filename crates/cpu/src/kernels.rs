//! The kernels, one operator a file, written once over [`Lanes`](crate::lanes::Lanes), [`Dots`](crate::dots::Dots) or
//! [`Pairs`](crate::pairs::Pairs).
//!
//! A kernel is a computation on one worker's share of a call. Where two workers could write the same element, the file
//! says how the work is dealt out.

pub mod attention;
pub mod embedding;
pub mod heads;
pub mod into_tiles;
pub mod kv_append;
pub mod linear;
pub mod linear_int;
pub mod linear_lossless;
pub mod linear_pairs;
pub mod linear_tiles;
pub mod norm;
pub mod quantize;
pub mod rope;
pub mod round;
pub mod sample;
pub mod select_rows;
pub mod swiglu;

/// F32 of a worker's scratch, which every linear finds.
pub const SCRATCH: usize =
    if linear::SCRATCH > linear_tiles::SCRATCH { linear::SCRATCH } else { linear_tiles::SCRATCH };
