//! The same products for five to eight rows of x in two planes, all at once in tiles.
//!
//! math, shapes, layout, preconditions: those of [`linear_int`](super)
//! precision: as there: sums of integers are exact, and what follows them is done in the same order
//! cost: the panels once, their codes made bytes once; 32 n k operations, those of eight rows for every T
//! tolerance: the bits of [`linear_int`](super), for every T and thread count
//! wins: five to eight rows, which are one product: it takes the place of many instructions, and codes become bytes in fewer steps than BF16
//! loses: fewer rows; more rows, to tiles of BF16, which take 16 at a time, in a class in any order, and in one of a stated order to vectors, which were faster than these products eight rows at a time where that was measured, on 16 threads (`20261202T004539Z-13e4d9ac75297e37`); one plane, where what becomes of the sums takes as long as the products that tiles save
//! fallback: [`linear_int`](super)
//! evidence: 20261202T004539Z-13e4d9ac75297e37
//! source: activations as A, since a product takes as long as A has rows, by our own probe
//!
//! A panel goes through three steps, four units at a time: codes become bytes in L1, products make sums of them there, and sums
//! become F32 in registers. The first runs a turn ahead and the last one a turn behind, so that no step waits for what the
//! one before it has just stored.

use std::marker::PhantomData;
use std::ops::Range;

use super::{LinearInt, LinearIntFn, Place};
use crate::coded::{Coded, ROWS, Scales, UNIT};
use crate::codes::Block;
use crate::dots::tiles::{DotTileKernel, DotTiles, SUMS, TOGETHER};
use crate::dots::{DotTileLanes, Dots};
use crate::lanes::Lanes;
use crate::pool::Region;

/// Rows from which on products in tiles are faster.
pub const LEAST: usize = 5;
/// Units of a turn: no group of weights is longer.
const TURN: usize = 4;
/// Bytes of an integer of x.
const PLANES: usize = 2;
/// Products of a turn: of two planes of two halves of a unit.
const MOST: usize = 2 * PLANES * TURN;

/// The kernel of format `F` on tiles `T`, for activations in two planes.
pub fn kernel<T: DotTiles, F: Coded>() -> LinearIntFn {
    run::<T, F>
}

/// # Safety
/// That of [`LinearIntFn`].
unsafe fn run<T: DotTiles, F: Coded>(call: &LinearInt, rows: usize, region: Region) {
    // A step may have fewer rows than its bucket; more than one product takes, the registry never gives.
    if !(LEAST..=TOGETHER).contains(&rows) {
        // SAFETY: the caller's promise.
        return unsafe { super::run::<T::D, F, PLANES>(call, rows, region) };
    }
    // The registry offers a kernel only where `prove` succeeds, so that this returns at once.
    let Some(t) = T::prove() else { return };
    t.compiled(
        columns::<F>(),
        Share::<F> { call, rows, share: region.share(call.weight.rows, ROWS), format: PhantomData },
    );
}

/// Columns of a product: those that share a scale, as far as they share one of x.
const fn columns<F: Coded>() -> usize {
    if F::GROUP < UNIT { F::GROUP } else { UNIT }
}

/// Weight rows `share` times all rows of x, which are no more than a product takes.
struct Share<'a, F> {
    call: &'a LinearInt,
    rows: usize,
    share: Range<usize>,
    format: PhantomData<F>,
}

impl<F: Coded> DotTileKernel for Share<'_, F> {
    #[inline(always)]
    fn run<T: DotTiles>(self, t: T) {
        let last = self.call.weight.panel(self.share.end.next_multiple_of(ROWS));
        let mut room = Room::new();
        for n in self.share.clone().step_by(ROWS) {
            let place = Place { call: self.call, rows: self.rows, t: 0, n, last };
            // SAFETY: the contract of `LinearIntFn`; `run` lets no more rows through than a product takes.
            unsafe { place.in_tiles::<T, F>(t, &mut room) };
        }
    }
}

/// Bytes and sums of two turns.
#[repr(C, align(64))]
struct Room {
    codes: [[[u8; UNIT * ROWS]; TURN]; 2],
    /// Of each unit one behind the other: of all planes of each half, or of all of it.
    sums: [[[i32; SUMS]; MOST]; 2],
}

