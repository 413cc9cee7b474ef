//! Tiles in the registers of Intel AMX, with lanes of AVX-512.

use super::{Product, TileKernel, Tiles};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512;
use std::arch::asm;
use std::arch::x86_64::*;
use tare_ops::Isa;
use tare_probe::amx::InUse;

/// AMX with BF16 is there, and this process has leave to use it; so is AVX-512 with BF16.
#[derive(Clone, Copy, Debug)]
pub struct Amx(Avx512);

/// Which of 32 words go where, so that those of the lower and the upper half take turns.
static IN_TURN: [u16; 32] = {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 32 {
        words[i] = (i / 2 + i % 2 * 16) as u16;
        i += 1;
    }
    words
};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
fn with_features<K: TileKernel>(t: Amx, kernel: K) {
    kernel.run(t);
}

/// Tile instructions on operands in memory. Registers 0 to 3 hold C, 4 and 5 are A, 6 and 7 are B. C lives in its registers
/// from one block to the next: compilers put nothing of their own into tile registers, and neither this crate nor what it
/// calls between two blocks (the memory copies of the C library) uses them.
macro_rules! tiles {
    ($($op:expr)*, $($name:ident: $value:expr),*) => {
        asm!(
            $($op,)*
            $($name = in(reg) $value,)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}

/// A step of R by S tiles, with the instructions that load A and B.
macro_rules! step {
    ($r:expr, $s:expr, $load_a:literal, $load_b:literal, $a0:expr, $a1:expr, $b0:expr, $b1:expr, $a_row:expr, $b_row:expr) => {
        match ($r, $s) {
            (2, 2) => tiles!(
                concat!($load_b, " tmm6, [{b0} + {t}*1]")
                concat!($load_a, " tmm4, [{a0} + {s}*1]")
                "tdpbf16ps tmm0, tmm4, tmm6"
                concat!($load_b, " tmm7, [{b1} + {t}*1]")
                "tdpbf16ps tmm1, tmm4, tmm7"
                concat!($load_a, " tmm5, [{a1} + {s}*1]")
                "tdpbf16ps tmm2, tmm5, tmm6"
                "tdpbf16ps tmm3, tmm5, tmm7",
                a0: $a0, a1: $a1, b0: $b0, b1: $b1, s: $a_row, t: $b_row),
            (2, _) => tiles!(
                concat!($load_b, " tmm6, [{b0} + {t}*1]")
                concat!($load_a, " tmm4, [{a0} + {s}*1]")
                "tdpbf16ps tmm0, tmm4, tmm6"
                concat!($load_a, " tmm5, [{a1} + {s}*1]")
                "tdpbf16ps tmm2, tmm5, tmm6",
                a0: $a0, a1: $a1, b0: $b0, s: $a_row, t: $b_row),
            (_, 2) => tiles!(
                concat!($load_a, " tmm4, [{a0} + {s}*1]")
                concat!($load_b, " tmm6, [{b0} + {t}*1]")
                "tdpbf16ps tmm0, tmm4, tmm6"
                concat!($load_b, " tmm7, [{b1} + {t}*1]")
                "tdpbf16ps tmm1, tmm4, tmm7",
                a0: $a0, b0: $b0, b1: $b1, s: $a_row, t: $b_row),
            _ => tiles!(
                concat!($load_b, " tmm6, [{b0} + {t}*1]")
                concat!($load_a, " tmm4, [{a0} + {s}*1]")
                "tdpbf16ps tmm0, tmm4, tmm6",
                a0: $a0, b0: $b0, s: $a_row, t: $b_row),
        }
    };
}

// SAFETY of every block below: an `Amx` exists only where `prove` found the features and the leave, tiles are set up in
// `compiled`, and where an address is taken, it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl Tiles for Amx {
    type L = Avx512;
    const ISA: Isa = Isa::Amx;

    fn prove() -> Option<Self> {
        let lanes = Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16"))?;
        tare_probe::amx::usable().available().map(|()| Self(lanes))
    }
    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn compiled<K: TileKernel>(self, kernel: K) {
        let _in_use = InUse::begin();
        unsafe { with_features(self, kernel) }
    }
    #[inline(always)]
    fn aside<K: TileKernel>(self, kernel: K) {
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    unsafe fn multiply(self, p: &Product, mut between: impl FnMut()) {
        let (r, s) = p.tiles;
        debug_assert!(p.steps > 0 && (1..=2).contains(&r) && (1..=2).contains(&s));
        let (c, down, right) = (p.c.at, p.c.at.wrapping_byte_add(p.c.down), p.c.at.wrapping_byte_add(p.c.right));
        let both = down.wrapping_byte_add(p.c.right);
        unsafe {
            if p.add {
                tiles!("tileloadd tmm0, [{c} + {row}*1]", c: c, row: p.c.row);
                if s == 2 {
                    tiles!("tileloadd tmm1, [{c} + {row}*1]", c: right, row: p.c.row);
                }
                if r == 2 {
                    tiles!("tileloadd tmm2, [{c} + {row}*1]", c: down, row: p.c.row);
                }
                if (r, s) == (2, 2) {
                    tiles!("tileloadd tmm3, [{c} + {row}*1]", c: both, row: p.c.row);
                }
            } else {
                tiles!("tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3",);
            }
            for step in 0..p.steps {
                let (a0, b0) = (p.a.tile(step), p.b.tile(step));
                let (a1, b1) = (a0.wrapping_add(p.a.second), b0.wrapping_add(p.b.second));
                let (a_row, b_row) = (p.a.row, p.b.row);
                match (p.a.passing, p.b.passing) {
                    (true, _) => step!(r, s, "tileloaddt1", "tileloadd", a0, a1, b0, b1, a_row, b_row),
                    (_, true) => step!(r, s, "tileloadd", "tileloaddt1", a0, a1, b0, b1, a_row, b_row),
                    _ => step!(r, s, "tileloadd", "tileloadd", a0, a1, b0, b1, a_row, b_row),
                }
                between();
            }
            tiles!("tilestored [{c} + {row}*1], tmm0", c: c, row: p.c.row);
            if s == 2 {
                tiles!("tilestored [{c} + {row}*1], tmm1", c: right, row: p.c.row);
            }
            if r == 2 {
                tiles!("tilestored [{c} + {row}*1], tmm2", c: down, row: p.c.row);
            }
            if (r, s) == (2, 2) {
                tiles!("tilestored [{c} + {row}*1], tmm3", c: both, row: p.c.row);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_pairs(self, to: *mut u8, even: __m512, odd: __m512) {
        unsafe {
            let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
            let in_turn = _mm512_loadu_si512((&raw const IN_TURN).cast());
            _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(in_turn, halves));
        }
    }
    #[inline(always)]
    unsafe fn store_row(self, to: *mut u8, first: __m512, second: __m512) {
        unsafe {
            let row: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(to.cast(), row);
        }
    }
    #[inline(always)]
    unsafe fn store_half_row(self, to: *mut u8, v: __m512) {
        unsafe {
            let half: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
            _mm256_storeu_si256(to.cast(), half);
        }
    }
}
