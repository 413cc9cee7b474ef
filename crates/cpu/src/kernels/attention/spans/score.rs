//! Scores of up to 16 keys at once.

use super::DEALT;
use crate::kernels::attention::pages::{Block, Element};
use crate::lanes::{LANES, Lanes};

/// `dot(q, k_j) * scale` for the keys of a block and H heads: each key is loaded once for all of them.
///
/// # Safety
/// The block's keys, 16 at most, lie there; q holds E dealt elements, filled up, and `to` has room for the block.
#[inline(always)]
pub(super) unsafe fn block<L: Lanes, T: Element, const H: usize>(
    l: L,
    q: [*mut f32; H],
    keys: &Block<T>,
    scale: f32,
    to: [*mut f32; H],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = match keys.size {
            64 => dots::<L, T, H, 2, 0>(l, q, keys),
            80 => dots::<L, T, H, 2, 1>(l, q, keys),
            96 => dots::<L, T, H, 3, 0>(l, q, keys),
            128 => dots::<L, T, H, 4, 0>(l, q, keys),
            _ => dots_of_any_size(l, q, keys),
        };
        for (sums, to) in sums.iter().zip(to) {
            let s = l.mul(l.sum_each(sums), l.splat(scale));
            if keys.tokens == LANES { l.store(to, s) } else { l.store_part(to, keys.tokens, s) }
        }
    }
}

/// The lanes of the dot products when E is 32 P + 16 S: the queries stay in registers.
///
/// # Safety
/// As [`block`].
#[expect(clippy::needless_range_loop, reason = "an index goes through several arrays at once")]
#[inline(always)]
unsafe fn dots<L: Lanes, T: Element, const H: usize, const P: usize, const S: usize>(
    l: L,
    from: [*mut f32; H],
    keys: &Block<T>,
) -> [[L::V; LANES]; H] {
    let size = P * DEALT + S * LANES;
    let zero = l.splat(0.0);
    let (mut pairs, mut single) = ([[[zero; 2]; P]; H], [[zero; S]; H]);
    let mut sums = [[zero; LANES]; H];
    // SAFETY: the caller's promise.
    unsafe {
        for h in 0..H {
            for p in 0..P {
                pairs[h][p] = [l.load(from[h].add(p * DEALT)), l.load(from[h].add(p * DEALT + LANES))];
            }
            for s in 0..S {
                single[h][s] = l.load(from[h].add(P * DEALT + s * LANES));
            }
        }
        for j in 0..keys.tokens {
            let key = keys.first.add(j * size);
            keys.ask_all(l, j * size, size);
            let mut acc = [zero; H];
            for p in 0..P {
                let (a, b) = T::two(l, key.add(p * DEALT));
                for h in 0..H {
                    acc[h] = l.fma(pairs[h][p][0], a, acc[h]);
                    acc[h] = l.fma(pairs[h][p][1], b, acc[h]);
                }
            }
            for s in 0..S {
                let k = T::load(l, key.add(P * DEALT + s * LANES));
                for h in 0..H {
                    acc[h] = l.fma(single[h][s], k, acc[h]);
                }
            }
            for h in 0..H {
                sums[h][j] = acc[h];
            }
        }
    }
    sums
}

/// The same for any E.
///
/// # Safety
/// As [`block`].
#[expect(clippy::needless_range_loop, reason = "an index goes through several arrays at once")]
#[inline(always)]
unsafe fn dots_of_any_size<L: Lanes, T: Element, const H: usize>(
    l: L,
    q: [*mut f32; H],
    keys: &Block<T>,
) -> [[L::V; LANES]; H] {
    let size = keys.size;
    let (whole, mut sums) = (size / DEALT * DEALT, [[l.splat(0.0); LANES]; H]);
    keys.ask_all(l, 0, keys.tokens * size);
    for j in 0..keys.tokens {
        let mut acc = [l.splat(0.0); H];
        // SAFETY: the caller's promise.
        unsafe {
            let key = keys.first.add(j * size);
            for e in (0..whole).step_by(DEALT) {
                let (a, b) = T::two(l, key.add(e));
                for h in 0..H {
                    acc[h] = l.fma(l.load(q[h].add(e)), a, acc[h]);
                    acc[h] = l.fma(l.load(q[h].add(e + LANES)), b, acc[h]);
                }
            }
            for e in (whole..size).step_by(LANES) {
                let part = size - e;
                let k = if part < LANES { T::load_part(l, key.add(e), part) } else { T::load(l, key.add(e)) };
                for h in 0..H {
                    acc[h] = l.fma(l.load(q[h].add(e)), k, acc[h]);
                }
            }
        }
        for h in 0..H {
            sums[h][j] = acc[h];
        }
    }
    sums
}
