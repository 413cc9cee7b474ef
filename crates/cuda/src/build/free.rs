//! Launches of kernels with an order of their own: products of few rows on tensor cores, split attention. They start early:
//! each waits itself for what was launched before it.

use tare_ops::{Op, OpCall, OpError};

use super::{Build, few};
use crate::args::{self, Part};
use crate::device::{Device, failed};
use crate::kv::shape_args;
use crate::registry::Method;
use crate::split::{LARGE_HEAD, LEAST_TOKENS, SPLITS, THREADS};
use crate::units::{GEMV, GEMV_GATED, GEMV_HALVES, Unit};

/// Outputs of a tile of `gemv.cu`: of one matrix, and where a row of the tile is a half of its columns or one of two matrices.
const TILE_OUTPUTS: u32 = 16;
const PAIRED_OUTPUTS: u32 = 8;
/// Chunks of x that `gemv.cu` has room for at once.
const STAGED_CHUNKS: u32 = 128;
/// Blocks of `gemv.cu` that a multiprocessor has room for, and their threads: of one row.
const BLOCKS: (u32, u32) = (3, 160);
/// The same of more: of up to so many rows. Their pieces of 16 or 8 chunks are whole numbers of chunks for four warps.
const BLOCKS_OF_ROWS: [(usize, (u32, u32)); 2] = [(8, (3, 128)), (16, (2, 128))];

impl<D: Device> Build<'_, D> {
    /// Products over the same rows by `gemv.cu`, with the norm before and the gated unit after them.
    pub(super) fn gemv(
        &mut self,
        key: String,
        calls: &[&OpCall],
        norm: Option<&OpCall>,
        gated: bool,
    ) -> Result<(), OpError> {
        let Some(Op::Linear { out, .. }) = calls.first().map(|c| &c.op) else { return Ok(()) };
        let mut args = self.linear_args(calls, norm)?;
        let multiprocessors = self.device.multiprocessors();
        let parts = &mut args.part[..calls.len()];
        let halved = !gated && self.rows(*out) == 1 && halved(parts, multiprocessors);
        let outputs = if gated || halved { PAIRED_OUTPUTS } else { TILE_OUTPUTS };
        let mut all = 0;
        for part in parts {
            part.first_block = all;
            all += part.m.rows.div_ceil(outputs);
        }
        args.tiles = if gated { args.part[0].m.rows.div_ceil(outputs) } else { all };
        let kernels = if gated { &GEMV_GATED } else { &GEMV };
        let kernel = if halved { Some(GEMV_HALVES) } else { few(kernels, self.rows(*out)) };
        let kernel = kernel.ok_or_else(|| failed(&key, "no kernel for so many rows"))?;
        let rows = self.rows(*out);
        let more = BLOCKS_OF_ROWS.iter().find(|(most, _)| rows > 1 && rows <= *most);
        let (each, threads) = more.map_or(BLOCKS, |(_, blocks)| *blocks);
        let blocks = args.tiles.min(each * multiprocessors) as usize;
        let unit = self.unit(calls[0]);
        self.launch(&unit, key, (kernel, (blocks, 1), threads), &args)
    }

    /// Attention whose context is split over blocks; with `heads` also the norms, rotations and the append before it.
    pub(super) fn split(&mut self, key: String, call: &OpCall, heads: Option<args::Heads>) -> Result<(), OpError> {
        let Op::Attention { layer, q, kv_of_head, scale, out } = &call.op else { return Ok(()) };
        let room = &self.places.split;
        let found = room.groups.iter().find(|g| g.kv_of_head == *kv_of_head);
        let groups = found.ok_or_else(|| failed(&call.kernel, "no groups of heads"))?;
        let kernel = match heads {
            Some(_) if self.plan.kv.head_size == LARGE_HEAD => "attention_heads_128",
            Some(_) => "attention_heads",
            None => "attention_split",
        };
        let mut prepared: args::Heads = heads.unwrap_or(bytemuck::Zeroable::zeroed());
        prepared.step = self.base.0;
        (prepared.q, prepared.q_stride) = (self.at(*q), self.stride(*q));
        prepared.pool = shape_args(self.plan.kv);
        (prepared.layer, prepared.heads) = (*layer, kv_of_head.len() as u32);
        let args = args::Split {
            heads: prepared,
            out: self.at(*out),
            groups: self.base.plus(groups.at).0,
            parts: self.base.plus(room.parts).0,
            tickets: self.base.plus(room.tickets).0,
            row: self.base.plus(self.places.layout.rows()).0,
            out_stride: self.stride(*out),
            scale: *scale,
            splits: SPLITS as u32,
            least: LEAST_TOKENS,
        };
        let grid = (groups.count() * SPLITS, self.rows(*q));
        self.launch(&Unit::with(call.op.name(), None, Method::Split), key, (kernel, grid, THREADS), &args)
    }
}

/// Whether tiles of so few rows and of wide enough rows are better made of halves: not all blocks that there is room for would
/// have one, and a half has as many chunks as there are warps.
fn halved(parts: &[Part], multiprocessors: u32) -> bool {
    let tiles: u32 = parts.iter().map(|p| p.m.rows.div_ceil(TILE_OUTPUTS)).sum();
    let chunks = parts.first().map_or(0, |p| p.m.chunks);
    let wide = chunks.is_multiple_of(2) && chunks / 2 >= BLOCKS.1 / 32 && chunks <= STAGED_CHUNKS;
    wide && 2 * tiles <= 3 * multiprocessors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_matrices_are_halved() {
        let halved = |rows, chunks| {
            let mut part: Part = bytemuck::Zeroable::zeroed();
            (part.m.rows, part.m.chunks) = (rows, chunks);
            halved(&[part], 132)
        };
        assert!(halved(2560, 76) && halved(1024, 16));
        assert!(!halved(4096, 76), "there are tiles for most blocks");
        assert!(!halved(1024, 8) && !halved(1024, 17) && !halved(1024, 130), "chunks");
    }
}
