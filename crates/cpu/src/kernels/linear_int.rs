//! Matrix times rows with activations in integers of 8 or 15 bits, in every format of weights in codes.
//!
//! math: that of `tare_ops::reference::blocks`: integer sums of codes in a block of 32 columns, F32 over blocks and groups; `(+ bias[n])`, added to `out[t, n]` when accumulating
//! shapes: x [T, k / 32] blocks in one or two planes of bytes, weight [n, k] in panels of 16 rows, bias [n], out [T, n]
//! layout: panels as `crate::coded` says: a register has four codes of each of 16 rows, so that a sum over columns needs no step across lanes
//! precision: products and sums of integers exact in 32 bits, those of 15-bit integers rounded to F32; F32 chains over groups, fused, in the reference's order
//! preconditions: k a multiple of the format's block; any n, any T
//! cost: the panels once for 64 rows of x; 2 T n k operations, each plane by itself
//! tolerance: bit-identical to the reference, for every T, width and thread count
//! wins: few rows, where weights are read as they come and unpacking is two operations for 128 nibbles; many rows on a host without tiles, and in a class of a stated order with tiles too; two planes over F32 products, whose weights are unpacked into four times the registers
//! loses: two planes to one, at more than two rows; q6_k, whose sixteen scales a super-block are multiplied out for every row of a panel; one row of a narrow matrix, whose last panel is mostly empty
//! fallback: the same code on AVX2 (`vpmaddubsw`) and on an array (`portable`)
//! evidence: none yet
//! source: rows in lanes, two planes, the prefetch distance and sums of two pieces at once by our own probe
//!
//! Workers take contiguous runs of 16 weight rows, one panel each, so that each output line of 64 bytes has one writer.

pub mod tiles;

use std::marker::PhantomData;
use std::ops::Range;

use crate::coded::{Coded, ROWS, Scales, UNIT, block_bytes};
use crate::codes::{Block, Codes, TILE};
use crate::dots::{DotKernel, Dots, narrow};
use crate::epilogue::Epilogue;
use crate::lanes::Lanes;
use crate::panels::Panels;
use crate::pool::Region;

/// Bytes ahead of the codes in use that are asked for. From 4 to 20 KB it makes no difference, below it does.
const AHEAD: usize = 4 << 10;

/// Rows of x that meet a panel before the next one is read: they stay in the second cache meanwhile.
const CHUNK: usize = 8 * TILE;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct LinearInt {
    /// [T, k / 32]
    pub x: Codes,
    /// [n, k]
    pub weight: Panels,
    /// What becomes of the products. out [T, n]
    pub end: Epilogue,
}

/// Runs one worker's share: call, rows of the step, where we are.
///
/// # Safety
/// The call's pointers hold `rows` rows; the weight has the format of the kernel; nobody else writes the same shares.
pub type LinearIntFn = unsafe fn(&LinearInt, usize, Region);

/// The kernel of format `F` on instruction set `D`, for activations in `P` planes.
pub fn kernel<D: Dots, F: Coded, const P: usize>() -> LinearIntFn {
    run::<D, F, P>
}

/// # Safety
/// That of [`LinearIntFn`].
unsafe fn run<D: Dots, F: Coded, const P: usize>(call: &LinearInt, rows: usize, region: Region) {
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(d) = D::prove() else { return };
    d.compiled(Share::<F, P> { call, rows, share: region.share(call.weight.rows, ROWS), format: PhantomData });
}

