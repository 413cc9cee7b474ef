//! Pairs of BF16 in plain Rust: for tests on hosts that have no instruction for them. Slow.

use super::{PAIRS, PairKernel, Pairs};
use crate::lanes::array::{Array, indexed};
use crate::lanes::{LANES, Lanes};
use tare_ops::Isa;
use tare_ops::reference::linear::round_bf16;

/// Pairs made of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Emulated(Array);

impl Pairs for Emulated {
    type L = Array;
    const ISA: Isa = Isa::Portable;

    fn prove() -> Option<Self> {
        <Array as Lanes>::detect().map(Self)
    }
    #[inline(always)]
    fn lanes(self) -> Array {
        self.0
    }
    #[inline(always)]
    fn compiled<K: PairKernel>(self, kernel: K) {
        kernel.run(self);
    }

    // What is long stands by itself, so that it is compiled once.
    #[inline(never)]
    unsafe fn store(self, to: *mut u16, first: [f32; LANES], second: [f32; LANES]) {
        for (i, x) in first.into_iter().chain(second).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.add(i).write_unaligned((round_bf16(x).to_bits() >> 16) as u16) };
        }
    }
    #[inline(never)]
    unsafe fn dot(self, acc: [f32; LANES], a: *const u16, b: *const u16) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (a.cast::<[u16; PAIRS]>().read_unaligned(), b.cast::<[u16; PAIRS]>().read_unaligned()) };
        let number = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        indexed(|i| {
            let odd = number(a[2 * i + 1]).mul_add(number(b[2 * i + 1]), acc[i]);
            number(a[2 * i]).mul_add(number(b[2 * i]), odd)
        })
    }
    #[inline(always)]
    unsafe fn dot_pair(self, acc: [f32; LANES], row: [f32; LANES], pair: *const u16) -> [f32; LANES] {
        // SAFETY: the caller's promise.
        let pair = [unsafe { pair.cast::<[u16; 2]>().read_unaligned() }; LANES];
        // SAFETY: 32 BF16 each.
        unsafe { self.dot(acc, row.as_ptr().cast(), pair.as_ptr().cast()) }
    }
}
