//! Tiles in the registers of Intel AMX, with lanes of AVX-512.

use super::{Operand, Product, Sums, TileKernel, Tiles};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;
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

/// A product: C from memory or zeros, one round for each step, C to memory. Registers 0 to 3 hold C, 4 and 5 are A, 6 and 7
/// are B.
macro_rules! product {
    ($p:expr, zero: $($zero:literal)*, load: $($load:literal)*, step: $($step:literal)*, store: $($store:literal)*) => {
        asm!(
            "mov {a0}, [{p} + {c_at}]",
            "mov {s}, [{p} + {c_row}]",
            "mov {a1}, [{p} + {c_down}]",
            "mov {b0}, [{p} + {c_right}]",
            "add {a1}, {a0}",
            "lea {b1}, [{a1} + {b0}]",
            "add {b0}, {a0}",
            "cmp qword ptr [{p} + {add}], 0",
            "jne 2f",
            $($zero,)*
            "jmp 3f",
            "2:",
            $($load,)*
            "3:",
            "mov {a0}, [{p} + {a} + {at}]",
            "mov {a1}, [{p} + {a} + {second}]",
            "mov {s}, [{p} + {a} + {row}]",
            "mov {a_step}, [{p} + {a} + {step}]",
            "mov {b0}, [{p} + {b} + {at}]",
            "mov {b1}, [{p} + {b} + {second}]",
            "mov {t}, [{p} + {b} + {row}]",
            "mov {b_step}, [{p} + {b} + {step}]",
            "mov {n}, [{p} + {steps}]",
            "add {a1}, {a0}",
            "add {b1}, {b0}",
            "4:",
            $($step,)*
            "add {a0}, {a_step}",
            "add {a1}, {a_step}",
            "add {b0}, {b_step}",
            "add {b1}, {b_step}",
            "dec {n}",
            "jnz 4b",
            "mov {a0}, [{p} + {c_at}]",
            "mov {s}, [{p} + {c_row}]",
            "mov {a1}, [{p} + {c_down}]",
            "mov {b0}, [{p} + {c_right}]",
            "add {a1}, {a0}",
            "lea {b1}, [{a1} + {b0}]",
            "add {b0}, {a0}",
            $($store,)*
            p = in(reg) &raw const *$p,
            a = const offset_of!(Product, a),
            b = const offset_of!(Product, b),
            at = const offset_of!(Operand, at),
            row = const offset_of!(Operand, row),
            step = const offset_of!(Operand, step),
            second = const offset_of!(Operand, second),
            c_at = const offset_of!(Product, c) + offset_of!(Sums, at),
            c_row = const offset_of!(Product, c) + offset_of!(Sums, row),
            c_down = const offset_of!(Product, c) + offset_of!(Sums, down),
            c_right = const offset_of!(Product, c) + offset_of!(Sums, right),
            steps = const offset_of!(Product, steps),
            add = const offset_of!(Product, add),
            a0 = out(reg) _,
            a1 = out(reg) _,
            b0 = out(reg) _,
            b1 = out(reg) _,
            s = out(reg) _,
            t = out(reg) _,
            a_step = out(reg) _,
            b_step = out(reg) _,
            n = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
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
    unsafe fn multiply<const R: usize, const S: usize>(self, p: &Product) {
        const { assert!(0 < R && R <= 2 && 0 < S && S <= 2) };
        debug_assert!(p.steps > 0);
        unsafe {
            match (R, S) {
                (2, 2) => product!(p,
                    zero: "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3",
                    load: "tileloadd tmm0, [{a0} + {s}*1]" "tileloadd tmm1, [{b0} + {s}*1]"
                          "tileloadd tmm2, [{a1} + {s}*1]" "tileloadd tmm3, [{b1} + {s}*1]",
                    step: "tileloadd tmm6, [{b0} + {t}*1]"
                          "tileloadd tmm4, [{a0} + {s}*1]"
                          "tdpbf16ps tmm0, tmm4, tmm6"
                          "tileloadd tmm7, [{b1} + {t}*1]"
                          "tdpbf16ps tmm1, tmm4, tmm7"
                          "tileloadd tmm5, [{a1} + {s}*1]"
                          "tdpbf16ps tmm2, tmm5, tmm6"
                          "tdpbf16ps tmm3, tmm5, tmm7",
                    store: "tilestored [{a0} + {s}*1], tmm0" "tilestored [{b0} + {s}*1], tmm1"
                           "tilestored [{a1} + {s}*1], tmm2" "tilestored [{b1} + {s}*1], tmm3"),
                (2, _) => product!(p,
                    zero: "tilezero tmm0" "tilezero tmm2",
                    load: "tileloadd tmm0, [{a0} + {s}*1]" "tileloadd tmm2, [{a1} + {s}*1]",
                    step: "tileloadd tmm6, [{b0} + {t}*1]"
                          "tileloadd tmm4, [{a0} + {s}*1]"
                          "tdpbf16ps tmm0, tmm4, tmm6"
                          "tileloadd tmm5, [{a1} + {s}*1]"
                          "tdpbf16ps tmm2, tmm5, tmm6",
                    store: "tilestored [{a0} + {s}*1], tmm0" "tilestored [{a1} + {s}*1], tmm2"),
                (_, 2) => product!(p,
                    zero: "tilezero tmm0" "tilezero tmm1",
                    load: "tileloadd tmm0, [{a0} + {s}*1]" "tileloadd tmm1, [{b0} + {s}*1]",
                    step: "tileloadd tmm4, [{a0} + {s}*1]"
                          "tileloadd tmm6, [{b0} + {t}*1]"
                          "tdpbf16ps tmm0, tmm4, tmm6"
                          "tileloadd tmm7, [{b1} + {t}*1]"
                          "tdpbf16ps tmm1, tmm4, tmm7",
                    store: "tilestored [{a0} + {s}*1], tmm0" "tilestored [{b0} + {s}*1], tmm1"),
                _ => product!(p,
                    zero: "tilezero tmm0",
                    load: "tileloadd tmm0, [{a0} + {s}*1]",
                    step: "tileloadd tmm4, [{a0} + {s}*1]"
                          "tileloadd tmm6, [{b0} + {t}*1]"
                          "tdpbf16ps tmm0, tmm4, tmm6",
                    store: "tilestored [{a0} + {s}*1], tmm0"),
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
}
