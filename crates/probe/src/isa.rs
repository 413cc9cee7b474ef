//! Instruction-set features of this processor, found at run time.

use serde::{Deserialize, Serialize};

macro_rules! cpu_features {
    ($($(#[$doc:meta])* $field:ident = $name:literal),+ $(,)?) => {
        /// Which instructions this process may execute: the processor has them and the system saves their registers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CpuFeatures {
            $($(#[$doc])* pub $field: bool,)+
        }

        impl CpuFeatures {
            /// Names of the features that are present, in the order of this struct; the names that Linux and the
            /// compiler use.
            pub fn names(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if self.$field { names.push($name); })+
                names
            }
        }
    };
}

cpu_features! {
    /// 128-bit integer and float vectors.
    sse2 = "sse2",
    /// SSE4.1: dot products, blends, rounding.
    sse4_1 = "sse4.1",
    /// 256-bit float vectors.
    avx = "avx",
    /// 256-bit integer vectors.
    avx2 = "avx2",
    /// Fused multiply-add on 128- and 256-bit vectors.
    fma = "fma",
    /// F16 conversion.
    f16c = "f16c",
    /// int8 dot products on 256-bit vectors without AVX-512.
    avxvnni = "avxvnni",
    /// AVX-512 foundation.
    avx512f = "avx512f",
    /// AVX-512 on bytes and words.
    avx512bw = "avx512bw",
    /// AVX-512 instructions on shorter vectors.
    avx512vl = "avx512vl",
    /// AVX-512 on double and quad words.
    avx512dq = "avx512dq",
    /// AVX-512 byte permutes.
    avx512vbmi = "avx512vbmi",
    /// AVX-512 int8 and int16 dot products.
    avx512vnni = "avx512vnni",
    /// AVX-512 BF16 dot products.
    avx512bf16 = "avx512bf16",
    /// AVX-512 F16 arithmetic.
    avx512fp16 = "avx512fp16",
    /// AMX tile registers, with the system's leave to use them.
    amx_tile = "amx-tile",
    /// AMX int8 products.
    amx_int8 = "amx-int8",
    /// AMX BF16 products.
    amx_bf16 = "amx-bf16",
    /// Arm Advanced SIMD.
    neon = "neon",
    /// Arm int8 dot products.
    dotprod = "dotprod",
    /// Arm int8 matrix products.
    i8mm = "i8mm",
    /// Arm BF16 dot and matrix products.
    bf16 = "bf16",
    /// Arm F16 arithmetic.
    fp16 = "fp16",
}

impl CpuFeatures {
    /// The features of the processor that this process runs on.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        return x86::detect();
        #[cfg(target_arch = "aarch64")]
        return arm::detect();
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return Self::default();
    }

    /// Names of the kernel levels that these features make up, lowest first: the same names that end kernel keys.
    pub fn levels(&self) -> Vec<&'static str> {
        let avx512 = self.avx512f && self.avx512bw && self.avx512vl && self.avx512dq;
        let levels = [
            ("portable", true),
            ("neon", self.neon),
            ("neondotprod", self.neon && self.dotprod),
            ("avx2", self.avx2 && self.fma && self.f16c),
            ("avx512", avx512),
            ("avx512vnni", avx512 && self.avx512vnni),
            ("avx512bf16", avx512 && self.avx512bf16),
            ("amx", avx512 && self.avx512bf16 && self.amx_tile && self.amx_int8 && self.amx_bf16),
        ];
        levels.iter().filter(|(_, present)| *present).map(|(name, _)| *name).collect()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CpuFeatures;
    use std::arch::is_x86_feature_detected as has;

    pub(super) fn detect() -> CpuFeatures {
        let extended = raw_cpuid::CpuId::new().get_extended_feature_info();
        let amx = extended.filter(|_| crate::amx::usable().available().is_some());
        CpuFeatures {
            sse2: has!("sse2"),
            sse4_1: has!("sse4.1"),
            avx: has!("avx"),
            avx2: has!("avx2"),
            fma: has!("fma"),
            f16c: has!("f16c"),
            avxvnni: has!("avxvnni"),
            avx512f: has!("avx512f"),
            avx512bw: has!("avx512bw"),
            avx512vl: has!("avx512vl"),
            avx512dq: has!("avx512dq"),
            avx512vbmi: has!("avx512vbmi"),
            avx512vnni: has!("avx512vnni"),
            avx512bf16: has!("avx512bf16"),
            avx512fp16: has!("avx512fp16"),
            amx_tile: amx.as_ref().is_some_and(|e| e.has_amx_tile()),
            amx_int8: amx.as_ref().is_some_and(|e| e.has_amx_int8()),
            amx_bf16: amx.as_ref().is_some_and(|e| e.has_amx_bf16()),
            ..CpuFeatures::default()
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::CpuFeatures;
    use std::arch::is_aarch64_feature_detected as has;

    pub(super) fn detect() -> CpuFeatures {
        CpuFeatures {
            neon: has!("neon"),
            dotprod: has!("dotprod"),
            i8mm: has!("i8mm"),
            bf16: has!("bf16"),
            fp16: has!("fp16"),
            ..CpuFeatures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_needs_all_of_its_features() {
        let none = CpuFeatures::default();
        assert_eq!(none.levels(), ["portable"]);
        let avx2 = CpuFeatures { avx2: true, fma: true, f16c: true, ..none };
        assert_eq!(avx2.levels(), ["portable", "avx2"]);
        assert_eq!(CpuFeatures { f16c: false, ..avx2 }.levels(), ["portable"]);
        let avx512 = CpuFeatures { avx512f: true, avx512bw: true, avx512vl: true, avx512dq: true, ..avx2 };
        let amx = CpuFeatures { amx_tile: true, amx_int8: true, amx_bf16: true, avx512bf16: true, ..avx512 };
        assert_eq!(amx.levels(), ["portable", "avx2", "avx512", "avx512bf16", "amx"]);
        assert_eq!(CpuFeatures { avx512bf16: false, ..amx }.levels(), ["portable", "avx2", "avx512"]);
        assert!(!CpuFeatures { avx512dq: false, ..amx }.levels().contains(&"avx512bf16"));
        let arm = CpuFeatures { neon: true, dotprod: true, ..none };
        assert_eq!(arm.levels(), ["portable", "neon", "neondotprod"]);
        assert_eq!(CpuFeatures { dotprod: false, ..arm }.levels(), ["portable", "neon"]);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn agrees_with_the_kernel_about_this_processor() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> = crate::files::field(&cpuinfo, "flags").unwrap().split_whitespace().collect();
        let f = CpuFeatures::detect();
        let pairs = [
            ("avx2", f.avx2),
            ("fma", f.fma),
            ("f16c", f.f16c),
            ("avx512f", f.avx512f),
            ("avx512bw", f.avx512bw),
            ("avx512_vnni", f.avx512vnni),
            ("avx512_bf16", f.avx512bf16),
        ];
        for (flag, detected) in pairs {
            assert_eq!(flags.contains(&flag), detected, "{flag}");
        }
        // A processor may have tiles that this process may not use.
        let of_tiles = [("amx_tile", f.amx_tile), ("amx_int8", f.amx_int8), ("amx_bf16", f.amx_bf16)];
        assert!(of_tiles.iter().all(|(flag, detected)| !detected || flags.contains(flag)), "{of_tiles:?}");
    }

    #[test]
    fn survives_json() {
        let f = CpuFeatures::detect();
        let back: CpuFeatures = serde_json::from_str(&serde_json::to_string(&f).unwrap()).unwrap();
        assert_eq!(back, f);
        assert_eq!(back.names(), f.names());
    }
}