/// Weight rows `share` times all rows of x.
struct Share<'a, F, const P: usize> {
    call: &'a LinearInt,
    rows: usize,
    share: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Coded, const P: usize> DotKernel for Share<'_, F, P> {
    #[inline(always)]
    fn run<D: Dots>(self, d: D) {
        let last = self.call.weight.panel(self.share.end.next_multiple_of(ROWS));
        for chunk in (0..self.rows).step_by(CHUNK) {
            for n in self.share.clone().step_by(ROWS) {
                let mut t = chunk;
                let end = (chunk + CHUNK).min(self.rows);
                while t < end {
                    let place = Place { call: self.call, rows: self.rows, t, n, last };
                    // A product waits for the one before it in its sum. Eight sums are too few to fill that time, and biases
                    // and longer groups leave no registers for more.
                    let short = F::Scales::CENTER.is_some();
                    // SAFETY: the contract of `LinearIntFn`.
                    t += unsafe {
                        match end - t {
                            8.. if D::WIDE && P == 1 && short => place.panel::<D, F, P, 8, 2>(d),
                            8.. if D::WIDE && P == 1 => place.panel::<D, F, P, 8, 1>(d),
                            4.. if D::WIDE && short => place.panel::<D, F, P, 4, 2>(d),
                            4.. if D::WIDE => place.panel::<D, F, P, 4, 1>(d),
                            4.. if D::NARROW && P == 1 && F::BITS < 8 => place.panel::<D, F, P, 4, 1>(d),
                            2.. if D::WIDE && short => place.panel::<D, F, P, 2, 2>(d),
                            2.. => place.panel::<D, F, P, 2, 1>(d),
                            _ if D::WIDE && pieces::<F>() == 2 => place.panel::<D, F, P, 1, 2>(d),
                            _ => place.panel::<D, F, P, 1, 1>(d),
                        }
                    };
                }
            }
        }
    }
}

/// Pieces of a unit: its columns, or each half of them where these have scales of their own.
const fn pieces<F: Coded>() -> usize {
    UNIT.div_ceil(F::GROUP)
}

/// Runs of a piece.
const fn runs<F: Coded>() -> usize {
    4 / pieces::<F>()
}

/// Rows of x from `t` on, and the panel of weight rows from `n` on.
struct Place<'a> {
    call: &'a LinearInt,
    rows: usize,
    t: usize,
    n: usize,
    /// The end of what this worker reads of the weight.
    last: *const u8,
}

