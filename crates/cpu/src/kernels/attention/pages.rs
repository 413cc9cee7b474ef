//! Where keys and values lie, and how their elements are read.

use crate::kernels::kv_append::TableView;
use crate::lanes::{LANES, Lanes};

/// Bytes ahead of the keys and values in use that are asked for, wherever their page lies.
const AHEAD: usize = 4 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// An element of a pool.
pub trait Element: 'static {
    /// 16 elements as F32.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load<L: Lanes>(l: L, p: *const Self) -> L::V;
    /// The first `n < 16` elements, +0 in the other lanes.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load_part<L: Lanes>(l: L, p: *const Self, n: usize) -> L::V;
    /// 32 elements, dealt out to two vectors as it is cheapest: [`Element::deal`] does the same to F32.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn two<L: Lanes>(l: L, p: *const Self) -> (L::V, L::V);
    /// Where number `i` of 32 comes to lie in the two vectors of [`Element::two`].
    fn deal(i: usize) -> usize;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const f32) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(l: L, p: *const f32, n: usize) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.load_part(p, n, 0.0) }
    }
    #[inline(always)]
    unsafe fn two<L: Lanes>(l: L, p: *const f32) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { (l.load(p), l.load(p.add(LANES))) }
    }
    #[inline(always)]
    fn deal(i: usize) -> usize {
        i
    }
}

impl Element for half::bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(l: L, p: *const half::bf16) -> L::V {
        // SAFETY: the caller's promise.
        unsafe { l.bf16s(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(l: L, p: *const half::bf16, n: usize) -> L::V {
        let mut whole = [half::bf16::ZERO; LANES];
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(p, whole.as_mut_ptr(), n);
            l.bf16s(whole.as_ptr().cast())
        }
    }
    #[inline(always)]
    unsafe fn two<L: Lanes>(l: L, p: *const half::bf16) -> (L::V, L::V) {
        // SAFETY: the caller's promise.
        unsafe { l.two_bf16s(p.cast()) }
    }
    #[inline(always)]
    fn deal(i: usize) -> usize {
        i % 2 * LANES + i / 2
    }
}

/// 16 elements, or the first `n` and zeros where there are fewer.
///
/// # Safety
/// They lie at `p`.
#[inline(always)]
pub(super) unsafe fn up_to_16<L: Lanes, T: Element>(l: L, p: *const T, n: usize) -> L::V {
    // SAFETY: the caller's promise.
    unsafe { if n < LANES { T::load_part(l, p, n) } else { T::load(l, p) } }
}

/// Which half of a page.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Keys,
    Values,
}

/// Keys and values of one kv head of a sequence in one layer.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub(super) table: &'a TableView,
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// E
    pub(super) size: usize,
}

impl Pages<'_> {
    /// Where a token's keys or values lie.
    #[inline(always)]
    pub(super) fn place<T>(&self, half: Half, token: usize) -> *const T {
        let pool = &self.table.pool;
        let (n, inside) = (token / pool.page_tokens, token % pool.page_tokens);
        let page = self.table.pages()[n];
        let first = match half {
            Half::Keys => pool.keys(self.layer, page, self.kv_head),
            Half::Values => pool.values(self.layer, page, self.kv_head),
        };
        first.cast_const().cast::<T>().wrapping_add(inside * self.size)
    }

    /// Where the keys or values of the tokens from `first` on lie, one for each of `to`.
    #[inline(always)]
    pub(super) fn places<T>(&self, half: Half, first: usize, to: &mut [*const T]) {
        let page_tokens = self.table.pool.page_tokens;
        let mut done = 0;
        while done < to.len() {
            let run = (page_tokens - (first + done) % page_tokens).min(to.len() - done);
            let at = self.place::<T>(half, first + done);
            for (i, to) in to[done..done + run].iter_mut().enumerate() {
                *to = at.wrapping_add(i * self.size);
            }
            done += run;
        }
    }

    /// Up to `most` tokens from `at` on, before `end` and in one page, and the place of what follows [`AHEAD`] bytes
    /// later, in whatever page; behind the end that is what lies at `after`, null for nothing. `at < end`, `end` is in
    /// the context.
    #[inline(always)]
    pub(super) fn block<T>(&self, half: Half, at: usize, most: usize, end: usize, after: *const T) -> Block<T> {
        let page_tokens = self.table.pool.page_tokens;
        let later = at + (AHEAD / (self.size * size_of::<T>())).max(1);
        let ahead = if later < end {
            self.place(half, later)
        } else if after.is_null() {
            after
        } else {
            after.wrapping_add((later - end) * self.size)
        };
        let tokens = most.min(page_tokens - at % page_tokens).min(end - at);
        let elsewhere = later >= end || later / page_tokens != at / page_tokens;
        Block { first: self.place(half, at), ahead, elsewhere, size: self.size, tokens, at }
    }
}

/// Keys or values of some tokens, one after the other.
pub(super) struct Block<T> {
    pub(super) first: *const T,
    /// As many elements that will be read later, to be asked for; null for none.
    pub(super) ahead: *const T,
    /// Whether those lie in another page.
    pub(super) elsewhere: bool,
    /// E
    pub(super) size: usize,
    pub(super) tokens: usize,
    /// The first token's place in the context.
    pub(super) at: usize,
}

impl<T> Block<T> {
    /// Asks for what follows elements `from .. from + n` of the block: for every line in another page, for the first one
    /// in the same, where the processor finds the stream by itself.
    #[inline(always)]
    pub(super) fn ask<L: Lanes>(&self, l: L, from: usize, n: usize) {
        if !self.ahead.is_null() {
            let first = self.ahead.wrapping_add(from).cast::<u8>();
            l.prefetch(first);
            if self.elsewhere {
                for at in (LINE..n * size_of::<T>()).step_by(LINE) {
                    l.prefetch(first.wrapping_add(at));
                }
            }
        }
    }

    /// Asks for every line of what follows elements `from .. from + n` of the block.
    #[inline(always)]
    pub(super) fn ask_all<L: Lanes>(&self, l: L, from: usize, n: usize) {
        if !self.ahead.is_null() {
            let first = self.ahead.wrapping_add(from).cast::<u8>();
            for at in (0..n * size_of::<T>()).step_by(LINE) {
                l.prefetch(first.wrapping_add(at));
            }
        }
    }
}
