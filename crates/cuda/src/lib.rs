//! The CUDA backend: kernels compiled at run time, steps captured as graphs, nothing of CUDA at build time.
//!
//! [`CudaBackend`] packs weights in the order in which half-warps read them (`layout`), compiles a plan into a list of
//! launches (`program`) that is recorded once as a graph, and runs a step by writing what changes to one block of
//! device memory (`step`) and replaying the graph. Kernels are the `.cu` files of this crate ([`units`]); they give the
//! bits of the reference in `tare-ops`, but for those with an order of their own, which only free classes bind.
//! Everything above [`device::Device`] runs on any implementation of it: the driver's, or one that runs the same kernels
//! on a host.

mod args;
pub mod backend;
mod build;
mod carried;
pub mod ceilings;
pub mod cubins;
pub mod device;
pub mod driver;
mod fuse;
mod kv;
mod layout;
pub mod nvml;
pub mod nvrtc;
pub mod probe;
mod program;
mod quants;
mod registry;
mod split;
mod step;
mod tiles;
pub mod units;
mod weights;

pub use backend::CudaBackend;
pub use carried::Carried;
pub use driver::{CudaConfig, Driver};
pub use probe::{CudaInfo, probe};