impl Room {
    const fn new() -> Self {
        Self { codes: [[[0; UNIT * ROWS]; TURN]; 2], sums: [[[0; SUMS]; MOST]; 2] }
    }
}

impl Place<'_> {
    /// Outputs `n .. n + 16` of all rows.
    ///
    /// # Safety
    /// That of [`LinearIntFn`]; there are eight rows at most, and `t` is the first.
    #[inline(always)]
    unsafe fn in_tiles<T: DotTiles, F: Coded>(&self, t: T, room: &mut Room) {
        let (l, units) = (t.dots().lanes(), self.call.weight.units);
        let (x, stride) = self.call.x.row::<PLANES>(self.t, self.rows);
        let x = x.cast_const();
        let turn = |i: usize| i * TURN..units.min((i + 1) * TURN);
        let turns = units.div_ceil(TURN);
        let mut acc = [l.splat(0.0); TOGETHER];
        // SAFETY: units of the panel and of x. Where there are fewer than eight rows, what lies behind the last one is
        // read, as `Codes` allows, and what comes of it is not stored.
        unsafe {
            self.unpack::<T, F>(t, turn(0), &mut room.codes[0]);
            for i in 0..turns {
                if i + 1 < turns {
                    self.unpack::<T, F>(t, turn(i + 1), &mut room.codes[(i + 1) % 2]);
                }
                self.multiply::<T, F>(t, turn(i), (x, stride), &room.codes[i % 2], &mut room.sums[i % 2]);
                if i > 0 {
                    self.add::<T, F>(t, turn(i - 1), (x, stride), &room.sums[(i - 1) % 2], &mut acc);
                }
            }
            self.add::<T, F>(t, turn(turns - 1), (x, stride), &room.sums[(turns - 1) % 2], &mut acc);
            for (m, acc) in acc.iter().enumerate() {
                if m < self.rows {
                    self.call.end.store(l, m, self.n, *acc);
                }
            }
        }
    }

    /// The codes of a unit, and the scales of its block.
    #[inline(always)]
    fn unit<F: Coded>(&self, unit: usize) -> (*const u8, *const u8) {
        let weight = &self.call.weight;
        let block = weight.panel(self.n).wrapping_add(unit / F::UNITS * weight.block_bytes);
        (block.wrapping_add(unit % F::UNITS * F::UNIT_BYTES), block.wrapping_add(F::UNITS * F::UNIT_BYTES))
    }

    /// Turns codes into bytes, where they are none yet, and asks for those that come some way behind them.
    ///
    /// # Safety
    /// The units are of the panel.
    #[inline(always)]
    unsafe fn unpack<T: DotTiles, F: Coded>(&self, t: T, units: Range<usize>, to: &mut [[u8; UNIT * ROWS]; TURN]) {
        let (d, l) = (t.dots(), t.dots().lanes());
        for (unit, to) in units.zip(to) {
            let (codes, scales) = self.unit::<F>(unit);
            self.ask(l, codes, F::UNIT_BYTES);
            if unit % F::UNITS == 0 {
                self.ask(l, scales, self.call.weight.block_bytes - F::UNITS * F::UNIT_BYTES);
            }
            if F::BITS < 8 {
                for run in 0..4 {
                    // SAFETY: a run of the unit; room for its 128 bytes.
                    unsafe {
                        let [first, second] = F::codes(d, codes, run);
                        t.put(to.as_mut_ptr().add(128 * run), first);
                        t.put(to.as_mut_ptr().add(128 * run + 64), second);
                    }
                }
            }
        }
    }

    /// Multiplies units with eight rows of x.
    ///
    /// # Safety
    /// The units are of the panel, unpacked in `codes` unless they are bytes already, and of x, as [`Place::in_tiles`] reads it.
    #[inline(always)]
    unsafe fn multiply<T: DotTiles, F: Coded>(
        &self,
        t: T,
        units: Range<usize>,
        (x, stride): (*const Block<PLANES>, usize),
        codes: &[[u8; UNIT * ROWS]; TURN],
        to: &mut [[i32; SUMS]; MOST],
    ) {
        let each = PLANES * (UNIT / columns::<F>());
        for ((unit, codes), to) in units.zip(codes).zip(to.chunks_exact_mut(each)) {
            let codes = if F::BITS == 8 { self.unit::<F>(unit).0 } else { codes.as_ptr() };
            for half in 0..UNIT / columns::<F>() {
                for plane in 0..PLANES {
                    let i = PLANES * half + plane;
                    // SAFETY: the caller's promise; planes lie behind each other at the front of a block.
                    unsafe {
                        let a = x.add(unit * stride).cast::<i8>().add(plane * UNIT + half * columns::<F>());
                        let b = codes.add(half * columns::<F>() * ROWS);
                        t.multiply(
                            (unit + i) % 2 == 1,
                            columns::<F>(),
                            (a, size_of::<Block<PLANES>>()),
                            b,
                            to[i].as_mut_ptr(),
                        );
                    }
                }
            }
        }
    }

    /// Adds what the sums of units give, as [`Place::take`] does.
    ///
    /// # Safety
    /// As [`Place::multiply`].
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "an index goes through several arrays at once")]
    unsafe fn add<T: DotTiles, F: Coded>(
        &self,
        t: T,
        units: Range<usize>,
        (x, stride): (*const Block<PLANES>, usize),
        sums: &[[i32; SUMS]; MOST],
        acc: &mut [DotTileLanes<T>; TOGETHER],
    ) {
        let (l, dtype) = (t.dots().lanes(), self.call.weight.dtype);
        let mut u = [l.splat(0.0); TOGETHER];
        let each = PLANES * (UNIT / columns::<F>());
        for (unit, sums) in units.zip(sums.chunks_exact(each)) {
            let x = x.wrapping_add(unit * stride);
            let scales = self.unit::<F>(unit).1;
            // SAFETY: the caller's promise.
            unsafe {
                if F::GROUP < UNIT {
                    for half in 0..2 {
                        let (scale, _) = F::Scales::of(l, scales, 2 * (unit % F::UNITS) + half, dtype);
                        for m in 0..TOGETHER {
                            let block = &*x.add(m);
                            let of_x = Some(half);
                            let sum =
                                centered::<T, F>(t, [&sums[PLANES * half], &sums[PLANES * half + 1]], m, (block, of_x));
                            let product = l.mul(l.splat(block.scale), sum);
                            acc[m] = l.fma(scale, product, acc[m]);
                        }
                    }
                    continue;
                }
                for m in 0..TOGETHER {
                    let block = &*x.add(m);
                    let sum = centered::<T, F>(t, [&sums[0], &sums[1]], m, (block, None));
                    u[m] = l.fma(l.splat(block.scale), sum, u[m]);
                }
                if ((unit + 1) * UNIT).is_multiple_of(F::GROUP) {
                    let (scale, bias) = F::Scales::of(l, scales, unit % F::UNITS * UNIT / F::GROUP, dtype);
                    for m in 0..TOGETHER {
                        acc[m] = l.fma(scale, u[m], acc[m]);
                        if F::Scales::CENTER.is_none() {
                            let block = &*x.add(m);
                            acc[m] = l.fma(bias, l.splat(block.offsets[F::GROUP / UNIT / 2]), acc[m]);
                        }
                        u[m] = l.splat(0.0);
                    }
                }
            }
        }
    }
}

/// The sums of row `m` of two planes as F32, less what the center of the codes makes of x: of a half of it or of all.
///
/// # Safety
/// There are sums of eight rows.
#[inline(always)]
unsafe fn centered<T: DotTiles, F: Coded>(
    t: T,
    [high, low]: [&[i32; SUMS]; PLANES],
    m: usize,
    (block, half): (&Block<PLANES>, Option<usize>),
) -> DotTileLanes<T> {
    let (d, center) = (t.dots(), F::Scales::CENTER.unwrap_or(0));
    // SAFETY: the caller's promise.
    let sums = unsafe { d.join(t.sums(high.as_ptr().add(m * ROWS)), t.sums(low.as_ptr().add(m * ROWS))) };
    if center == 0 {
        return d.to_f32(sums);
    }
    let off = half.map_or_else(|| block.off(center), |half| block.off_half(center, half));
    d.to_f32(d.add(sums, d.splat(off)))
}
