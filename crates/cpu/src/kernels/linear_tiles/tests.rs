//! Whole numbers, whose sums are exact, through all that lies between operands and outputs: every output of every shape, beside
//! memory that is not a number.

use super::*;
use crate::epilogue::Bias;
use crate::lanes::Lanes;
use crate::lanes::array::Array;
use crate::rows::{Rows, padded};
use crate::tiles::STEP;
use crate::tiles::emulated::Emulated;
use half::bf16;
use source::Runs;

/// Element `i` of row `row` of the matrix `seed`: a small whole number.
fn number(seed: usize, row: usize, i: usize) -> i32 {
    let hash = (row * 0x9e37 + i * 0x85eb + seed * 0xc2b2) as u32;
    (hash.wrapping_mul(0x2c1b_3c6d) >> 16) as i32 % 5 - 2
}

/// Weights [n, k] as numbers, on one side or the other.
#[derive(Clone, Copy)]
struct Numbers<const LEFT: bool> {
    n: usize,
    k: usize,
}

impl<const LEFT: bool> Source for Numbers<LEFT> {
    const SIDE: Side = if LEFT { Side::Left } else { Side::Right };

    #[inline(always)]
    unsafe fn unpack<T: Tiles>(&self, _: T, n: usize, step: usize, half: usize, tile: *mut u8) {
        let tiled = Tiled::at(tile, STEP, Self::SIDE);
        for (i, k) in (0..ROWS).flat_map(|i| (0..STEP).map(move |k| (i, k))) {
            let row = if LEFT { i } else { k / 2 };
            if row / (ROWS / 2) != half {
                continue;
            }
            let at = tiled.element(i, k);
            let value = match (n + i < self.n, step * STEP + k < self.k) {
                (_, false) => 0.0,
                (false, _) => f32::NAN,
                _ => number(1, n + i, step * STEP + k) as f32,
            };
            // SAFETY: a tile.
            unsafe { at.write(bf16::from_f32(value).to_bits()) };
        }
    }

    fn runs(&self, _: usize, _: Range<usize>) -> [Runs; 2] {
        [Runs { at: std::ptr::null(), next: 0, runs: 0, bytes: 0 }; 2]
    }
}

/// Sums that end some squares at a time: with the last one, those before it.
struct InRuns {
    out: Rows,
    squares: usize,
}

impl End for InRuns {
    fn weight_rows(&self) -> usize {
        self.out.width
    }

    fn squares(&self) -> usize {
        self.squares
    }

    #[inline(always)]
    unsafe fn store<T: Tiles>(&self, t: T, square: &Done, piece: usize) {
        for i in 2 * piece..2 * piece + 2 {
            let row = square.rows.start + i;
            for (back, right) in (0..self.squares).flat_map(|back| [(back, 0), (back, 1)]) {
                let square = square.before(back);
                if row < square.rows.end {
                    let at = self.out.row(row).wrapping_add(square.n + right * ROWS);
                    // SAFETY: 16 sums and 16 outputs.
                    unsafe { t.lanes().store(at, t.lanes().load(square.row((i / ROWS, right), i % ROWS))) };
                }
            }
        }
    }
}

/// [rows, k] times [n, k].
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    n: usize,
    k: usize,
}

