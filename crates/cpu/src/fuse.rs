//! Calls of a plan that one stage carries, and rows that are kept in tiles alone, because nobody else looks at what lies
//! between.
//!
//! A plan means the same either way, bit for bit: the stage computes what its calls compute one by one, and linears in tiles
//! would round their rows to the same BF16.

use std::ops::Range;

use tare_ops::{BufId, ForwardPlan, HeadCalls, Op};

use crate::kernels::attention::Method;
use crate::kernels::linear_tiles::heads;
use crate::registry::{Entry, InTiles};
use crate::tiled::Side;
use crate::tiles::STEP;

/// How a call runs.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// By itself.
    Alone,
    /// A norm, or attention, whose rows go into tiles for this linear and its like.
    InTiles(InTiles),
    /// Within the stage of a later call.
    Carried,
    /// A gated unit, together with the two linears before it.
    Gated(InTiles),
    /// The append of keys that these calls, of which it is the last, make ready.
    Heads(HeadCalls),
    /// The same together with the linears of queries, keys and values before them. Queries go into tiles.
    Projected(HeadCalls, InTiles),
}

impl Role {
    /// Calls that run together with call `i`, which has this role; none when it runs with a later one.
    pub const fn calls(self, i: usize) -> Option<Range<usize>> {
        match self {
            Role::Carried => None,
            Role::Gated(_) => Some(i - 2..i + 1),
            Role::Heads(heads) => Some(heads.first..i + 1),
            Role::Projected(heads, _) => Some(heads.first - LINEARS..i + 1),
            Role::Alone | Role::InTiles(_) => Some(i..i + 1),
        }
    }
}

/// Linears of queries, keys and values.
pub const LINEARS: usize = 3;

/// The role of each call of `plan`, whose calls are bound to `entries`.
pub fn roles(plan: &ForwardPlan, entries: &[Entry]) -> Vec<Role> {
    let mut roles = vec![Role::Alone; entries.len()];
    let finder = Finder { plan, entries };
    for i in 0..entries.len() {
        if let Some(kernel) = finder.gated(i) {
            roles[i - 2..i].fill(Role::Carried);
            roles[i] = Role::Gated(kernel);
        } else if let Some(kernel) = finder.ends_in_tiles(i) {
            roles[i] = Role::InTiles(kernel);
        } else if let Some(heads) = finder.heads(i).filter(|_| matches!(roles[i], Role::Alone)) {
            roles[i..heads.append()].fill(Role::Carried);
            roles[heads.append()] = Role::Heads(heads);
            if let Some(kernel) = finder.projected(&heads) {
                roles[i - LINEARS..i].fill(Role::Carried);
                roles[heads.append()] = Role::Projected(heads, kernel);
            }
        }
    }
    roles
}

struct Finder<'a> {
    plan: &'a ForwardPlan,
    entries: &'a [Entry],
}

impl Finder<'_> {
    /// The kernel of call `i`, when it is a linear in tiles.
    fn in_tiles(&self, i: usize) -> Option<InTiles> {
        match self.entries[i] {
            Entry::LinearTiles(kernel) => Some(kernel),
            _ => None,
        }
    }

    /// The first of the linears in tiles that alone read what `buffer` holds from call `at` on, all of which want it for one
    /// side.
    fn only_tiles_read(&self, at: usize, buffer: BufId) -> Option<InTiles> {
        let first = self.in_tiles(self.plan.readers(at, buffer).next()?)?;
        let like = |i: usize| {
            let adds = self.plan.calls[i].op.writes() == Some(buffer);
            self.in_tiles(i).is_some_and(|kernel| kernel.side == first.side && !adds)
        };
        self.plan.readers(at, buffer).all(like).then_some(first)
    }

    /// The linears that alone read what call `i` gives, when its kernel can lay that out for them.
    fn ends_in_tiles(&self, i: usize) -> Option<InTiles> {
        match self.plan.calls[i].op {
            Op::RmsNorm { out, .. } => self.only_tiles_read(i + 1, out),
            Op::Attention { out, .. } if self.attends_in_tiles(i) => {
                self.only_tiles_read(i + 1, out).filter(|next| next.side == Side::Left)
            }
            _ => None,
        }
    }

    /// Whether call `i` is attention in tiles of whole heads.
    fn attends_in_tiles(&self, i: usize) -> bool {
        let in_tiles = matches!(self.entries[i], Entry::Attention { method: Method::Tiles, .. });
        in_tiles && self.plan.kv.head_size.is_multiple_of(STEP)
    }

    /// The calls from `i` on that make heads ready, when their kernels are of one level.
    fn heads(&self, i: usize) -> Option<HeadCalls> {
        let heads = self.plan.heads(i)?;
        let level = |i: usize| self.plan.calls[i].kernel.rsplit('.').next();
        (heads.first..heads.append()).all(|i| level(i) == level(heads.rope())).then_some(heads)
    }

    /// The kernel of the linears in front of `calls`, when they may run with them: attention in tiles alone looks at the queries, and
    /// nobody at keys and values outside of the cache.
    fn projected(&self, calls: &HeadCalls) -> Option<InTiles> {
        let (q, append) = (calls.first.checked_sub(LINEARS)?, calls.append());
        let Op::KvAppend { k, v, .. } = self.plan.calls[append].op else { return None };
        let (x, kernel) = self.product(q, calls.q)?;
        let same_rows = self.product(q + 1, k)?.0 == x && self.product(q + 2, v)?.0 == x;
        let apart = ![calls.q, k, v].contains(&x);
        let key = |i: usize| &self.plan.calls[i].kernel;
        let alike = key(q) == key(q + 1) && key(q) == key(q + 2) && kernel.side == Side::Left;
        let unread = |buffer| self.plan.readers(append + 1, buffer).next().is_none();
        let attended = self.plan.readers(append + 1, calls.q).all(|i| self.attends_in_tiles(i));
        let (size, of_k) = (self.plan.kv.head_size, self.plan.kv.kv_heads);
        let fits = heads::takes(size, self.plan.buffer(calls.q).width / size, of_k);
        (same_rows && apart && alike && fits && attended && unread(k) && unread(v)).then_some(kernel)
    }

    /// The kernel of the two linears in front of call `i`, when it is a gated unit that may run with them.
    fn gated(&self, i: usize) -> Option<InTiles> {
        let Op::SwiGlu { gate, up, out } = self.plan.calls[i].op else { return None };
        let (g, u) = (i.checked_sub(2)?, i.checked_sub(1)?);
        let (x, kernel) = self.product(g, gate)?;
        let alike = gate != up && self.plan.calls[g].kernel == self.plan.calls[u].kernel;
        let unread = |buffer| buffer == out || self.plan.readers(i + 1, buffer).next().is_none();
        let same_rows = self.product(u, up)?.0 == x && x != gate && x != out;
        let next = self.only_tiles_read(i + 1, out)?;
        (alike && same_rows && unread(gate) && unread(up) && next.side == kernel.side).then_some(kernel)
    }

    /// The rows that call `i` multiplies, when it is a linear in tiles that leaves its products alone in `out`.
    fn product(&self, i: usize, out: BufId) -> Option<(BufId, InTiles)> {
        match self.plan.calls[i].op {
            Op::Linear { x, bias: None, accumulate: false, out: to, .. } if to == out => Some((x, self.in_tiles(i)?)),
            _ => None,
        }
    }
}
