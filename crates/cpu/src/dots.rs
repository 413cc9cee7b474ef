//! Products of bytes: what [`Lanes`] is for F32, for weights in codes and activations in integers.
//!
//! A register holds sixteen weight rows of four codes each, one row in each 32-bit lane, and meets four activations of one
//! row of x. Sums are integers and exact, so that neither width nor order can be seen in them; they become lanes of F32,
//! one weight row in each.
//!
//! A value of a type that implements [`Dots`] is a *proof* that the processor has the instructions, as with [`Lanes`].

mod array;
#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod tiles;
#[cfg(target_arch = "x86_64")]
pub mod vnni;

use tare_ops::Isa;

use crate::lanes::Lanes;

/// Sixteen F32 beside tiles `T`.
pub type DotTileLanes<T> = <<<T as tiles::DotTiles>::D as Dots>::L as Lanes>::V;

/// A computation written once for all types of [`Dots`].
pub trait DotKernel {
    /// Runs it. Implementations are `#[inline(always)]`, so that the code takes on the instruction set of its caller.
    fn run<D: Dots>(self, d: D);
}

/// Registers of 16 rows of four codes (`B`) and of 16 sums (`I`), and what kernels do with them.
pub trait Dots: Copy + Send + Sync + 'static {
    /// The lanes that sums become.
    type L: Lanes;
    /// 64 bytes: four codes of each of 16 weight rows.
    type B: Copy;
    /// 16 i32.
    type I: Copy;
    /// The level that the instructions belong to.
    const ISA: Isa;
    /// Whether sums of eight rows of x fit the registers.
    const WIDE: bool;
    /// Whether products with codes of few bits are added up in narrow sums first, which take fewer instructions.
    const NARROW: bool;
    /// What [`Dots::dot_wide`] takes off every code.
    const WIDE_CENTER: i32;

    /// The proof, when this processor has the instructions.
    fn prove() -> Option<Self>;
    /// The lanes of F32 that go with it.
    fn lanes(self) -> Self::L;
    /// Runs a kernel compiled for this instruction set.
    fn compiled<K: DotKernel>(self, kernel: K);

    /// 64 bytes.
    ///
    /// # Safety
    /// 64 bytes lie at `p`; no alignment is needed.
    unsafe fn load(self, p: *const u8) -> Self::B;
    /// Each byte moved right by `n < 8` bits; bits that come from outside of the byte are unspecified.
    fn shr(self, b: Self::B, n: u32) -> Self::B;
    /// Each byte moved left by `n < 8` bits; bits that come from outside of the byte are unspecified.
    fn shl(self, b: Self::B, n: u32) -> Self::B;
    /// `b & mask`, byte by byte.
    fn and(self, b: Self::B, mask: u8) -> Self::B;
    /// `a | b`
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// 16 times `i`.
    fn splat(self, i: i32) -> Self::I;
    /// Adds to each lane the products of its four codes, all below 128, with the four signed bytes of `x`, as they lie in
    /// memory.
    fn dot(self, acc: Self::I, codes: Self::B, x: i32) -> Self::I;
    /// `a + b`, what does not fit dropped.
    fn add(self, a: Self::I, b: Self::I) -> Self::I;
    /// What [`Dots::dot`] adds, to narrow sums: from zeros on, up to [`narrow`] times. Where [`Dots::NARROW`] is false
    /// they are ordinary sums.
    #[inline(always)]
    fn dot_narrow(self, sums: Self::I, codes: Self::B, x: i32) -> Self::I {
        self.dot(sums, codes, x)
    }
    /// Adds narrow sums.
    #[inline(always)]
    fn widen(self, acc: Self::I, sums: Self::I) -> Self::I {
        self.add(acc, sums)
    }
    /// What [`Dots::dot`] does, for codes of 8 bits, each less [`Dots::WIDE_CENTER`]; no byte of `x` is -128.
    fn dot_wide(self, acc: Self::I, codes: Self::B, x: i32) -> Self::I;
    /// `128 * high + low`
    fn join(self, high: Self::I, low: Self::I) -> Self::I;
    /// Sums as F32, to nearest, ties to even.
    fn to_f32(self, sums: Self::I) -> <Self::L as Lanes>::V;
}

