//! Attention: where its queries lie, and its results.

use tare_ops::{Op, OpError};

use super::{Build, Taken, Task};
use crate::fuse::Role;
use crate::kernels::attention::{Attention, AttentionFn, InTiles, Method};
use crate::order::Resource;
use crate::tiled::{Side, Tiled};
use crate::tiles::STEP;

impl Build<'_> {
    /// The attention `op`, by a kernel that goes about it by `method`.
    pub(super) fn attention(
        &mut self,
        i: usize,
        op: &Op,
        (f, method): (AttentionFn, Method),
        role: Role,
    ) -> Result<(), OpError> {
        let Op::Attention { layer, q, kv_of_head, scale, out } = op else { return Ok(()) };
        // Queries lie in tiles where they were made ready together with their products; a copy of rows has the same numbers.
        let whole = method == Method::Tiles && self.plan.kv.head_size.is_multiple_of(STEP);
        let copy = self.copy(*q, Side::Left).filter(|(_, fresh)| *fresh && whole);
        let out_in_tiles = match role {
            Role::InTiles(kernel) => Some(self.in_tiles(*out, kernel.side)?),
            _ => None,
        };
        let tiled = InTiles { q: copy.map(|(copy, _)| copy), out: out_in_tiles };
        let call = Attention {
            layer: *layer as usize,
            q: self.buffer(*q),
            out: self.buffer(*out),
            tiled,
            head_size: self.plan.kv.head_size,
            scale: *scale,
            runs: Attention::runs_of(kv_of_head),
            method,
        };
        self.attends = true;
        let lies = |tiled: Option<Tiled>, id| match tiled {
            Some(tiled) => Resource::Tiled(id, tiled.side),
            None => Resource::Buffer(id),
        };
        let (read, left) = (lies(tiled.q, *q), lies(tiled.out, *out));
        let task = Task::Attention(f, call, Taken::default());
        self.push(i, task, &[read, Resource::Cache(*layer)], &[left, Resource::Scratch]);
        if let Some(tiled) = tiled.out {
            self.only_in_tiles(*out, tiled.side);
        }
        Ok(())
    }
}
