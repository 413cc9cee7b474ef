//! Products of bytes in plain Rust.

use super::{DotKernel, Dots};
use crate::lanes::array::{Array, each, indexed};
use crate::lanes::{LANES, Lanes};
use tare_ops::Isa;

impl Dots for Array {
    type L = Array;
    type B = [u8; 64];
    type I = [i32; LANES];
    const ISA: Isa = Isa::Portable;
    const WIDE: bool = false;
    const NARROW: bool = false;
    const WIDE_CENTER: i32 = 0;

    fn prove() -> Option<Self> {
        Lanes::detect()
    }
    #[inline(always)]
    fn lanes(self) -> Array {
        self
    }
    #[inline(always)]
    fn compiled<K: DotKernel>(self, kernel: K) {
        kernel.run(self);
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> [u8; 64] {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    fn shr(self, b: [u8; 64], n: u32) -> [u8; 64] {
        each(b, |b| b >> n)
    }
    #[inline(always)]
    fn shl(self, b: [u8; 64], n: u32) -> [u8; 64] {
        each(b, |b| b << n)
    }
    #[inline(always)]
    fn and(self, b: [u8; 64], mask: u8) -> [u8; 64] {
        each(b, |b| b & mask)
    }
    #[inline(always)]
    fn or(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        indexed(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn splat(self, i: i32) -> [i32; LANES] {
        [i; LANES]
    }
    // With checks for overflow it is long: kernels that take it in are slow to compile.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dot(self, acc: [i32; LANES], codes: [u8; 64], x: i32) -> [i32; LANES] {
        let x = each(x.to_ne_bytes(), u8::cast_signed);
        let product = |lane: usize, i: usize| i32::from(codes[4 * lane + i]) * i32::from(x[i]);
        indexed(|l| acc[l] + product(l, 0) + product(l, 1) + product(l, 2) + product(l, 3))
    }
    #[inline(always)]
    fn add(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        indexed(|l| a[l].wrapping_add(b[l]))
    }
    #[inline(always)]
    fn dot_wide(self, acc: [i32; LANES], codes: [u8; 64], x: i32) -> [i32; LANES] {
        self.dot(acc, codes, x)
    }
    #[inline(always)]
    fn join(self, high: [i32; LANES], low: [i32; LANES]) -> [i32; LANES] {
        indexed(|l| (high[l] << 7) + low[l])
    }
    #[inline(always)]
    fn to_f32(self, sums: [i32; LANES]) -> [f32; LANES] {
        each(sums, |i| i as f32)
    }
}