impl Place<'_> {
    /// Outputs `n .. n + 16` of rows `t .. t + M`, the sums of S pieces at once. Gives M.
    ///
    /// # Safety
    /// That of [`LinearIntFn`]; the rows are of one tile of the step: M divides [`TILE`] and t.
    #[inline(always)]
    unsafe fn panel<D: Dots, F: Coded, const P: usize, const M: usize, const S: usize>(&self, d: D) -> usize {
        let (l, weight) = (d.lanes(), &self.call.weight);
        let (x, stride) = self.call.x.row::<P>(self.t, self.rows);
        let (mut block, mut x) = (weight.panel(self.n), x.cast_const());
        let mut sums = Sums { acc: [l.splat(0.0); M], u: [l.splat(0.0); M] };
        // Whole blocks, so that what lies where in them is known when this is compiled.
        let each = pieces::<F>();
        let turn = if F::UNITS * each > S { F::UNITS * each } else { S };
        let mut left = weight.units * each;
        // SAFETY: pieces of the panel and of x, as far as both reach.
        unsafe {
            while left >= turn {
                for at in (0..turn).step_by(S) {
                    self.take::<D, F, P, M, S>(d, block, (x, stride), at, &mut sums);
                }
                block = block.wrapping_add(turn / each / F::UNITS * weight.block_bytes);
                x = x.wrapping_add(turn / each * stride);
                left -= turn;
            }
            for at in 0..left {
                self.take::<D, F, P, M, 1>(d, block, (x, stride), at, &mut sums);
            }
            for (m, acc) in sums.acc.iter().enumerate() {
                // Row t + m is one of the step, n an output.
                self.call.end.store(l, self.t + m, self.n, *acc);
            }
        }
        M
    }

    /// Asks for the bytes that come some way behind `bytes` at `from`, where this worker reads them.
    #[inline(always)]
    fn ask<L: Lanes>(&self, l: L, from: *const u8, bytes: usize) {
        let first = from.wrapping_add(AHEAD);
        if first.wrapping_add(bytes) <= self.last {
            for line in (0..bytes).step_by(64) {
                l.prefetch(first.wrapping_add(line));
            }
        }
    }

    /// Adds what S pieces give, from piece `at` of those on that begin with `block`.
    ///
    /// # Safety
    /// The pieces are of the panel; M blocks of x for each of their units lie at `x`, `stride` from one unit to the next.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "an index goes through several arrays at once")]
    unsafe fn take<D: Dots, F: Coded, const P: usize, const M: usize, const S: usize>(
        &self,
        d: D,
        block: *const u8,
        (x, stride): (*const Block<P>, usize),
        at: usize,
        to: &mut Sums<D, M>,
    ) {
        let (l, weight, each) = (d.lanes(), &self.call.weight, pieces::<F>());
        let dtype = weight.dtype;
        let pieces: [Piece<P>; S] = std::array::from_fn(|s| {
            let (unit, half) = ((at + s) / each, (at + s) % each);
            let block = block.wrapping_add(unit / F::UNITS * weight.block_bytes);
            let codes = block.wrapping_add(unit % F::UNITS * F::UNIT_BYTES);
            let scales = block.wrapping_add(F::UNITS * F::UNIT_BYTES);
            Piece { codes, scales, x: x.wrapping_add(unit * stride), unit: unit % F::UNITS, half }
        });
        for piece in &pieces {
            if piece.half == 0 {
                // A few lines at a time, between products: those of a whole block at once wait for each other.
                self.ask(l, piece.codes, F::UNIT_BYTES);
                if piece.unit == 0 {
                    self.ask(l, piece.scales, block_bytes::<F>(dtype) - F::UNITS * F::UNIT_BYTES);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            let sums = sums::<D, F, P, M, S>(d, &pieces);
            for (s, (piece, sums)) in pieces.iter().zip(sums).enumerate() {
                if F::GROUP < UNIT {
                    let (scale, _) = F::Scales::of(l, piece.scales, each * piece.unit + piece.half, dtype);
                    for m in 0..M {
                        let block = &*piece.x.add(m);
                        let product = l.mul(l.splat(block.scale), d.to_f32(sums[m]));
                        to.acc[m] = l.fma(scale, product, to.acc[m]);
                    }
                    continue;
                }
                for m in 0..M {
                    let block = &*piece.x.add(m);
                    to.u[m] = l.fma(l.splat(block.scale), d.to_f32(sums[m]), to.u[m]);
                }
                if ((at + s + 1) * UNIT).is_multiple_of(F::GROUP) {
                    let (scale, bias) = F::Scales::of(l, piece.scales, piece.unit * UNIT / F::GROUP, dtype);
                    for m in 0..M {
                        to.acc[m] = l.fma(scale, to.u[m], to.acc[m]);
                        if F::Scales::CENTER.is_none() {
                            let block = &*piece.x.add(m);
                            to.acc[m] = l.fma(bias, l.splat(block.offsets[F::GROUP / UNIT / 2]), to.acc[m]);
                        }
                        to.u[m] = l.splat(0.0);
                    }
                }
            }
        }
    }
}

/// What is added up for M rows of x.
struct Sums<D: Dots, const M: usize> {
    /// Over groups.
    acc: [<D::L as Lanes>::V; M],
    /// Over the blocks of a group.
    u: [<D::L as Lanes>::V; M],
}

/// Columns whose products are added as integers: see [`pieces`].
struct Piece<const P: usize> {
    /// Codes of its unit.
    codes: *const u8,
    /// Scales of its block.
    scales: *const u8,
    /// The block of the first row of x.
    x: *const Block<P>,
    /// Its unit in the block.
    unit: usize,
    /// Which piece of the unit it is.
    half: usize,
}

/// Sums of M rows of x over each of `pieces`: of 16 weight rows, their center taken off. The pieces take turns, run by run.
///
/// # Safety
/// The codes of their units lie there, and M blocks of x.
#[inline(always)]
unsafe fn sums<D: Dots, F: Coded, const P: usize, const M: usize, const S: usize>(
    d: D,
    pieces: &[Piece<P>; S],
) -> [[D::I; M]; S] {
    let center = F::Scales::CENTER.unwrap_or(0) - if F::BITS == 8 { D::WIDE_CENTER } else { 0 };
    let mut planes = [[[d.splat(0); P]; M]; S];
    // SAFETY: the caller's promise.
    unsafe {
        if center != 0 {
            for (piece, planes) in pieces.iter().zip(&mut planes) {
                for (m, planes) in planes.iter_mut().enumerate() {
                    let block = &*piece.x.add(m);
                    let off = if F::GROUP < UNIT { block.off_half(center, piece.half) } else { block.off(center) };
                    planes[P - 1] = d.splat(off);
                }
            }
        }
        if D::NARROW && F::BITS < 8 {
            for (piece, planes) in pieces.iter().zip(&mut planes) {
                narrow_sums::<D, F, P, M>(d, piece, planes);
            }
        } else {
            for run in 0..runs::<F>() {
                for (piece, planes) in pieces.iter().zip(&mut planes) {
                    let run = piece.half * runs::<F>() + run;
                    for (h, codes) in F::codes(d, piece.codes, run).into_iter().enumerate() {
                        for (m, sums) in planes.iter_mut().enumerate() {
                            for (sum, plane) in sums.iter_mut().zip(&(*piece.x.add(m)).planes) {
                                let x = four(plane, run, h);
                                *sum = if F::BITS == 8 { d.dot_wide(*sum, codes, x) } else { d.dot(*sum, codes, x) };
                            }
                        }
                    }
                }
            }
        }
    }
    // A loop, and no `map` of arrays in arrays, which becomes a call through memory.
    let mut sums = [[d.splat(0); M]; S];
    for (sums, planes) in sums.iter_mut().zip(&planes) {
        for (sum, planes) in sums.iter_mut().zip(planes) {
            *sum = if P == 2 { d.join(planes[0], planes[1]) } else { planes[0] };
        }
    }
    sums
}

/// Four integers of x: those that meet half `h` of a run of codes.
///
/// # Safety
/// There are four runs of two halves.
#[inline(always)]
unsafe fn four(plane: &[i8; UNIT], run: usize, h: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { plane.as_ptr().add(8 * run + 4 * h).cast::<i32>().read_unaligned() }
}

/// Adds the products of one piece to `planes`, as many at a time as narrow sums take.
///
/// # Safety
/// As [`sums`].
#[inline(always)]
unsafe fn narrow_sums<D: Dots, F: Coded, const P: usize, const M: usize>(
    d: D,
    piece: &Piece<P>,
    planes: &mut [[D::I; P]; M],
) {
    let together = narrow(F::BITS) / 2;
    for first in (0..runs::<F>()).step_by(together) {
        let mut short = [[d.splat(0); P]; M];
        for run in first..runs::<F>().min(first + together) {
            let run = piece.half * runs::<F>() + run;
            // SAFETY: the caller's promise.
            unsafe {
                for (h, codes) in F::codes(d, piece.codes, run).into_iter().enumerate() {
                    for (m, sums) in short.iter_mut().enumerate() {
                        for (sum, plane) in sums.iter_mut().zip(&(*piece.x.add(m)).planes) {
                            *sum = d.dot_narrow(*sum, codes, four(plane, run, h));
                        }
                    }
                }
            }
        }
        for (sums, short) in planes.iter_mut().zip(&short) {
            for (sum, short) in sums.iter_mut().zip(short) {
                *sum = d.widen(*sum, *short);
            }
        }
    }
}
