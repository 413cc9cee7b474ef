//! Calls of a plan that one launch can carry, because they follow each other and nobody else looks at what lies between.
//!
//! A fused launch gives the bits that its calls give one by one where they keep the reference's order of sums, so that a
//! plan means the same either way. Calls that are bound to kernels with an order of their own travel with their like.

use tare_ops::{BufId, ForwardPlan, HeadCalls, Op, RowSpace, WeightId};

use crate::layout::Layout;
use crate::registry::{FREE_ROWS, MOST_HEAD, Method};
use crate::tiles::widened_rows;
use crate::units::{GATED, LINEAR_FEW, PARTS, STAGED_COLUMNS};

/// Calls that one launch carries, by their indices in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// A call by itself.
    One(usize),
    /// Products over the same rows: `count` calls from `first` on.
    Linears {
        /// The norm that makes those rows.
        norm: Option<usize>,
        /// The first product.
        first: usize,
        /// How many.
        count: usize,
        /// The gated unit that the two products feed.
        gated: Option<usize>,
    },
    /// Norms (if any) and rotations of queries and keys, and the append that stores the keys.
    Heads {
        /// First call.
        first: usize,
        /// Whether the first two calls are norms.
        normed: bool,
        /// Whether the attention that follows goes along.
        attended: bool,
    },
}

impl Group {
    /// Indices of its calls.
    pub(crate) fn calls(&self) -> std::ops::Range<usize> {
        match *self {
            Group::One(i) => i..i + 1,
            Group::Linears { norm, first, count, gated } => {
                norm.unwrap_or(first)..gated.map_or(first + count, |g| g + 1)
            }
            Group::Heads { first, normed, attended } => {
                first..first + if normed { 5 } else { 3 } + usize::from(attended)
            }
        }
    }
}

impl Group {
    /// Buffers that its launches leave: what its calls write, less what only calls of the group read.
    pub(crate) fn leaves(&self, plan: &ForwardPlan) -> Vec<BufId> {
        let of = |calls: std::ops::Range<usize>| calls.filter_map(|i| plan.calls[i].op.writes()).collect();
        match *self {
            Group::One(i) => of(i..i + 1),
            Group::Linears { gated: Some(at), .. } => of(at..at + 1),
            Group::Linears { first, count, .. } => of(first..first + count),
            Group::Heads { attended: true, .. } => of(self.calls().end - 1..self.calls().end),
            // The rotations, which come after the norms of the same rows.
            Group::Heads { .. } => of(self.calls().end - 3..self.calls().end),
        }
    }

    /// Whether what it leaves is kept as BF16 alone.
    pub(crate) fn leaves_bf16(&self, plan: &ForwardPlan) -> bool {
        match *self {
            Group::Linears { first, gated: Some(_), .. } => Method::of(&plan.calls[first].kernel).is_tiles(),
            _ => false,
        }
    }
}

/// The calls of `plan` in launches, in order; each by itself when not `fused`.
pub(crate) fn groups(plan: &ForwardPlan, fused: bool) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut at = 0;
    while at < plan.calls.len() {
        let group = if fused { Finder { plan }.group(at) } else { Group::One(at) };
        at = group.calls().end;
        groups.push(group);
    }
    groups
}

struct Finder<'a> {
    plan: &'a ForwardPlan,
}

/// What products must share to be in one launch.
#[derive(Clone, Copy, PartialEq)]
struct Product {
    x: BufId,
    method: Method,
    layout: Layout,
    bf16: bool,
    out: BufId,
    accumulate: bool,
    /// Whether its weight is too wide to be widened at once.
    in_parts: bool,
}

