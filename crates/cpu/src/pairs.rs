//! Sums of products of pairs of BF16: what [`Lanes`] is for F32, for numbers that meet as they lie in memory.
//!
//! Lane `i` of a sum takes elements `2 i` and `2 i + 1` of 32: both products are added to it, each exact before it is added, in
//! whatever order. Numbers below the least normal one may count as 0, whether they come in or go out.
//!
//! A value of a type that implements [`Pairs`] is a *proof* that the processor has the instructions, as with [`Lanes`].

pub mod emulated;
#[cfg(target_arch = "x86_64")]
pub mod vdpbf16;

use tare_ops::Isa;

use crate::lanes::{LANES, Lanes};
use crate::rows::Rows;

/// BF16 that meet at once.
pub const PAIRS: usize = 32;

/// A computation written once for all types of [`Pairs`].
pub trait PairKernel {
    /// Runs it. Implementations are `#[inline(always)]`, so that the code takes on the instruction set of its caller.
    fn run<P: Pairs>(self, p: P);
}

/// Products of pairs, and the lanes that go with them.
pub trait Pairs: Copy + Send + Sync + 'static {
    /// The lanes that sums are.
    type L: Lanes;
    /// The level that the instructions belong to.
    const ISA: Isa;

    /// The proof, when this processor has the instructions.
    fn prove() -> Option<Self>;
    /// The lanes of F32 that go with it.
    fn lanes(self) -> Self::L;
    /// Runs a kernel compiled for this instruction set.
    fn compiled<K: PairKernel>(self, kernel: K);

    /// Rounds 32 numbers to BF16, to nearest even: those of `first`, then those of `second`.
    ///
    /// # Safety
    /// 64 bytes may be written at `to`.
    unsafe fn store(self, to: *mut u16, first: <Self::L as Lanes>::V, second: <Self::L as Lanes>::V);
    /// Adds to each lane the products of its two pairs.
    ///
    /// # Safety
    /// 32 BF16 lie at `a` and at `b`; no alignment is needed.
    unsafe fn dot(self, acc: <Self::L as Lanes>::V, a: *const u16, b: *const u16) -> <Self::L as Lanes>::V;
    /// Adds to each lane the products of its pair of `row`, 32 BF16 that were moved as F32, with the two at `pair`.
    ///
    /// # Safety
    /// Two BF16 lie at `pair`.
    unsafe fn dot_pair(
        self,
        acc: <Self::L as Lanes>::V,
        row: <Self::L as Lanes>::V,
        pair: *const u16,
    ) -> <Self::L as Lanes>::V;
}

/// Rows of x to BF16, each with the columns that pad it.
///
/// # Safety
/// x has `rows` rows, and there is room for them at `to`.
#[inline(always)]
pub unsafe fn round<P: Pairs>(p: P, x: Rows, rows: usize, to: *mut u16) {
    let l = p.lanes();
    for t in 0..rows {
        let (from, to) = (x.row(t).cast_const(), to.wrapping_add(t * x.stride));
        for k in (0..x.stride).step_by(PAIRS) {
            // SAFETY: x is padded to whole vectors, as is the room for it.
            unsafe { p.store(to.add(k), l.load(from.add(k)), l.load(from.add(k + LANES))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// Numbers to be rounded, others to meet them, and what comes of it.
    struct Scene {
        x: [f32; PAIRS],
        w: [u16; PAIRS],
        rounded: [u16; PAIRS],
        sums: [f32; LANES],
    }

    impl PairKernel for &mut Scene {
        #[inline(always)]
        fn run<P: Pairs>(self, p: P) {
            let l = p.lanes();
            // SAFETY: 32 of each, and 16 sums.
            unsafe {
                let (first, second) = (l.load(self.x.as_ptr()), l.load(self.x.as_ptr().add(LANES)));
                p.store(self.rounded.as_mut_ptr(), first, second);
                let sums = p.dot(l.load(self.sums.as_ptr()), self.rounded.as_ptr(), self.w.as_ptr());
                l.store(self.sums.as_mut_ptr(), sums);
            }
        }
    }

    fn adds_both_products<P: Pairs>(p: P) {
        for seed in 0..64u32 {
            let noise =
                |i: usize| ((i as u32 + 97 * seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let before: [f32; LANES] = std::array::from_fn(|i| noise(i + 100));
            let mut scene = Scene {
                x: std::array::from_fn(noise),
                w: std::array::from_fn(|i| bf16::from_f32(noise(i + 50)).to_bits()),
                rounded: [0; PAIRS],
                sums: before,
            };
            // Ties on both sides of an even number.
            (scene.x[3], scene.x[8]) = (f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000));
            p.compiled(&mut scene);
            for i in 0..PAIRS {
                assert_eq!(scene.rounded[i], bf16::from_f32(scene.x[i]).to_bits(), "{}", scene.x[i]);
            }
            let number = |bits: u16| f64::from(bf16::from_bits(bits).to_f32());
            for (i, (before, sum)) in before.iter().zip(&scene.sums).enumerate() {
                let [a, b] = [2 * i, 2 * i + 1].map(|k| number(scene.rounded[k]) * number(scene.w[k]));
                let (want, size) = (f64::from(*before) + a + b, f64::from(*before).abs() + a.abs() + b.abs());
                assert!((f64::from(*sum) - want).abs() <= size * 2f64.powi(-22), "seed {seed}, lane {i}");
            }
        }
    }

    #[test]
    fn emulated_pairs_are_added() {
        adds_both_products(emulated::Emulated::prove().unwrap());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn pairs_of_the_processor_are_added() {
        vdpbf16::Avx512Bf16::prove().into_iter().for_each(adds_both_products);
    }
}
