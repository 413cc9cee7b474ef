//! Linears in tiles: their weights, and the conversion in front of them.

use tare_ops::{BufId, Op, OpError, WeightId};

use super::room::Share;
use super::{Build, Task};
use crate::kernels::into_tiles::IntoTiles;
use crate::kernels::linear_tiles::{LinearTiles, Weights};
use crate::order::Resource;
use crate::registry::InTiles;
use crate::tiled::Tiled;

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
        let weight =
            if kernel.panels { Weights::Panels(self.panels(weight)?) } else { Weights::File(self.matrix(weight)?) };
        let call = LinearTiles { x: tiled, weight, end: self.epilogue(op)? };
        let task = Task::LinearTiles(kernel.product, call, self.space(x));
        self.push_linear(i, op, task, Resource::Tiled(x, kernel.side));
        Ok(())
    }

    /// The copy of a buffer in tiles for a side, made by a stage unless it is there already.
    fn tiled(&mut self, i: usize, x: BufId, kernel: InTiles) -> Result<Tiled, OpError> {
        let (at, side) = (x.0 as usize, kernel.side);
        let known = self.tiled[at].iter().position(|(copy, _)| copy.side == side);
        let place = match known {
            Some(place) => place,
            None => {
                let (rows, width) = (self.most(self.space(x)), self.buffer(x).width);
                let first = self.piece(Resource::Tiled(x, side), Share::Copies, Tiled::bytes(rows, width))?;
                self.tiled[at].push((Tiled::at(first, width, side), false));
                self.tiled[at].len() - 1
            }
        };
        let (out, fresh) = self.tiled[at][place];
        if !fresh {
            let task = Task::IntoTiles(kernel.into_tiles, IntoTiles { x: self.buffer(x), out }, self.space(x));
            self.push(i, task, &[Resource::Buffer(x)], &[Resource::Tiled(x, side)]);
            self.tiled[at][place].1 = true;
        }
        Ok(out)
    }
}
