//! The CPU backend: worker pool, kernels and step execution.
//!
//! [`CpuBackend`] keeps weights as the packed bytes it is given, or in [`panels`] for linears with activations in integers,
//! compiles a plan into a [`program`] (buffers, bound kernels, barriers), and runs a step as one parallel region of its
//! [`pool`]. Kernels are written once over [`lanes`] and [`unpack`], or over [`dots`] and [`coded`], and give the bits of the
//! reference in `tare-ops` on every instruction set; in the free classes those over [`tiles`] and [`pairs`]
//! add in an order of their own.

pub mod backend;
mod barrier;
mod bell;
mod bench;
pub mod coded;
pub mod codes;
mod crew;
mod dispatch;
pub mod dots;
pub mod epilogue;
pub mod fuse;
pub mod isa;
pub mod kernels;
pub mod kv;
pub mod lanes;
pub mod layouts;
pub mod lossless;
pub mod matrix;
pub mod memory;
pub mod order;
pub mod pairs;
pub mod panels;
mod planted;
pub mod pool;
pub mod program;
pub mod registry;
pub mod rows;
pub mod step;
mod sync;
pub mod tiled;
pub mod tiles;
pub mod unpack;
mod watch;

pub use backend::{CpuBackend, CpuConfig};
pub use dispatch::{Dispatch, Split};
pub use isa::detect as detect_isa;
pub use planted::Dose;
