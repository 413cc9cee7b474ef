//! Instruction-set levels that kernels are written for, as data.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A level that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// Plain Rust; runs everywhere.
    Portable,
    /// Arm Advanced SIMD.
    Neon,
    /// Advanced SIMD with dot products of bytes.
    NeonDotprod,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// AVX-512 with BF16 dot products.
    Avx512Bf16,
    /// AMX tiles with int8 and bf16 products.
    Amx,
    /// A CUDA device; which one, the backend says.
    Cuda,
    /// A CUDA device whose warpgroups multiply tiles: `sm_90a`.
    Hopper,
}

impl Isa {
    /// The last part of a kernel key.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::NeonDotprod => "neondotprod",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Cuda => "cuda",
            Isa::Hopper => "hopper",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The levels that a host has. Chosen once at load; a test or `--isa` may take levels away, never add one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsaSet(Vec<Isa>);

impl IsaSet {
    /// The set of these levels; `portable` is always in it.
    pub fn new(levels: impl IntoIterator<Item = Isa>) -> Self {
        let mut v: Vec<Isa> = levels.into_iter().chain([Isa::Portable]).collect();
        v.sort_unstable();
        v.dedup();
        Self(v)
    }

    /// Whether the host has `level`.
    pub fn has(&self, level: Isa) -> bool {
        self.0.contains(&level)
    }

    /// The levels in rising order.
    pub fn levels(&self) -> &[Isa] {
        &self.0
    }

    /// Only the levels up to `level`.
    #[must_use]
    pub fn up_to(&self, level: Isa) -> Self {
        Self::new(self.0.iter().copied().filter(|l| *l <= level))
    }
}
