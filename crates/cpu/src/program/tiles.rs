//! Linears in tiles: their weights, and what makes tiles for them.

use tare_core::Fault;
use tare_ops::{BufId, Op, OpError, WeightId};

use super::room::Share;
use super::{Build, Task};
use crate::kernels::into_tiles::{IntoTiles, RowNorm};
use crate::kernels::linear_tiles::gated::{GatedTiles, Units};
use crate::kernels::linear_tiles::{LinearTiles, Weights};
use crate::order::Resource;
use crate::registry::InTiles;
use crate::tiled::{Side, Tiled};

impl Build<'_> {
    /// The linear `op`, which multiplies x with a weight.
    pub(super) fn linear_tiles(
        &mut self,
        i: usize,
        op: &Op,
        (x, weight): (BufId, WeightId),
        kernel: InTiles,
    ) -> Result<(), OpError> {
        let tiled = self.tiled(i, x, kernel)?;
        let weight = self.weights(weight, kernel)?;
        let call = LinearTiles { x: tiled, weight, end: self.epilogue(op)? };
        let task = Task::LinearTiles(kernel.product, call, self.space(x));
        self.push_linear(i, op, task, Resource::Tiled(x, kernel.side));
        Ok(())
    }

    /// The gated unit `i` of the linears `i - 2` and `i - 1`, for linears of the same side.
    pub(super) fn gated_tiles(&mut self, i: usize, out: BufId, kernel: InTiles) -> Result<(), OpError> {
        let plan = self.plan;
        let (Op::Linear { x, weight: gate, .. }, Op::Linear { weight: up, .. }) =
            (&plan.calls[i - 2].op, &plan.calls[i - 1].op)
        else {
            unreachable!("no linears in front of a unit that `fuse` found them at")
        };
        let tiled = self.tiled(i, *x, kernel)?;
        let (gate, up) = (self.weights(*gate, kernel)?, self.weights(*up, kernel)?);
        let end = Units { out: self.in_tiles(out, kernel.side)?, width: self.buffer(out).width };
        let task = Task::GatedTiles(kernel.gated, GatedTiles { x: tiled, gate, up, end }, self.space(out));
        self.push(i, task, &[Resource::Tiled(*x, kernel.side)], &[Resource::Tiled(out, kernel.side)]);
        self.only_in_tiles(out, kernel.side);
        Ok(())
    }

    /// The norm `i` of x, for linears that read `out` in tiles.
    pub(super) fn norm_tiles(
        &mut self,
        i: usize,
        (x, out): (BufId, BufId),
        norm: RowNorm,
        kernel: InTiles,
    ) -> Result<(), OpError> {
        let call = IntoTiles { x: self.buffer(x), norm: Some(norm), out: self.in_tiles(out, kernel.side)? };
        let task = Task::IntoTiles(kernel.into_tiles, call, self.space(out));
        self.push(i, task, &[Resource::Buffer(x)], &[Resource::Tiled(out, kernel.side)]);
        self.only_in_tiles(out, kernel.side);
        Ok(())
    }

    pub(super) fn weights(&mut self, id: WeightId, kernel: InTiles) -> Result<Weights, Fault> {
        Ok(if kernel.panels { Weights::Panels(self.panels(id)?) } else { Weights::File(self.matrix(id)?) })
    }

    /// The copy of a buffer in tiles for a side, made by a stage unless it is there already.
    pub(super) fn tiled(&mut self, i: usize, x: BufId, kernel: InTiles) -> Result<Tiled, OpError> {
        let (out, side) = (self.in_tiles(x, kernel.side)?, kernel.side);
        if !self.copy(x, side).is_some_and(|(_, fresh)| fresh) {
            let call = IntoTiles { x: self.buffer(x), norm: None, out };
            let task = Task::IntoTiles(kernel.into_tiles, call, self.space(x));
            self.push(i, task, &[Resource::Buffer(x)], &[Resource::Tiled(x, side)]);
            self.left_in_tiles(x, side);
        }
        Ok(out)
    }

    /// Room for a buffer in tiles for a side.
    pub(super) fn in_tiles(&mut self, x: BufId, side: Side) -> Result<Tiled, OpError> {
        if let Some((there, _)) = self.copy(x, side) {
            return Ok(there);
        }
        let (rows, width) = (self.most(self.space(x)), self.buffer(x).width);
        let first = self.piece(Resource::Tiled(x, side), Share::Tiles, Tiled::bytes(rows, width))?;
        let tiled = Tiled::at(first, width, side);
        self.tiled[x.0 as usize].push((tiled, false));
        Ok(tiled)
    }

    /// The copy of a buffer for a side, and whether it is that of the buffer's present content.
    pub(super) fn copy(&self, x: BufId, side: Side) -> Option<(Tiled, bool)> {
        self.tiled[x.0 as usize].iter().copied().find(|(copy, _)| copy.side == side)
    }

    /// Notes that the present content of a buffer is in its copy for a side, and nowhere else.
    pub(super) fn only_in_tiles(&mut self, x: BufId, side: Side) {
        self.forget_copies(x);
        self.left_in_tiles(x, side);
    }

    /// Notes that it is that of the present content.
    fn left_in_tiles(&mut self, x: BufId, side: Side) {
        let copies = self.tiled[x.0 as usize].iter_mut();
        copies.filter(|(copy, _)| copy.side == side).for_each(|(_, fresh)| *fresh = true);
    }
}
