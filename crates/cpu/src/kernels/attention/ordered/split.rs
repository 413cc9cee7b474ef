//! Pieces shared out among workers: for steps of a few rows, whose runs of heads do not go round.
//!
//! Nothing is summed apart and joined later. A score belongs to one token, and a sum over tokens to one column of the
//! output: workers take spans of tokens for the scores, whole heads for the softmax, and columns for the values, and meet
//! in between. Every sum has the order that it has with one worker.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use super::{Attention, Cache, Element, Piece};
use crate::lanes::{Kernel, Lanes};
use crate::pool::Region;

/// Tokens that one worker scores at least: whole pages of the usual sizes.
const SPAN: usize = 64;
/// Columns that one worker mixes: 64 where that goes round, half as many else.
const COLUMNS: [usize; 2] = [64, 32];

/// Does this worker's share of every piece.
///
/// # Safety
/// That of [`super::AttentionFn`]; every worker of the region comes here.
pub(super) unsafe fn run<L: Lanes, T: Element>(l: L, call: &Attention, cache: Cache, region: Region) {
    let pieces = call.pieces(cache.rows.len());
    let piece = |p: usize| Piece::<T>::new(call, cache, p, p);
    let spans = |p: usize| piece(p).context().div_ceil(SPAN);
    let mine = region.share((0..pieces).map(spans).sum(), 1);
    let mut before = 0;
    for p in 0..pieces {
        let (piece, here) = (piece(p), spans(p));
        let from = mine.start.clamp(before, before + here) - before;
        let to = mine.end.clamp(before, before + here) - before;
        before += here;
        if from < to {
            let tokens = from * SPAN..(to * SPAN).min(piece.context());
            l.vectorize(Part { piece, what: What::Score(tokens) });
        }
    }
    region.barrier();
    let heads: usize = call.runs.iter().map(|(run, _)| run.len()).sum();
    for n in region.share(cache.rows.len() * heads, 1) {
        let (head, t) = (n / cache.rows.len(), n % cache.rows.len());
        let run = call.runs.iter().position(|(run, _)| run.contains(&head)).unwrap_or(0);
        let i = head - call.runs[run].0.start;
        l.vectorize(Part { piece: piece(run * cache.rows.len() + t), what: What::Soften(i) });
    }
    region.barrier();
    let slices = |columns: usize| call.head_size.div_ceil(columns);
    let goes_round = |columns: &usize| (pieces * slices(*columns)).is_multiple_of(region.workers);
    let columns = COLUMNS.into_iter().find(goes_round).unwrap_or(COLUMNS[1]);
    loop {
        let n = cache.next.fetch_add(1, Relaxed);
        if n >= pieces * slices(columns) {
            return;
        }
        let (p, first) = (n / slices(columns), n % slices(columns) * columns);
        let columns = first..(first + columns).min(call.head_size);
        l.vectorize(Part { piece: piece(p), what: What::Mix(columns) });
    }
}

/// Part of a piece.
struct Part<'a, T> {
    piece: Piece<'a, T>,
    what: What,
}

enum What {
    /// These tokens.
    Score(Range<usize>),
    /// This head of the run.
    Soften(usize),
    /// These columns.
    Mix(Range<usize>),
}

impl<T: Element> Kernel for Part<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // SAFETY: the parts before it are done, and this one is done by nobody else.
        unsafe {
            match self.what {
                What::Score(tokens) => self.piece.score(l, tokens),
                What::Soften(i) => self.piece.soften(l, i),
                What::Mix(columns) => self.piece.mix(l, columns),
            }
        }
    }
}