impl Finder<'_> {
    fn group(&self, at: usize) -> Group {
        match self.op(at) {
            Some(Op::RmsNorm { .. }) => self.normed_linears(at).unwrap_or(Group::One(at)),
            Some(Op::Linear { .. }) => self.linears(at, None).unwrap_or(Group::One(at)),
            Some(Op::HeadNorm { .. } | Op::Rope { .. }) => self.heads(at).unwrap_or(Group::One(at)),
            _ => Group::One(at),
        }
    }

    fn op(&self, at: usize) -> Option<&Op> {
        self.plan.calls.get(at).map(|c| &c.op)
    }

    fn method(&self, at: usize) -> Method {
        self.plan.calls.get(at).map_or(Method::Lanes, |c| Method::of(&c.kernel))
    }

    fn rows(&self, id: BufId) -> usize {
        match self.plan.buffer(id).rows {
            RowSpace::All => self.plan.bucket.rows,
            RowSpace::Selected => self.plan.bucket.selected,
        }
    }

    fn layout(&self, id: WeightId) -> Option<Layout> {
        self.plan.weight(id).map(|w| Layout::of(w.format))
    }

    /// A norm and the products over what it makes, when nothing else reads that.
    fn normed_linears(&self, at: usize) -> Option<Group> {
        let Some(Op::RmsNorm { x, out, .. }) = self.op(at) else { return None };
        let most = LINEAR_FEW.iter().map(|(rows, _)| *rows).find(|rows| self.rows(*out) <= *rows)?;
        let cols = self.plan.buffer(*out).width.next_multiple_of(crate::layout::CHUNK);
        let group = self.linears(at + 1, Some((at, *out)))?;
        let fits = match (self.method(at), self.method(at + 1)) {
            (Method::Lanes, Method::Lanes) => cols * most <= STAGED_COLUMNS,
            (norm, product) => norm == Method::Block && product == Method::Gemv,
        };
        // A block may still read the rows when another one has its outputs already.
        let apart = group.calls().skip(1).all(|i| self.op(i).is_some_and(|op| op.output() != x));
        (fits && apart && !self.read_from(group.calls().end, *out)).then_some(group)
    }

    /// Products over the same rows from `at` on, with the gated unit after two of them.
    fn linears(&self, at: usize, norm: Option<(usize, BufId)>) -> Option<Group> {
        let first = self.product(at)?;
        let tiles = first.method.is_tiles();
        let many = self.rows(first.out) > LINEAR_FEW[LINEAR_FEW.len() - 1].0;
        if norm.is_some_and(|(_, x)| tiles || x != first.x) || (many && !tiles) {
            return None;
        }
        let mut outs = vec![first.out];
        while let Some(next) = self.product(at + outs.len()).filter(|next| !next.in_parts) {
            let alike = Product { out: first.out, ..next } == first && !first.accumulate;
            if !alike || outs.contains(&next.out) || next.out == first.x || outs.len() == PARTS {
                break;
            }
            outs.push(next.out);
        }
        let norm = norm.map(|(at, _)| at);
        let group = Group::Linears { norm, first: at, count: outs.len(), gated: None };
        let gated = match first.method {
            Method::Wgmma => self.gated_tiles(&group, &outs),
            Method::Mma => None,
            _ => self.gated(&group, &outs),
        };
        Some(match group {
            Group::Linears { norm, first, count, .. } => Group::Linears { norm, first, count, gated },
            other => other,
        })
    }

    /// The gated unit that follows the products into `outs`, when nobody reads what they give before or after it.
    fn gated(&self, products: &Group, outs: &[BufId]) -> Option<usize> {
        let at = products.calls().end;
        let (Some(Op::SwiGlu { gate, up, out }), [first, second]) = (self.op(at), outs) else { return None };
        let theirs = gate == first && up == second && out == gate;
        let most = if self.method(at - 1) == Method::Gemv { FREE_ROWS } else { GATED };
        (theirs && self.rows(*gate) <= most && !self.read_from(at + 1, *up)).then_some(at)
    }

    /// The same for products in tiles, which keep what the unit gives as BF16 alone.
    fn gated_tiles(&self, products: &Group, outs: &[BufId]) -> Option<usize> {
        let at = products.calls().end;
        let (Some(Op::SwiGlu { gate, up, out }), [first, second]) = (self.op(at), outs) else { return None };
        let theirs = gate == first && up == second && out == gate;
        let fast = self.method(at) == Method::Fast;
        (theirs && fast && !self.read_from(at + 1, *up) && self.only_tiles_read(at + 1, *out)).then_some(at)
    }

    /// Whether somebody from `at` on reads what `buffer` holds before another writes it, and all who do are products in
    /// tiles.
    fn only_tiles_read(&self, at: usize, buffer: BufId) -> bool {
        let mut readers = self.plan.readers(at, buffer).peekable();
        let in_tiles = |i: usize| {
            let call = &self.plan.calls[i];
            let product = matches!(call.op, Op::Linear { .. }) && Method::of(&call.kernel).is_tiles();
            product && call.op.writes() != Some(buffer)
        };
        readers.peek().is_some() && readers.all(in_tiles)
    }

    fn product(&self, at: usize) -> Option<Product> {
        let Some(Op::Linear { x, weight, accumulate, rounding, out, .. }) = self.op(at) else { return None };
        let bf16 = *rounding == tare_ops::Rounding::Bf16;
        let (layout, method) = (self.layout(*weight)?, self.method(at));
        let packed = self.plan.weight(*weight).filter(|_| method.is_tiles() && layout.plain == 0);
        let in_parts = packed.is_some_and(|w| widened_rows(w.rows, w.cols) < w.rows);
        Some(Product { x: *x, layout, bf16, out: *out, accumulate: *accumulate, method, in_parts })
    }

    /// `[norm q, norm k,] rope q, rope k, append k v` and, where it may travel along, the attention of q.
    fn heads(&self, at: usize) -> Option<Group> {
        let heads = self.plan.heads(at)?;
        let HeadCalls { first, normed, q, k } = heads;
        let attended = self.attended(heads.append() + 1, q, k, heads.append());
        (self.plan.kv.head_size <= MOST_HEAD).then_some(Group::Heads { first, normed, attended })
    }

    /// Whether call `at` is attention of `q` that can prepare its heads itself: with one row, of the layer that the append
    /// stores in, and when nobody reads the turned rows afterwards.
    fn attended(&self, at: usize, q: BufId, k: BufId, append: usize) -> bool {
        let (Some(Op::Attention { layer, q: asked, .. }), Some(Op::KvAppend { layer: stored, .. })) =
            (self.op(at), self.op(append))
        else {
            return false;
        };
        let one = self.plan.bucket.rows == 1 && self.method(at) == Method::Split;
        one && *asked == q && layer == stored && !self.read_from(at + 1, q) && !self.read_from(at + 1, k)
    }

    /// Whether a call from `at` on reads what `buffer` holds before another writes it.
    fn read_from(&self, at: usize, buffer: BufId) -> bool {
        self.plan.readers(at, buffer).next().is_some()
    }
}

#[cfg(test)]
mod tests;