/// How many times [`Dots::dot_narrow`] may be called with codes of so many bits, fewer than 8, before [`Dots::widen`]: each adds
/// two products of at most `(2^bits - 1) * 127` to 16 bits.
pub const fn narrow(bits: usize) -> usize {
    let each = 2 * ((1 << bits) - 1) * 127;
    i16::MAX as usize / each
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LANES, array::Array};

    /// Every operation, on codes and activations of all sizes.
    struct Everything {
        codes: [u8; 64],
        x: [i8; 4],
        out: *mut [f32; LANES],
    }

    impl DotKernel for &Everything {
        #[inline(always)]
        fn run<D: Dots>(self, d: D) {
            // SAFETY: 64 codes, and room for as many vectors.
            unsafe {
                let x = i32::from_ne_bytes(self.x.map(i8::cast_unsigned));
                let b = d.load(self.codes.as_ptr());
                let five = d.or(d.and(b, 15), d.and(d.shr(b, 3), 16));
                let six = d.or(d.and(d.shr(b, 4), 15), d.and(d.shl(b, 2), 48));
                let sums =
                    [d.dot(d.splat(-8), d.and(b, 127), x), d.dot(d.splat(0), five, x), d.dot(d.splat(7), six, x)];
                let l = d.lanes();
                for (i, sum) in sums.into_iter().enumerate() {
                    l.store(self.out.add(i).cast(), d.to_f32(sum));
                }
                let center = self.x.iter().map(|x| i32::from(*x)).sum::<i32>() * D::WIDE_CENTER;
                let wide = d.dot_wide(d.splat(center), b, x);
                l.store(self.out.add(3).cast(), d.to_f32(wide));
                // Beyond 2^24, so that it is rounded.
                l.store(self.out.add(4).cast(), d.to_f32(d.join(d.join(wide, d.splat(1)), sums[1])));
                // As many as narrow sums take, of the largest codes among others.
                for (i, bits) in [4, 5, 6].into_iter().enumerate() {
                    let some = |n: usize| {
                        let few = if n.is_multiple_of(2) { b } else { d.shr(b, 8 - bits) };
                        d.and(few, (1 << bits) - 1)
                    };
                    let times = narrow(bits as usize);
                    let short = (0..times).fold(d.splat(0), |sums, n| d.dot_narrow(sums, some(n), x));
                    l.store(self.out.add(5 + i).cast(), d.to_f32(d.widen(d.splat(-9), short)));
                    let whole = (0..times).fold(d.splat(-9), |sums, n| d.dot(sums, some(n), x));
                    l.store(self.out.add(8 + i).cast(), d.to_f32(whole));
                }
            }
        }
    }

    #[test]
    fn narrow_sums_take_whole_runs_of_codes() {
        assert_eq!([4, 5, 6].map(narrow), [8, 4, 2]);
    }

    #[test]
    fn every_width_gives_the_same_sums() {
        for seed in 0..64u32 {
            let mix = |i: u32| ((i + 97 * seed).wrapping_mul(2_654_435_761) >> 13) as u8;
            let mut codes: [u8; 64] = std::array::from_fn(|i| mix(i as u32));
            // The largest and the smallest, all together: what overflows 16 bits is seen.
            codes[..8].copy_from_slice(&[255, 255, 255, 255, 0, 0, 128, 127]);
            let x = match seed {
                0 => [127; 4],
                1 => [-127; 4],
                _ => std::array::from_fn(|i| (mix(i as u32 + 64) as i8).max(-127)),
            };
            let run = |how: &dyn Fn(&Everything)| {
                let mut out = [[0.0f32; LANES]; 11];
                how(&Everything { codes, x, out: out.as_mut_ptr() });
                assert_eq!(out[5..8], out[8..11]);
                out
            };
            let want = run(&|k| <Array as Dots>::prove().unwrap().compiled(k));
            let lane = |i: usize| (0..4).map(|b| i32::from(codes[4 * i + b]) * i32::from(x[b])).sum::<i32>();
            assert_eq!(want[3], std::array::from_fn(|i| lane(i) as f32));
            #[cfg(target_arch = "x86_64")]
            {
                if let Some(d) = <crate::lanes::avx2::Avx2 as Dots>::prove() {
                    assert_eq!(run(&|k| d.compiled(k)), want, "avx2");
                }
                if let Some(d) = vnni::Vnni::prove() {
                    assert_eq!(run(&|k| d.compiled(k)), want, "avx512vnni");
                }
            }
            #[cfg(target_arch = "aarch64")]
            {
                if let Some(d) = neon::NeonDots::<false>::prove() {
                    assert_eq!(run(&|k| d.compiled(k)), want, "neon");
                }
                if let Some(d) = neon::NeonDots::<true>::prove() {
                    assert_eq!(run(&|k| d.compiled(k)), want, "neondotprod");
                }
            }
        }
    }
}
