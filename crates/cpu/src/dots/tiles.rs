//! Products of bytes in tiles: eight rows of x with sixteen weight rows at once.
//!
//! A product is `C[m, n] = sum_k A[m, k] * B[k, n]` over 16 or 32 columns: A has eight rows of x in signed bytes, B the codes of a
//! panel in unsigned ones, four columns of 16 rows in 64 bytes, as [`Dots`] has them in a register, and C is 32-bit sums,
//! exact. So it gives what [`Dots::dot`] gives, bit by bit.
//!
//! A value of a type that implements [`DotTiles`] is a *proof* that the processor has the instructions and that the system lets
//! this process use them.

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod emulated;

use tare_ops::Isa;

use super::Dots;
use crate::coded::ROWS;

/// Rows of x in a product.
pub const TOGETHER: usize = 8;
/// Sums of a product.
pub const SUMS: usize = TOGETHER * ROWS;

/// A computation written once for all types of [`DotTiles`].
pub trait DotTileKernel {
    /// Runs it. Implementations are `#[inline(always)]`, so that the code takes on the instruction set of its caller.
    fn run<T: DotTiles>(self, t: T);
}

/// Products of tiles of bytes, and the registers that go with them.
pub trait DotTiles: Copy + Send + Sync + 'static {
    /// Registers for everything that is no product of tiles.
    type D: Dots;
    /// The level that the instructions belong to.
    const ISA: Isa;

    /// The proof, when this processor has the instructions and this process may use them.
    fn prove() -> Option<Self>;
    /// The registers of bytes that go with it.
    fn dots(self) -> Self::D;
    /// Runs a kernel compiled for this instruction set, with tile registers that are set up for products over `columns`
    /// columns, 16 or 32, and given back behind it.
    fn compiled<K: DotTileKernel>(self, columns: usize, kernel: K);

    /// A product over the columns that [`DotTiles::compiled`] was called with, to be called in it alone. Two that follow each
    /// other, one `odd` and one not, use registers of their own.
    ///
    /// # Safety
    /// Eight rows of so many bytes lie at `a`, `a_row` bytes from one to the next; at `b` a quarter as many times 64 bytes as
    /// there are columns; at `c` there is room for [`SUMS`]. Nobody else writes any of them.
    unsafe fn multiply(self, odd: bool, columns: usize, a: (*const i8, usize), b: *const u8, c: *mut i32);

    /// Stores 64 bytes.
    ///
    /// # Safety
    /// There is room for them at `to`.
    unsafe fn put(self, to: *mut u8, codes: <Self::D as Dots>::B);
    /// Sixteen sums.
    ///
    /// # Safety
    /// They lie at `from`.
    unsafe fn sums(self, from: *const i32) -> <Self::D as Dots>::I;
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 32;
    /// Longer than a row of A.
    const A_ROW: usize = 64;

    /// Products over `columns` columns, an odd one and another.
    struct Both<'a> {
        columns: usize,
        a: &'a [i8],
        b: &'a [u8],
        c: *mut i32,
    }

    impl DotTileKernel for Both<'_> {
        #[inline(always)]
        fn run<T: DotTiles>(self, t: T) {
            // SAFETY: rows of A and B as the test made them, room for two products.
            unsafe {
                for (i, odd) in [false, true].into_iter().enumerate() {
                    let (a, b) = (self.a.as_ptr().add(A_ROW / 2 * i), self.b.as_ptr().add(ROWS * COLUMNS * i));
                    t.multiply(odd, self.columns, (a, A_ROW), b, self.c.add(SUMS * i));
                }
                let first = t.dots().add(t.sums(self.c), t.dots().splat(-5));
                let mut lanes = [0.0f32; ROWS];
                crate::lanes::Lanes::store(t.dots().lanes(), lanes.as_mut_ptr(), t.dots().to_f32(first));
                assert!((0..ROWS).all(|n| lanes[n] == (*self.c.add(n) - 5) as f32), "{lanes:?}");
                let mut copy = [0u8; 64];
                t.put(copy.as_mut_ptr(), t.dots().load(self.b.as_ptr()));
                assert_eq!(copy, self.b[..64]);
            }
        }
    }

    fn sums_are_exact<T: DotTiles>(t: T) {
        for (seed, columns) in (0..32u32).flat_map(|seed| [(seed, 16), (seed, 32)]) {
            let mix = |i: u32| ((i + 97 * seed).wrapping_mul(2_654_435_761) >> 13) as u8;
            // The largest of both as well.
            let of = |i: usize, most: u8| if seed == 0 { most } else { mix(i as u32) };
            let a: Vec<i8> = (0..TOGETHER * A_ROW).map(|i| of(i, 129).cast_signed()).collect();
            let b: Vec<u8> = (0..2 * ROWS * COLUMNS).map(|i| of(i + 7777, 255)).collect();
            let mut c = vec![-1; 2 * SUMS];
            t.compiled(columns, Both { columns, a: &a, b: &b, c: c.as_mut_ptr() });
            for (i, got) in c.iter().enumerate() {
                let (product, m, n) = (i / SUMS, i % SUMS / ROWS, i % ROWS);
                let term = |k: usize| {
                    let x = a[m * A_ROW + product * A_ROW / 2 + k];
                    let code = b[product * ROWS * COLUMNS + k / 4 * 64 + 4 * n + k % 4];
                    i32::from(x) * i32::from(code)
                };
                assert_eq!(*got, (0..columns).map(term).sum::<i32>(), "seed {seed}, {columns} columns, sum {i}");
            }
        }
    }

    #[test]
    fn emulated_products_are_exact() {
        sums_are_exact(emulated::Emulated::prove().unwrap());
    }

    #[test]
    #[ignore = "needs a processor with AMX"]
    #[cfg(target_arch = "x86_64")]
    fn amx_products_of_bytes_are_exact() {
        let t = amx::AmxDots::prove();
        sums_are_exact(t.unwrap_or_else(|| panic!("AMX is {:?}", tare_probe::amx::usable())));
    }
}
