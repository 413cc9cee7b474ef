//! The instruction-set levels of this host.

use tare_ops::{Isa, IsaSet};

/// The levels that this processor has and the operating system saves.
#[cfg(target_arch = "x86_64")]
pub fn detect() -> IsaSet {
    use crate::lanes::{Lanes, avx2::Avx2, avx512::Avx512};
    use crate::tiles::{Tiles, amx::Amx};
    let mut levels = Vec::new();
    levels.extend(Avx2::detect().map(|_| Isa::Avx2));
    if Avx512::detect().is_some() {
        levels.push(Isa::Avx512);
        levels.extend(is_x86_feature_detected!("avx512vnni").then_some(Isa::Avx512Vnni));
        levels.extend(is_x86_feature_detected!("avx512bf16").then_some(Isa::Avx512Bf16));
        levels.extend(Amx::prove().map(|_| Isa::Amx));
    }
    IsaSet::new(levels)
}

/// The levels that this processor has.
#[cfg(target_arch = "aarch64")]
pub fn detect() -> IsaSet {
    use crate::dots::{Dots, neon::NeonDots};
    use crate::lanes::{Lanes, neon::Neon};
    let mut levels = Vec::new();
    levels.extend(Neon::detect().map(|_| Isa::Neon));
    levels.extend(NeonDots::<true>::prove().map(|_| Isa::NeonDotprod));
    IsaSet::new(levels)
}

/// The levels that this processor has: none that tare knows.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn detect() -> IsaSet {
    IsaSet::new([])
}

/// The processor's own name for itself.
pub fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(brand) = raw_cpuid::CpuId::new().get_processor_brand_string() {
        return brand.as_str().trim().to_string();
    }
    std::env::consts::ARCH.to_string()
}
