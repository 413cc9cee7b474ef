//! The second pass: values weighted by their probabilities, for tokens ascending.

use std::ops::Range;

use super::Heads;
use crate::kernels::attention::pages::{Block, Element};
use crate::lanes::{LANES, Lanes};

/// `out += p_j v_j` in `range` of the columns, for the values of a block and H heads: each value is loaded once for all
/// of them.
///
/// # Safety
/// The block's values and their probabilities lie there; out holds E elements, the columns among them.
#[inline(always)]
pub(super) unsafe fn block<L: Lanes, T: Element, const H: usize>(
    l: L,
    heads: &Heads<H>,
    values: &Block<T>,
    range: &Range<usize>,
) {
    let mut e = range.start;
    // SAFETY: columns of the range.
    unsafe {
        while L::WIDE && e + 8 * LANES <= range.end {
            columns::<L, T, H, 8>(l, heads, values, e);
            e += 8 * LANES;
        }
        while e + 4 * LANES <= range.end {
            columns::<L, T, H, 4>(l, heads, values, e);
            e += 4 * LANES;
        }
        while e + LANES <= range.end {
            columns::<L, T, H, 1>(l, heads, values, e);
            e += LANES;
        }
        if e < range.end {
            last_columns(l, heads, values, e, range.end - e);
        }
    }
}

/// Columns `e .. e + 16 C`.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn columns<L: Lanes, T: Element, const H: usize, const C: usize>(
    l: L,
    heads: &Heads<H>,
    values: &Block<T>,
    e: usize,
) {
    let mut acc = [[l.splat(0.0); C]; H];
    // SAFETY: the caller's promise.
    unsafe {
        for (acc, out) in acc.iter_mut().zip(heads.out) {
            for (c, acc) in acc.iter_mut().enumerate() {
                *acc = l.load(out.add(e + c * LANES));
            }
        }
        for j in 0..values.tokens {
            let row = values.first.add(j * values.size + e);
            values.ask(l, j * values.size + e, C * LANES);
            let mut p = [l.splat(0.0); H];
            for (p, scores) in p.iter_mut().zip(heads.scores) {
                *p = l.splat(*scores.add(values.at + j));
            }
            for c in 0..C {
                let v = T::load(l, row.add(c * LANES));
                for (acc, p) in acc.iter_mut().zip(p) {
                    acc[c] = l.fma(p, v, acc[c]);
                }
            }
        }
        for (acc, out) in acc.iter().zip(heads.out) {
            for (c, acc) in acc.iter().enumerate() {
                l.store(out.add(e + c * LANES), *acc);
            }
        }
    }
}

/// Columns `e .. e + part`, fewer than 16.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn last_columns<L: Lanes, T: Element, const H: usize>(
    l: L,
    heads: &Heads<H>,
    values: &Block<T>,
    e: usize,
    part: usize,
) {
    for (out, scores) in heads.out.into_iter().zip(heads.scores) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc = l.load_part(out.add(e), part, 0.0);
            for j in 0..values.tokens {
                let v = T::load_part(l, values.first.add(j * values.size + e), part);
                acc = l.fma(l.splat(*scores.add(values.at + j)), v, acc);
            }
            l.store_part(out.add(e), part, acc);
        }
    }
}
