//! Products of bytes in the registers of Intel AMX, with AVX-512 and VNNI beside them.

use super::{DotTileKernel, DotTiles, TOGETHER};
use crate::dots::Dots;
use crate::dots::vnni::Vnni;
use std::arch::asm;
use std::arch::x86_64::*;
use tare_ops::Isa;
use tare_probe::amx::InUse;

/// AMX with int8 is there, and this process has leave to use it; so is AVX-512 with VNNI.
#[derive(Clone, Copy, Debug)]
pub struct AmxDots(Vnni);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn with_features<K: DotTileKernel>(t: AmxDots, kernel: K) {
    kernel.run(t);
}

/// A product from memory to memory, with registers for C, A and B. Nothing else uses tile registers between two of them.
macro_rules! product {
    ($c:literal, $a:literal, $b:literal, $at:expr, $a_row:expr, $of:expr, $to:expr) => {
        asm!(
            concat!("tilezero ", $c),
            concat!("tileloadd ", $b, ", [{b} + {row}*1]"),
            concat!("tileloadd ", $a, ", [{a} + {a_row}*1]"),
            concat!("tdpbsud ", $c, ", ", $a, ", ", $b),
            concat!("tilestored [{c} + {row}*1], ", $c),
            a = in(reg) $at,
            a_row = in(reg) $a_row,
            b = in(reg) $of,
            c = in(reg) $to,
            row = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}

// SAFETY of every block below: an `AmxDots` exists only where `prove` found the features and the leave, tiles are set up in
// `compiled`, and where an address is taken, it is the caller's, who promises what the trait asks for.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all of them, stated above")]
impl DotTiles for AmxDots {
    type D = Vnni;
    const ISA: Isa = Isa::Amx;

    fn prove() -> Option<Self> {
        let dots = Vnni::prove()?;
        tare_probe::amx::usable().available().map(|()| Self(dots))
    }
    #[inline(always)]
    fn dots(self) -> Vnni {
        self.0
    }
    #[inline(always)]
    fn compiled<K: DotTileKernel>(self, columns: usize, kernel: K) {
        let _in_use = InUse::narrow(TOGETHER as u8, columns as u8);
        unsafe { with_features(self, kernel) }
    }

    #[inline(always)]
    unsafe fn multiply(self, odd: bool, _: usize, (a, a_row): (*const i8, usize), b: *const u8, c: *mut i32) {
        unsafe {
            if odd {
                product!("tmm1", "tmm5", "tmm7", a, a_row, b, c);
            } else {
                product!("tmm0", "tmm4", "tmm6", a, a_row, b, c);
            }
        }
    }
    #[inline(always)]
    unsafe fn put(self, to: *mut u8, codes: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), codes) }
    }
    #[inline(always)]
    unsafe fn sums(self, from: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
}
