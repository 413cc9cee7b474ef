//! The backend and its kernels, on a host that stands in for a device and on a device where there is one.

mod bounds;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod compile;
mod conformance;
#[path = "../../../cpu/tests/decoder/mod.rs"]
mod decoder;
mod delays;
mod early;
mod emulator;
mod engine;
mod halves;
mod heads;
mod neighbours;
mod operators;
mod rungs;
mod soak;
mod steps;
mod threads;
mod tiles;
mod times;

use tare_cuda::CudaConfig;

/// How tests use a device: compiled kernels are kept, since every test opens it anew.
fn gpu(stepwise: bool) -> CudaConfig {
    CudaConfig { stepwise, cache: Some(std::env::temp_dir().join("tare-test-kernels")), ..CudaConfig::default() }
}
