//! Cases of the operators that touch the KV cache.
//!
//! A pool holds NaN wherever no row of the case may read: beyond the context in the last page, in pages that no table
//! names, in the other layer. One number too many shows in every element of the result.

use tare_core::DType;

use super::case::{Case, Draft, POOL};
use super::values::{Noise, WIDE_KINDS, table};
use crate::batch::Table;
use crate::op::Op;
use crate::plan::KvShape;
use crate::reference::kv::{Half, KvPool};

pub(super) fn cases() -> Vec<Case> {
    [appends(), attentions(), chunks(), mixed()].into_iter().flatten().collect()
}

/// Shapes of one case.
#[derive(Clone, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    page_tokens: usize,
    dtype: DType,
    /// One sequence each; with [`attentions`] one row each.
    contexts: Vec<usize>,
}

impl Shape {
    fn name(&self, op: &str) -> String {
        let Self { heads, kv_heads, head_size, page_tokens, dtype, contexts } = self;
        let contexts: Vec<String> = contexts.iter().map(ToString::to_string).collect();
        format!("{op}.{dtype}.h{heads}_k{kv_heads}_e{head_size}_p{page_tokens}_s{}", contexts.join("_"))
    }

    fn kv(&self) -> KvShape {
        KvShape { layers: 2, kv_heads: self.kv_heads, head_size: self.head_size, dtype: self.dtype }
    }

    /// One table for each sequence, the pages of all dealt out backwards and in turn; one page more than is named.
    fn tables(&self) -> (Vec<Table>, usize) {
        let need: Vec<usize> = self.contexts.iter().map(|s| s.div_ceil(self.page_tokens)).collect();
        let pages = need.iter().sum::<usize>() + 1;
        let mut next = pages as u32;
        let mut tables = vec![Table { kv: POOL, pages: Vec::new() }; need.len()];
        while tables.iter().zip(&need).any(|(t, n)| t.pages.len() < *n) {
            for (table, n) in tables.iter_mut().zip(&need) {
                if table.pages.len() < *n {
                    next -= 1;
                    table.pages.push(next);
                }
            }
        }
        (tables, pages)
    }

    fn pool(&self, pages: usize) -> KvPool {
        KvPool::new(self.kv(), pages, self.page_tokens).expect("a pool of the table's shapes")
    }

    /// `h / (H / K)`.
    fn kv_of_head(&self) -> Vec<u16> {
        (0..self.heads).map(|h| (h / (self.heads / self.kv_heads)) as u16).collect()
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.head_size as f64).sqrt()) as f32
    }
}

/// The layer that is used; the other one stays NaN.
const LAYER: u32 = 1;

fn shape((heads, kv_heads): (usize, usize), head_size: usize, page_tokens: usize, contexts: &[usize]) -> Shape {
    Shape { heads, kv_heads, head_size, page_tokens, dtype: DType::F32, contexts: contexts.to_vec() }
}

/// Each shape with an F32 and with a BF16 cache.
fn both_dtypes(shapes: Vec<Shape>) -> impl Iterator<Item = Shape> {
    shapes.into_iter().flat_map(|s| [Shape { dtype: DType::BF16, ..s.clone() }, s])
}

/// Rows that store at the last places of their sequences, two rows of the first; the whole pool is compared.
fn appends() -> Vec<Case> {
    let shapes = vec![
        shape((1, 1), 64, 1, &[3]),
        shape((3, 3), 80, 16, &[16, 17, 33]),
        shape((1, 1), 96, 64, &[65, 2]),
        shape((2, 2), 128, 100, &[40]),
    ];
    let case = |s: Shape| {
        let mut noise = Noise::new(s.head_size as u64);
        let (tables, pages) = s.tables();
        let rows = s.contexts.len() + 1;
        let mut d = Draft::new(s.name("kv_append"), rows);
        let width = s.kv_heads * s.head_size;
        let k = d.input("k", &table(&mut noise, &WIDE_KINDS, rows, width));
        let v = d.input("v", &table(&mut noise, &WIDE_KINDS[1..], rows, width));
        for (t, row) in d.batch().rows.iter_mut().enumerate() {
            row.table = t.saturating_sub(1) as u32;
            let context = s.contexts[row.table as usize] as u32;
            row.slot = if t == 0 { context - 2 } else { context - 1 };
            row.context = row.slot + 1;
        }
        d.batch().tables = tables;
        d.cache(s.pool(pages));
        d.test(Op::KvAppend { layer: LAYER, k, v });
        d.finish(k)
    };
    both_dtypes(shapes).map(case).collect()
}

