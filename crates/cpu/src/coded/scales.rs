//! Scales of a block of 16 rows: how they lie, and how they become lanes.

use tare_core::{DType, Weight, WeightData};
use tare_formats::codec::kquant;

use super::ROWS;
use crate::lanes::Lanes;

/// The scales of a block.
pub trait Scales: 'static {
    /// What is taken off a code; none where groups have a bias instead.
    const CENTER: Option<i32>;

    /// Bytes behind the codes of `units` units.
    fn bytes(units: usize, dtype: DType) -> usize;

    /// Scale and bias of group `g` of a block for each of 16 rows; without a bias the second is not to be looked at.
    ///
    /// # Safety
    /// The scales of a block lie at `p`, and it has that group.
    unsafe fn of<L: Lanes>(l: L, p: *const u8, g: usize, dtype: DType) -> (L::V, L::V);

    /// Copies those of block `block` of row `row` of the file to lane `row % 16` of `to`.
    fn put(w: &Weight, row: usize, block: usize, units: usize, to: &mut [u8]);
}

/// 16 elements.
///
/// # Safety
/// They lie at `p`.
#[inline(always)]
unsafe fn elements<L: Lanes>(l: L, p: *const u8, dtype: DType) -> L::V {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => l.halves(p),
            DType::BF16 => l.bf16s(p),
            _ => l.load(p.cast()),
        }
    }
}

/// Blocks `first ..` of the file's row, as far as the row has them.
fn blocks_of(w: &Weight, row: usize, first: usize) -> impl Iterator<Item = &[u8]> {
    let bytes: &[u8] = match w.data() {
        WeightData::Blocks(bytes) => bytes,
        WeightData::Affine(_) => &[],
    };
    let (row_bytes, block) = (bytes.len() / w.rows(), w.format().block_bytes());
    bytes[row * row_bytes..(row + 1) * row_bytes].chunks_exact(block).skip(first)
}

/// Writes element `at` of runs of 16 elements of `size` bytes: that of lane `lane` of run `run`.
fn put_element(to: &mut [u8], (run, lane): (usize, usize), element: &[u8]) {
    let at = (run * ROWS + lane) * element.len();
    to[at..at + element.len()].copy_from_slice(element);
}

/// One F16 scale for each unit, a center of C: Q4_0, Q5_0, Q8_0. [units, 16]
#[derive(Clone, Copy, Debug)]
pub struct Halves<const C: i32>;

impl<const C: i32> Scales for Halves<C> {
    const CENTER: Option<i32> = Some(C);

    fn bytes(units: usize, _: DType) -> usize {
        units * ROWS * 2
    }
    #[inline(always)]
    unsafe fn of<L: Lanes>(l: L, p: *const u8, g: usize, _: DType) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { (l.halves(p.add(g * ROWS * 2)), l.splat(0.0)) }
    }
    fn put(w: &Weight, row: usize, block: usize, units: usize, to: &mut [u8]) {
        for (run, b) in blocks_of(w, row, block * units).take(units).enumerate() {
            put_element(to, (run, row % ROWS), &b[..2]);
        }
    }
}

/// F16 scale and minimum for the one unit of a block: Q4_1, Q5_1. [2, 16]
#[derive(Clone, Copy, Debug)]
pub struct HalvesWithMinimum;

impl Scales for HalvesWithMinimum {
    const CENTER: Option<i32> = None;

    fn bytes(_: usize, _: DType) -> usize {
        2 * ROWS * 2
    }
    #[inline(always)]
    unsafe fn of<L: Lanes>(l: L, p: *const u8, _: usize, _: DType) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { (l.halves(p), l.halves(p.add(ROWS * 2))) }
    }
    fn put(w: &Weight, row: usize, block: usize, _: usize, to: &mut [u8]) {
        for b in blocks_of(w, row, block).take(1) {
            put_element(to, (0, row % ROWS), &b[..2]);
            put_element(to, (1, row % ROWS), &b[2..4]);
        }
    }
}

/// Scale and bias of the one group of a block, in the file's type: MLX. [2, 16]
#[derive(Clone, Copy, Debug)]
pub struct Affine;

impl Scales for Affine {
    const CENTER: Option<i32> = None;

    fn bytes(_: usize, dtype: DType) -> usize {
        2 * ROWS * dtype.bytes()
    }
    #[inline(always)]
    unsafe fn of<L: Lanes>(l: L, p: *const u8, _: usize, dtype: DType) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { (elements(l, p, dtype), elements(l, p.add(ROWS * dtype.bytes()), dtype)) }
    }
    fn put(w: &Weight, row: usize, block: usize, _: usize, to: &mut [u8]) {
        let WeightData::Affine(a) = w.data() else { return };
        let size = a.scale_dtype.bytes();
        let at = (row * (w.cols() / w.format().block_weights()) + block) * size;
        put_element(to, (0, row % ROWS), &a.scales[at..at + size]);
        put_element(to, (1, row % ROWS), &a.biases[at..at + size]);
    }
}

/// Super-blocks with 6-bit scales and minimums, a byte each here, under F16 `d` and `dmin`: Q4_K, Q5_K.
/// [8, 16] scales, [8, 16] minimums, [16] d, [16] dmin.
#[derive(Clone, Copy, Debug)]
pub struct WithMinimums;

impl Scales for WithMinimums {
    const CENTER: Option<i32> = None;

    fn bytes(units: usize, _: DType) -> usize {
        2 * units * ROWS + 2 * ROWS * 2
    }
    #[inline(always)]
    unsafe fn of<L: Lanes>(l: L, p: *const u8, g: usize, _: DType) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let (d, dmin) = (l.halves(p.add(16 * ROWS)), l.halves(p.add(18 * ROWS)));
            let (scale, min) = (l.to_f32(l.bytes(p.add(g * ROWS))), l.to_f32(l.bytes(p.add((8 + g) * ROWS))));
            (l.mul(d, scale), l.mul(l.sub(l.splat(-0.0), dmin), min))
        }
    }
    fn put(w: &Weight, row: usize, block: usize, units: usize, to: &mut [u8]) {
        for b in blocks_of(w, row, block).take(1) {
            for j in 0..units {
                let (scale, min) = kquant::scale_and_min(b, j);
                put_element(to, (j, row % ROWS), &[scale]);
                put_element(to, (units + j, row % ROWS), &[min]);
            }
            put_element(&mut to[2 * units * ROWS..], (0, row % ROWS), &b[..2]);
            put_element(&mut to[2 * units * ROWS..], (1, row % ROWS), &b[2..4]);
        }
    }
}

/// Super-blocks with a signed byte for each 16 columns under F16 `d`, a center of 32: Q6_K. [16, 16] scales, [16] d.
#[derive(Clone, Copy, Debug)]
pub struct Signed;

impl Scales for Signed {
    const CENTER: Option<i32> = Some(32);

    fn bytes(units: usize, _: DType) -> usize {
        2 * units * ROWS + ROWS * 2
    }
    #[inline(always)]
    unsafe fn of<L: Lanes>(l: L, p: *const u8, g: usize, _: DType) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { (l.mul(l.halves(p.add(16 * ROWS)), l.signed_bytes(p.add(g * ROWS))), l.splat(0.0)) }
    }
    fn put(w: &Weight, row: usize, block: usize, units: usize, to: &mut [u8]) {
        for b in blocks_of(w, row, block).take(1) {
            for g in 0..2 * units {
                put_element(to, (g, row % ROWS), &[kquant::q6_k_scale(b, g).cast_unsigned()]);
            }
            put_element(&mut to[2 * units * ROWS..], (0, row % ROWS), &b[208..210]);
        }
    }
}
