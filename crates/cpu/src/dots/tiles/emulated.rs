//! Products of bytes in tiles in plain Rust: for tests on hosts that have none. Slow.

use super::{DotTileKernel, DotTiles, SUMS};
use crate::coded::ROWS;
use crate::dots::Dots;
use crate::lanes::array::Array;
use tare_ops::Isa;

/// Tiles made of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Emulated(Array);

impl DotTiles for Emulated {
    type D = Array;
    const ISA: Isa = Isa::Portable;

    fn prove() -> Option<Self> {
        <Array as Dots>::prove().map(Self)
    }
    #[inline(always)]
    fn dots(self) -> Array {
        self.0
    }
    #[inline(always)]
    fn compiled<K: DotTileKernel>(self, _: usize, kernel: K) {
        kernel.run(self);
    }

    // By itself, so that it is compiled once.
    #[inline(never)]
    unsafe fn multiply(self, _: bool, columns: usize, (a, a_row): (*const i8, usize), b: *const u8, c: *mut i32) {
        for i in 0..SUMS {
            let (m, n) = (i / ROWS, i % ROWS);
            // SAFETY: the caller's promise.
            unsafe {
                let term =
                    |k: usize| i32::from(*a.add(m * a_row + k)) * i32::from(*b.add(k / 4 * 4 * ROWS + 4 * n + k % 4));
                *c.add(i) = (0..columns).map(term).sum();
            }
        }
    }
    #[inline(always)]
    unsafe fn put(self, to: *mut u8, codes: [u8; 64]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; 64]>().write_unaligned(codes) };
    }
    #[inline(always)]
    unsafe fn sums(self, from: *const i32) -> [i32; ROWS] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i32; ROWS]>().read_unaligned() }
    }
}