/// What the scores of a case are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scores {
    /// Noise.
    Plain,
    /// All the same: queries of zeros.
    Equal,
    /// About +-80 and beyond: one token takes everything, the rest vanish.
    Far,
}

fn attentions() -> Vec<Case> {
    let shapes = vec![
        shape((1, 1), 64, 1, &[1]),
        shape((3, 1), 64, 16, &[15, 16, 17]),
        shape((5, 1), 128, 16, &[2, 33]),
        shape((9, 3), 64, 64, &[63, 64, 65, 1, 128]),
        shape((2, 2), 80, 16, &[48, 5]),
        shape((4, 2), 96, 1, &[17, 3]),
        shape((4, 1), 64, 300, &[257, 300]),
        // Runs of heads that do not go round on two or three workers.
        shape((6, 3), 80, 16, &[200]),
        shape((4, 1), 128, 64, &[193]),
        shape((9, 1), 40, 3, &[70]),
        shape((2, 1), 128, 64, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]),
        shape((2, 1), 64, 16, &[129, 1, 130, 64, 65, 128, 3, 200, 17, 33, 257, 5, 90, 256, 16, 11, 63, 127]),
    ];
    let mut cases: Vec<Case> = both_dtypes(shapes).map(|s| attention(&s, Scores::Plain, None)).collect();
    let edge = shape((4, 2), 64, 16, &[1, 16, 37]);
    for s in both_dtypes(vec![edge]) {
        cases.push(attention(&s, Scores::Equal, None));
        cases.push(attention(&s, Scores::Far, None));
        // Heads may read any kv head: the plan says which.
        cases.push(attention(&s, Scores::Plain, Some(vec![1, 0, 0, 1])));
    }
    cases
}

fn attention(s: &Shape, scores: Scores, kv_of_head: Option<Vec<u16>>) -> Case {
    let mut noise = Noise::new(s.heads as u64 * 31 + s.head_size as u64);
    let (tables, pages) = s.tables();
    let mut pool = s.pool(pages);
    for (table, context) in tables.iter().zip(&s.contexts) {
        for j in 0..*context {
            for half in [Half::Key, Half::Value] {
                let x = noise.row(s.kv_heads * s.head_size);
                pool.store(LAYER as usize, half, table.pages[j / s.page_tokens], j % s.page_tokens, &x);
            }
        }
    }
    let size = match scores {
        Scores::Plain => 4.0,
        Scores::Equal => 0.0,
        Scores::Far => 200.0,
    };
    let rows = s.contexts.len();
    let name = match (&kv_of_head, scores) {
        (Some(_), _) => s.name("attention") + "_crossed",
        (None, Scores::Plain) => s.name("attention"),
        (None, other) => format!("{}_{other:?}", s.name("attention")).to_lowercase(),
    };
    let mut d = Draft::new(name, rows);
    let width = s.heads * s.head_size;
    let q: Vec<f32> = noise.row(rows * width).iter().map(|x| x * size).collect();
    let q = d.input("q", &q);
    let out = d.poisoned("out", width);
    for (t, row) in d.batch().rows.iter_mut().enumerate() {
        // A position that is not the context: attention must not look at it.
        (row.table, row.context, row.position) = (t as u32, s.contexts[t] as u32, 7);
        row.slot = row.context - 1;
    }
    d.batch().tables = tables;
    d.cache(pool);
    let kv_of_head = kv_of_head.unwrap_or_else(|| s.kv_of_head());
    d.test(Op::Attention { layer: LAYER, q, kv_of_head, scale: s.scale(), out });
    d.finish(out)
}

