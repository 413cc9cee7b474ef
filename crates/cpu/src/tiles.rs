//! Products of BF16 tiles: what [`Lanes`] is for sixteen numbers, for sixteen rows of them.
//!
//! A tile has 16 rows of 64 bytes. With A of 16 rows of 32 BF16, and B of 16 pairs of rows, a step adds
//! `C[i, j] += sum_k A[i, k] * B[k, j]` over 32 k to a C of 16 rows of 16 F32. Row `p` of B holds rows `2 p` and `2 p + 1` of
//! the matrix, element by element beside each other: `B[2 p, 0], B[2 p + 1, 0], B[2 p, 1]...`.
//!
//! Two by two tiles of C stay in registers while A and B pass by: each tile that is read is used twice. What is in registers
//! never becomes a Rust value: [`Tiles::multiply`] goes from memory to memory. While its products run, there is time for
//! other work on vectors, which it asks for after each step.
//!
//! The arithmetic is that of `TDPBF16PS` (Intel SDM vol. 2): in a step, one sum over even k and one over odd k, each a chain of
//! fused multiply-adds from 0; their sum is added to C. Rounded to nearest even; numbers below the least normal one count as
//! 0, whether they come in or go out. [`emulated`] does the same on any processor, for tests.
//!
//! A value of a type that implements [`Tiles`] is a *proof* that the processor has the instructions and that the system lets
//! this process use them, as with [`Lanes`].

#[cfg(target_arch = "x86_64")]
pub mod amx;
pub mod emulated;

use tare_ops::Isa;

use crate::lanes::Lanes;

/// Rows of a tile: of A and of C; pairs of rows of B.
pub const ROWS: usize = 16;
/// Columns of A, and rows of the matrix in B, that a step takes.
pub const STEP: usize = 32;
/// Bytes of a row of a tile.
pub const ROW_BYTES: usize = 64;
/// Bytes of a tile whose rows lie behind each other.
pub const TILE_BYTES: usize = ROWS * ROW_BYTES;

/// A computation written once for all types of [`Tiles`].
pub trait TileKernel {
    /// Runs it. Implementations are `#[inline(always)]`, so that the code takes on the instruction set of its caller.
    fn run<T: Tiles>(self, t: T);
}

/// Where the tiles of A or B lie. All distances are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The first tile of the first step.
    pub at: *const u8,
    /// From one row of a tile to the next.
    pub row: usize,
    /// From the tile of one step to that of the next.
    pub step: usize,
    /// From the first tile to the one below it (A) or beside it (B), where there are two.
    pub second: usize,
    /// Whether these tiles pass by once while those of the other side are used again, and should not push them out of L1.
    pub passing: bool,
}

impl Operand {
    /// Tiles of [`TILE_BYTES`], those of a sum over k behind each other; `second` bytes on lie those of the second tile.
    #[inline(always)]
    pub const fn packed(at: *const u8, second: usize) -> Self {
        Self { at, row: ROW_BYTES, step: TILE_BYTES, second, passing: false }
    }

    /// The same tiles, as those that pass by.
    #[inline(always)]
    pub const fn passing(self) -> Self {
        Self { passing: true, ..self }
    }

    /// The tile of a step.
    #[inline(always)]
    pub(crate) const fn tile(&self, step: usize) -> *const u8 {
        self.at.wrapping_add(step * self.step)
    }
}

/// Where the tiles of C lie, in F32. All distances are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// The first tile.
    pub at: *mut f32,
    /// From one row of a tile to the next.
    pub row: usize,
    /// From a tile to the one below it, where A has two.
    pub down: usize,
    /// From a tile to the one beside it, where B has two.
    pub right: usize,
}

impl Sums {
    /// Tiles of [`TILE_BYTES`] behind each other: those beside each other first.
    #[inline(always)]
    pub const fn packed(at: *mut f32) -> Self {
        Self { at, row: ROW_BYTES, down: 2 * TILE_BYTES, right: TILE_BYTES }
    }
}

/// `C = A * B`, or `C += A * B`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// One tile below the other.
    pub a: Operand,
    /// One tile beside the other.
    pub b: Operand,
    /// All of them.
    pub c: Sums,
    /// Tiles of A, and of B: 1 or 2 each.
    pub tiles: (usize, usize),
    /// Steps of [`STEP`] columns; 1 at least.
    pub steps: usize,
    /// Whether to add to what C holds; else to begin from zeros.
    pub add: bool,
}

/// Products of tiles, and the vectors that go with them.
pub trait Tiles: Copy + Send + Sync + 'static {
    /// Lanes for everything that is no product.
    type L: Lanes;
    /// The level that the instructions belong to.
    const ISA: Isa;

    /// The proof, when this processor has the instructions and this process may use them.
    fn prove() -> Option<Self>;
    /// The lanes of F32 that go with it.
    fn lanes(self) -> Self::L;
    /// Runs a kernel compiled for this instruction set, with tile registers that are set up for it and given back behind
    /// it.
    fn compiled<K: TileKernel>(self, kernel: K);
    /// Runs a kernel without products, compiled for this instruction set once, so that callers need not take it in.
    fn aside<K: TileKernel>(self, kernel: K);

    /// Multiplies one or two tiles of A with one or two of B, and calls `between` after each step: for work on vectors, and
    /// nothing with tiles. To be called in [`Tiles::compiled`] alone.
    ///
    /// # Safety
    /// Every tile of `p` that its counts and steps ask for lies where it says: 16 rows of 64 bytes, no alignment needed, with C
    /// apart from A and B. Nobody else writes any of them, nor reads C; nor does `between`.
    unsafe fn multiply(self, p: &Product, between: impl FnMut());

    /// Rounds 16 pairs to BF16, to nearest even: `even[0], odd[0], even[1]...`, a row of B.
    ///
    /// # Safety
    /// 64 bytes may be written at `to`.
    unsafe fn store_pairs(self, to: *mut u8, even: <Self::L as Lanes>::V, odd: <Self::L as Lanes>::V);
    /// Rounds 32 numbers to BF16, to nearest even: those of `first`, then those of `second`, a row of A.
    ///
    /// # Safety
    /// 64 bytes may be written at `to`.
    unsafe fn store_row(self, to: *mut u8, first: <Self::L as Lanes>::V, second: <Self::L as Lanes>::V);
    /// Rounds 16 numbers to BF16, to nearest even: half a row of A.
    ///
    /// # Safety
    /// 32 bytes may be written at `to`.
    unsafe fn store_half_row(self, to: *mut u8, v: <Self::L as Lanes>::V);
}

#[cfg(test)]
mod tests;
