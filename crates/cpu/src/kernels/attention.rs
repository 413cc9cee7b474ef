//! Softmax attention over pages: what its kernels share, each of which opens with its own figures.
//!
//! math: `s_j = dot(q, k_j) * scale`, `out = sum_j exp(s_j) v_j / sum_j exp(s_j)`
//! shapes: q, out [T, H * E]; keys and values of a kv head [page_tokens, E] in each page
//! layout: see `tare_cpu::kv`
//! precision: F32, but for products of BF16 in [`tiles`]
//! preconditions: context 1 at least, inside the row's table
//! cost: keys and values of the context once for each row or tile of rows; 4 E flops a head and token
//! tolerance: none in [`ordered`]; else that of `tare_ops::exact::attention`
//! wins: [`ordered`] where bits must be the reference's, [`spans`] for a few rows, [`columns`] and [`tiles`] for many
//! loses: see each
//! fallback: [`ordered`] takes every call
//! evidence: none yet
//! source: see each
//!
//! [`ordered`] keeps the reference's order of sums. In classes that allow any order, [`spans`] cuts the context of a few
//! rows into spans that are joined at the end, and [`columns`] and [`tiles`] take many rows of a sequence together.

pub mod columns;
pub mod ordered;
mod pages;
pub mod scratch;
mod soften;
pub mod spans;
pub mod tiles;
mod units;

use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use tare_ops::Row;

use super::kv_append::TableView;
use crate::pool::Region;
use crate::rows::Rows;
use crate::tiled::Tiled;
pub use pages::Element;
use scratch::Scratch;

/// Heads of one kv head that a worker takes together, at most.
pub const TOGETHER: usize = 8;

/// A call.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Decoder layer.
    pub layer: usize,
    /// [T, H * E]
    pub q: Rows,
    /// [T, H * E]
    pub out: Rows,
    /// What holds them instead.
    pub tiled: InTiles,
    /// Elements of a head.
    pub head_size: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Runs of consecutive query heads with the kv head they share, each of [`TOGETHER`] at most.
    pub runs: Vec<(Range<usize>, usize)>,
    /// How its kernel goes about it.
    pub method: Method,
}

/// Queries and results in tiles of BF16 for the left side of a product, and not in rows: for [`Method::Tiles`] alone, which rounds
/// queries anyway, and heads of whole tiles.
#[derive(Clone, Copy, Debug, Default)]
pub struct InTiles {
    /// [T / 16, H * E / 32]
    pub q: Option<Tiled>,
    /// [T / 16, H * E / 32]
    pub out: Option<Tiled>,
}

/// How a kernel goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// See [`ordered`].
    Ordered,
    /// See [`spans`].
    Spans,
    /// See [`columns`].
    Columns,
    /// See [`tiles`].
    Tiles,
}

impl Attention {
    /// The runs of `kv_of_head`.
    pub fn runs_of(kv_of_head: &[u16]) -> Vec<(Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for (head, kv) in kv_of_head.iter().map(|kv| usize::from(*kv)).enumerate() {
            match runs.last_mut() {
                Some((run, of)) if *of == kv && run.len() < TOGETHER => run.end = head + 1,
                _ => runs.push((head..head + 1, kv)),
            }
        }
        runs
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.runs.last().map_or(0, |(run, _)| run.end)
    }
}

/// What the calls of a step share.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// Rows of the step.
    pub rows: &'a [Row],
    /// Their tables.
    pub tables: &'a [TableView],
    /// The next piece of work of this call, 0 at first.
    pub next: &'a AtomicUsize,
    /// Room for the longest context.
    pub scratch: &'a Scratch,
}

/// A worker's share of a call.
///
/// # Safety
/// The rows have been checked against the tables, q and out hold them, the scratch has room, nobody writes the cache, and
/// every worker of the region comes here.
pub type AttentionFn = unsafe fn(&Attention, Cache, Region);