impl Shape {
    /// Every output: the sums of products.
    fn want(self) -> Vec<f32> {
        let matrix = |seed, rows| -> Vec<Vec<i32>> {
            (0..rows).map(|row| (0..self.k).map(|i| number(seed, row, i)).collect()).collect()
        };
        let (x, w) = (matrix(0, self.rows), matrix(1, self.n));
        let sum = |x: &[i32], w: &[i32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<i32>() as f32;
        x.iter().flat_map(|x| w.iter().map(move |w| sum(x, w))).collect()
    }

    /// Multiplies `weight` with rows for the other side and lets the products end, all workers of a grid one after the other.
    fn multiply<T: Tiles, S: Source + Copy, E: End>(self, t: T, weight: S, end: &E, grid: Grid, workers: usize) {
        let mut tiles = vec![f32::NAN; Tiled::bytes(self.rows, self.k) / size_of::<f32>()];
        let side = if S::SIDE == Side::Left { Side::Right } else { Side::Left };
        let x = Tiled::at(tiles.as_mut_ptr().cast(), self.k, side);
        for (row, i) in (0..self.rows).flat_map(|row| (0..padded(self.k)).map(move |i| (row, i))) {
            let value = if i < self.k { number(0, row, i) as f32 } else { 0.0 };
            // SAFETY: an element of a row.
            unsafe { x.element(row, i).write(bf16::from_f32(value).to_bits()) };
        }
        for worker in 0..workers {
            let mut scratch = vec![f32::NAN; PRODUCTS];
            let (across, down) = grid.share(worker);
            if across.is_empty() || down.is_empty() {
                continue;
            }
            let first = scratch.as_mut_ptr().cast::<u8>();
            let (unpacked, sums) = ([first, first.wrapping_add(UNPACKED)], scratch[2 * UNPACKED / 4..].as_mut_ptr());
            t.compiled(Share { x, weight, end, rows: self.rows, across, down, unpacked, sums });
        }
    }
}

/// What outputs hold before and columns past the last one for ever.
fn poison(rows: usize, n: usize, accumulate: bool) -> Vec<f32> {
    let all = (0..rows).flat_map(|row| (0..padded(n)).map(move |i| (row, i)));
    all.map(|(row, i)| if accumulate && i < n { number(2, row, i) as f32 } else { f32::NAN }).collect()
}

/// Holds outputs against what they are to be.
fn check(shape: Shape, what: &str, got: &[f32], want: &[f32], before: &[f32]) {
    let (stride, n) = (padded(shape.n), shape.n);
    for (row, i) in (0..shape.rows).flat_map(|row| (0..stride).map(move |i| (row, i))) {
        let (got, at) = (got[row * stride + i], before[row * stride + i]);
        if i >= n {
            assert!(got.is_nan(), "{shape:?}, {what}: column {i} of row {row} is not an output");
            continue;
        }
        let want = want[row * n + i] + if at.is_nan() { 0.0 } else { at };
        assert!(got == want, "{shape:?}, {what}: {got} and not {want} in row {row}, column {i}");
    }
}

fn linears<const LEFT: bool, T: Tiles>(t: T, shape: Shape, want: &[f32]) {
    let Shape { rows, n, k } = shape;
    for (workers, accumulate) in [(1, false), (1, true), (3, true)] {
        let before = poison(rows, n, accumulate);
        let mut out = before.clone();
        let end = Epilogue { bias: Bias(None), accumulate, out: Rows::at(out.as_mut_ptr(), n) };
        shape.multiply(t, Numbers::<LEFT> { n, k }, &end, Grid::of(n, rows, workers), workers);
        check(shape, &format!("left {LEFT}, {workers} workers"), &out, want, &before);
    }
}

/// Linears of both sides, and of runs of squares where they are whole.
fn multiplies<T: Tiles>(t: T, shape: Shape) {
    let want = shape.want();
    linears::<false, T>(t, shape, &want);
    linears::<true, T>(t, shape, &want);
    let Shape { rows, n, k } = shape;
    for squares in [1, 2, 4, 8].into_iter().filter(|squares| n.is_multiple_of(squares * SQUARE)) {
        for workers in [1, 2] {
            let before = poison(rows, n, false);
            let mut out = before.clone();
            let end = InRuns { out: Rows::at(out.as_mut_ptr(), n), squares };
            let grid = Grid::in_runs(n, rows, workers, squares * SQUARE);
            shape.multiply(t, Numbers::<false> { n, k }, &end, grid, workers);
            check(shape, &format!("runs of {squares} squares, {workers} workers"), &out, &want, &before);
        }
    }
}

/// Shapes of all numbers of rows and widths, which differ from each other in more than one way.
fn shapes(rows: &[usize], ns: &[usize], ks: &[usize]) -> Vec<Shape> {
    let of = |(i, rows): (usize, &usize)| {
        let (rows, k) = (*rows, ks[i % ks.len()]);
        ns.iter().map(move |n| Shape { rows, n: *n, k }).collect::<Vec<_>>()
    };
    rows.iter().enumerate().flat_map(of).collect()
}

/// Odd numbers of rows up to 39, and widths that end a tile, a slice, some slices and none.
fn few() -> Vec<Shape> {
    let rows: Vec<usize> = (1..40).step_by(2).collect();
    shapes(&rows, &[1, 33, 256], &[32, 80, 512, 544, 1000])
}

#[test]
fn emulated_tiles_give_every_output() {
    let several = [Shape { rows: 129, n: 289, k: 544 }, Shape { rows: 127, n: 256, k: 1056 }];
    let t = Emulated::<Array>::prove().unwrap();
    few().into_iter().chain(several).for_each(|shape| multiplies(t, shape));
}

#[test]
#[ignore = "needs a processor with AMX"]
#[cfg(target_arch = "x86_64")]
fn amx_gives_every_output() {
    let t = crate::tiles::amx::Amx::prove();
    let t = t.unwrap_or_else(|| panic!("AMX is {:?}", tare_probe::amx::usable()));
    let many = |ks: &[usize]| shapes(&[127, 128, 129, 511, 512, 513], &[48, 256, 545, 1024], ks);
    let many = [many(&[1024]), many(&[544, 2080]), shapes(&[1030], &[768, 800], &[1056])].concat();
    few().into_iter().chain(many).for_each(|shape| multiplies(t, shape));
}
