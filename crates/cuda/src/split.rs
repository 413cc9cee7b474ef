//! What split attention needs beside its call: query heads in groups that share a kv head, room for the parts of a context,
//! tickets.

use tare_ops::{ForwardPlan, Op, OpError};

use crate::registry::Method;

/// Query heads of a group: as in `attention_split.cu`.
const GROUP_HEADS: usize = 4;
/// Stands for no head in a group.
const NO_HEAD: u16 = u16::MAX;
/// Parts of a context, at most: as in `attention_split.cu`.
pub(crate) const SPLITS: usize = 12;
/// Tokens of a part, at least: fewer are read faster by one block than parts are brought together.
pub(crate) const LEAST_TOKENS: u32 = 256;
/// Elements of the heads for which there is a kernel of their own.
pub(crate) const LARGE_HEAD: usize = 128;
/// Threads of a block.
pub(crate) const THREADS: u32 = 384;

/// The groups of heads for one way in which a plan says which kv head a query head reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    /// What the plan says.
    pub(crate) kv_of_head: Vec<u16>,
    /// For each group the kv head, then up to [`GROUP_HEADS`] query heads. Groups of one kv head follow each other, and
    /// every kv head has one, also without a query head: it may have a key to store.
    pub(crate) table: Vec<u16>,
    /// Where the table lies.
    pub(crate) at: usize,
}

impl Groups {
    fn new(kv_of_head: &[u16], kv_heads: usize) -> Self {
        let mut table = Vec::new();
        for kv in 0..kv_heads as u16 {
            let heads: Vec<u16> = (0..kv_of_head.len() as u16).filter(|h| kv_of_head[*h as usize] == kv).collect();
            let mut groups: Vec<&[u16]> = heads.chunks(GROUP_HEADS).collect();
            if groups.is_empty() {
                groups.push(&[]);
            }
            for group in groups {
                table.push(kv);
                table.extend((0..GROUP_HEADS).map(|i| group.get(i).copied().unwrap_or(NO_HEAD)));
            }
        }
        Self { kv_of_head: kv_of_head.to_vec(), table, at: 0 }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.table.len() / (1 + GROUP_HEADS)
    }
}

/// What the split attention of a plan needs, and where it lies in the program's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct SplitRoom {
    /// One for each way in which the plan says which kv head a query head reads.
    pub(crate) groups: Vec<Groups>,
    /// [rows, H, [`SPLITS`], 2 + E] F32
    pub(crate) parts: usize,
    /// [rows, groups] u32, all 0
    pub(crate) tickets: usize,
}

impl SplitRoom {
    /// Takes room with `take`.
    ///
    /// # Errors
    /// When there is not enough.
    pub(crate) fn new(
        plan: &ForwardPlan,
        mut take: impl FnMut(usize) -> Result<usize, OpError>,
    ) -> Result<Self, OpError> {
        let mut groups: Vec<Groups> = Vec::new();
        for call in plan.calls.iter().filter(|c| Method::of(&c.kernel) == Method::Split) {
            let Op::Attention { kv_of_head, .. } = &call.op else { continue };
            if groups.iter().all(|g| g.kv_of_head != *kv_of_head) {
                let mut new = Groups::new(kv_of_head, plan.kv.kv_heads);
                new.at = take(size_of_val(&new.table[..]))?;
                groups.push(new);
            }
        }
        let heads = groups.iter().map(|g| g.kv_of_head.len()).max().unwrap_or(0);
        let most = groups.iter().map(Groups::count).max().unwrap_or(0);
        let part = (2 + plan.kv.head_size) * size_of::<f32>();
        let parts = take(plan.bucket.rows * heads * SPLITS * part)?;
        let tickets = take(plan.bucket.rows * most * size_of::<u32>())?;
        Ok(Self { groups, parts, tickets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_share_a_kv_head_are_grouped() {
        let none = NO_HEAD;
        let g = Groups::new(&[1, 0, 0, 1, 1, 1, 1], 3);
        let want = [[0, 1, 2, none, none], [1, 0, 3, 4, 5], [1, 6, none, none, none], [2, none, none, none, none]];
        assert_eq!((g.table, g.kv_of_head.len()), (want.concat(), 7));
        assert_eq!(Groups::new(&[0], 1).count(), 1);
    }
}
