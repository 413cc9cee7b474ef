//! Values weighted by their exponentials, for the tokens of a span ascending.

use std::ops::Range;

use super::DEALT;
use crate::kernels::attention::pages::{Element, Half, Pages};
use crate::lanes::{LANES, Lanes};

/// The values of a span.
pub(super) struct Mix<'a, T> {
    pub(super) pages: Pages<'a>,
    pub(super) tokens: Range<usize>,
    /// What will be read after them; null for nothing.
    pub(super) next: *const T,
    /// Whether the values are still far, and asked for.
    pub(super) far: bool,
}

impl<T: Element> Mix<'_, T> {
    /// `out = sum_j p_j v_j` for H heads, in the order of [`Element::two`]: each value is loaded once for all of them.
    /// Later calls find the values near.
    ///
    /// # Safety
    /// The values and their weights lie there; out has room for E elements, rounded up to 16.
    #[inline(always)]
    pub(super) unsafe fn all<L: Lanes, const H: usize>(&mut self, l: L, p: [*mut f32; H], out: [*mut f32; H]) {
        let (size, mut e) = (self.pages.size, 0);
        // SAFETY: the caller's promise.
        unsafe {
            while L::WIDE && e + 4 * DEALT <= size {
                self.pairs::<L, H, 4>(l, p, out, e);
                e += 4 * DEALT;
            }
            while L::WIDE && e + 3 * DEALT <= size {
                self.pairs::<L, H, 3>(l, p, out, e);
                e += 3 * DEALT;
            }
            while e + 2 * DEALT <= size {
                self.pairs::<L, H, 2>(l, p, out, e);
                e += 2 * DEALT;
            }
            while e + DEALT <= size {
                self.pairs::<L, H, 1>(l, p, out, e);
                e += DEALT;
            }
            while e < size {
                self.single(l, p, out, e);
                e += LANES;
            }
        }
        self.far = false;
    }

    /// Elements `e .. e + 32 P`.
    ///
    /// # Safety
    /// As [`Mix::all`].
    #[expect(clippy::needless_range_loop, reason = "an index goes through several arrays at once")]
    #[inline(always)]
    unsafe fn pairs<L: Lanes, const H: usize, const P: usize>(
        &self,
        l: L,
        p: [*mut f32; H],
        out: [*mut f32; H],
        e: usize,
    ) {
        let size = self.pages.size;
        let mut acc = [[[l.splat(0.0); 2]; P]; H];
        let mut at = self.tokens.start;
        // SAFETY: the caller's promise.
        unsafe {
            while at < self.tokens.end {
                let values = self.pages.block(Half::Values, at, LANES, self.tokens.end, self.next);
                for j in 0..values.tokens {
                    let row = values.first.add(j * size + e);
                    if e == 0 && self.far {
                        values.ask_all(l, j * size, size);
                    }
                    let mut weight = [l.splat(0.0); H];
                    for h in 0..H {
                        weight[h] = l.splat(*p[h].add(at - self.tokens.start + j));
                    }
                    for c in 0..P {
                        let (a, b) = T::two(l, row.add(c * DEALT));
                        for h in 0..H {
                            acc[h][c] = [l.fma(weight[h], a, acc[h][c][0]), l.fma(weight[h], b, acc[h][c][1])];
                        }
                    }
                }
                at += values.tokens;
            }
            for h in 0..H {
                for c in 0..P {
                    l.store(out[h].add(e + c * DEALT), acc[h][c][0]);
                    l.store(out[h].add(e + c * DEALT + LANES), acc[h][c][1]);
                }
            }
        }
    }

    /// Elements `e .. e + 16`, or as many as are left.
    ///
    /// # Safety
    /// As [`Mix::all`].
    #[inline(always)]
    unsafe fn single<L: Lanes, const H: usize>(&self, l: L, p: [*mut f32; H], out: [*mut f32; H], e: usize) {
        let size = self.pages.size;
        let mut acc = [l.splat(0.0); H];
        let mut at = self.tokens.start;
        // SAFETY: the caller's promise.
        unsafe {
            while at < self.tokens.end {
                let values = self.pages.block(Half::Values, at, LANES, self.tokens.end, self.next);
                for j in 0..values.tokens {
                    let (row, part) = (values.first.add(j * size + e), size - e);
                    let v = if part < LANES { T::load_part(l, row, part) } else { T::load(l, row) };
                    for h in 0..H {
                        acc[h] = l.fma(l.splat(*p[h].add(at - self.tokens.start + j)), v, acc[h]);
                    }
                }
                at += values.tokens;
            }
            for h in 0..H {
                l.store(out[h].add(e), acc[h]);
            }
        }
    }
}
