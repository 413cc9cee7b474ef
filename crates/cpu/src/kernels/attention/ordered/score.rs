//! The first pass: scores of up to 16 keys at once.

use super::Heads;
use crate::kernels::attention::pages::{Block, Element};
use crate::lanes::{LANES, Lanes};

/// `dot(q, k_j) * scale` for the keys of a block and H heads: each key is loaded once for all of them.
///
/// # Safety
/// The block's keys, 16 at most, lie there; q holds E elements and the scores have room for the block.
#[inline(always)]
pub(super) unsafe fn block<L: Lanes, T: Element, const H: usize>(l: L, heads: &Heads<H>, keys: &Block<T>, scale: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = match keys.size {
            64 => dots::<L, T, H, 4>(l, heads, keys),
            80 => dots::<L, T, H, 5>(l, heads, keys),
            96 => dots::<L, T, H, 6>(l, heads, keys),
            128 => dots::<L, T, H, 8>(l, heads, keys),
            _ => dots_of_any_size(l, heads, keys),
        };
        for (sums, scores) in sums.iter().zip(heads.scores) {
            let s = l.mul(l.sum_each(sums), l.splat(scale));
            let to = scores.add(keys.at);
            if keys.tokens == LANES { l.store(to, s) } else { l.store_part(to, keys.tokens, s) }
        }
    }
}

/// The lanes of the dot products when E is 16 * C: the queries stay in registers.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn dots<L: Lanes, T: Element, const H: usize, const C: usize>(
    l: L,
    heads: &Heads<H>,
    keys: &Block<T>,
) -> [[L::V; LANES]; H] {
    let mut q = [[l.splat(0.0); C]; H];
    let mut sums = [[l.splat(0.0); LANES]; H];
    // SAFETY: the caller's promise.
    unsafe {
        for (q, from) in q.iter_mut().zip(heads.q) {
            for (c, q) in q.iter_mut().enumerate() {
                *q = l.load(from.add(c * LANES));
            }
        }
        for j in 0..keys.tokens {
            let key = keys.first.add(j * C * LANES);
            keys.ask(l, j * C * LANES, C * LANES);
            let mut acc = [l.splat(0.0); H];
            for c in 0..C {
                let k = T::load(l, key.add(c * LANES));
                for (acc, q) in acc.iter_mut().zip(&q) {
                    *acc = l.fma(q[c], k, *acc);
                }
            }
            for (sums, acc) in sums.iter_mut().zip(acc) {
                sums[j] = acc;
            }
        }
    }
    sums
}

/// The same for any E.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn dots_of_any_size<L: Lanes, T: Element, const H: usize>(
    l: L,
    heads: &Heads<H>,
    keys: &Block<T>,
) -> [[L::V; LANES]; H] {
    let mut sums = [[l.splat(0.0); LANES]; H];
    let whole = keys.size / LANES * LANES;
    keys.ask(l, 0, keys.tokens * keys.size);
    for (sums, q) in sums.iter_mut().zip(heads.q) {
        for (j, acc) in sums.iter_mut().enumerate().take(keys.tokens) {
            // SAFETY: the caller's promise.
            unsafe {
                let key = keys.first.add(j * keys.size);
                for e in (0..whole).step_by(LANES) {
                    *acc = l.fma(l.load(q.add(e)), T::load(l, key.add(e)), *acc);
                }
                if whole < keys.size {
                    // -0 times +0 added to a lane changes no bit of it.
                    let part = keys.size - whole;
                    let (q, k) = (l.load_part(q.add(whole), part, -0.0), T::load_part(l, key.add(whole), part));
                    *acc = l.fma(q, k, *acc);
                }
            }
        }
    }
    sums
}
