//! What the host is and how it behaves: processor, memory, clocks, ceilings, quietness.
//!
//! Every fact that a host may not give is a [`tare_core::Reading`] with the reason: on a system without `/proc` the
//! same code runs and says so. [`clock`] neither allocates nor fails, and [`waits`] are read without allocating; the rest
//! is read once per load or per report and stays out of the token loop.
//!
//! Not here, on purpose: no environment variables, no printing, and no verdicts. Whether 3 % of stolen time voids a
//! campaign is for its caller to say.

pub mod affinity;
pub mod allocator;
pub mod allowance;
pub mod amx;
pub mod cache;
pub mod ceilings;
pub mod clock;
mod files;
pub mod host;
pub mod isa;
pub mod memory;
pub mod pages;
pub mod quiet;
mod region;
pub mod waits;

pub use allowance::Allowance;
pub use ceilings::Ceilings;
pub use host::Host;
pub use isa::CpuFeatures;
pub use memory::ResidentMemory;
pub use pages::page_use;
pub use quiet::Quietness;
pub use waits::Waits;