/// A whole sequence in one step: its rows store first and then see themselves and the rows before them.
fn chunks() -> Vec<Case> {
    let shapes = vec![
        shape((3, 1), 64, 16, &[33]),
        shape((2, 2), 96, 5, &[8]),
        shape((9, 3), 64, 64, &[17]),
        shape((2, 1), 128, 64, &[140]),
        shape((2, 1), 48, 3, &[300]),
        shape((1, 1), 256, 16, &[70]),
    ];
    let case = |s: Shape| {
        let mut noise = Noise::new(s.contexts[0] as u64);
        let (tables, pages) = s.tables();
        let rows = s.contexts[0];
        let mut d = Draft::new(s.name("attention.chunk"), rows);
        let inputs = [("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads)];
        let [q, k, v] = inputs.map(|(name, heads)| d.input(name, &noise.row(rows * heads * s.head_size)));
        let out = d.poisoned("out", s.heads * s.head_size);
        d.batch().tables = tables;
        d.cache(s.pool(pages));
        d.call(Op::KvAppend { layer: LAYER, k, v });
        d.test(Op::Attention { layer: LAYER, q, kv_of_head: s.kv_of_head(), scale: s.scale(), out });
        d.finish(out)
    };
    both_dtypes(shapes).map(case).collect()
}

/// Chunks behind what is cached already, and single rows, of several sequences in one step: rows store first and then see
/// themselves and what lies before them.
fn mixed() -> Vec<Case> {
    // How many rows each sequence brings; its context is that of the last one.
    let steps = vec![
        (shape((4, 2), 64, 16, &[53, 34, 97, 9]), vec![20, 1, 33, 3]),
        (shape((3, 1), 128, 16, &[30, 201, 18]), vec![30, 1, 16]),
        (shape((8, 1), 80, 5, &[70, 3]), vec![17, 1]),
        (shape((2, 2), 48, 64, &[130]), vec![40]),
        (shape((9, 1), 40, 3, &[25, 12]), vec![13, 8]),
    ];
    let both = steps.into_iter().flat_map(|(s, rows)| both_dtypes(vec![s]).map(move |s| (s, rows.clone())));
    both.map(|(s, rows)| step_of(&s, &rows)).collect()
}

fn step_of(s: &Shape, rows_of: &[usize]) -> Case {
    let mut noise = Noise::new(s.head_size as u64 + 1);
    let (tables, pages) = s.tables();
    let mut pool = s.pool(pages);
    for ((table, context), rows) in tables.iter().zip(&s.contexts).zip(rows_of) {
        for j in 0..context - rows {
            for half in [Half::Key, Half::Value] {
                let x = noise.row(s.kv_heads * s.head_size);
                pool.store(LAYER as usize, half, table.pages[j / s.page_tokens], j % s.page_tokens, &x);
            }
        }
    }
    let rows: usize = rows_of.iter().sum();
    let mut d = Draft::new(s.name(&format!("attention.{rows}_rows")), rows);
    let inputs = [("q", s.heads, 4.0), ("k", s.kv_heads, 1.0), ("v", s.kv_heads, 1.0)];
    let [q, k, v] = inputs.map(|(name, heads, size)| {
        let x: Vec<f32> = noise.row(rows * heads * s.head_size).iter().map(|x| x * size).collect();
        d.input(name, &x)
    });
    let out = d.poisoned("out", s.heads * s.head_size);
    let places = rows_of.iter().zip(&s.contexts).enumerate();
    let places = places.flat_map(|(table, (n, context))| (context - n..*context).map(move |slot| (table, slot)));
    for (row, (table, slot)) in d.batch().rows.iter_mut().zip(places) {
        (row.table, row.slot, row.context, row.position) = (table as u32, slot as u32, slot as u32 + 1, 7);
    }
    d.batch().tables = tables;
    d.cache(pool);
    d.call(Op::KvAppend { layer: LAYER, k, v });
    d.test(Op::Attention { layer: LAYER, q, kv_of_head: s.kv_of_head(), scale: s.scale(), out });
    d.finish(out)
}
