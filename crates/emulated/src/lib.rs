//! The CPU backend with kernels of tiles and pairs over emulated ones beside all others: they run on every host, slowly, for tests.
//!
//! A package of its own because a kernel is compiled where its instruction set is named: here, and not in the binary that
//! people use (docs/adr/0030).

#![forbid(unsafe_code)]

use tare_cpu::dots::tiles::emulated::Emulated as EmulatedDots;
use tare_cpu::lanes::array::Array;
use tare_cpu::pairs::emulated::Emulated as EmulatedPairs;
use tare_cpu::registry::Registry;
use tare_cpu::tiles::Tiles;
use tare_cpu::tiles::emulated::Emulated;
use tare_cpu::{CpuBackend, CpuConfig};
use tare_ops::OpError;

/// Every kernel, and those of tiles and pairs over emulated ones as well.
pub fn registry() -> Registry {
    let mut r = Registry::new();
    // One form of each linear is enough; attention is tested on long contexts.
    #[cfg(target_arch = "x86_64")]
    {
        use tare_cpu::lanes::{avx2::Avx2, avx512::Avx512};
        if Emulated::<Avx512>::prove().is_some() {
            r.attention_in_tiles::<Emulated<Avx512>>();
        } else if Emulated::<Avx2>::prove().is_some() {
            r.attention_in_tiles::<Emulated<Avx2>>();
        }
    }
    #[cfg(target_arch = "aarch64")]
    r.attention_in_tiles::<Emulated<tare_cpu::lanes::neon::Neon>>();
    r.tiles::<Emulated<Array>>();
    r.integers_in_tiles::<EmulatedDots>();
    r.pairs::<EmulatedPairs>();
    r.lossless::<EmulatedPairs, Emulated<Array>>();
    r
}

/// A backend that has them.
///
/// # Errors
/// As [`CpuBackend::new`].
pub fn backend(config: CpuConfig) -> Result<CpuBackend, OpError> {
    CpuBackend::with_registry(registry(), config)
}
