//! Launches of kernels with an order of their own: products of few rows on tensor cores, split attention. They start early:
//! each waits itself for what was launched before it.

use tare_ops::{Op, OpCall, OpError};

use super::{Build, few};
use crate::args::{self, Part};
use crate::device::{Device, failed};
use crate::kv::shape_args;
use crate::registry::Method;
use crate::split::{LEAST_TOKENS, SPLITS, THREADS};
use crate::units::{GEMV, GEMV_GATED, Unit};

/// Outputs of a tile of `gemv.cu`: of each matrix, and of each of two whose gated unit it is.
const TILE_OUTPUTS: u32 = 16;
const GATED_OUTPUTS: u32 = 8;
/// Blocks of `gemv.cu` that a multiprocessor has room for, and their threads.
const LARGE_BLOCKS: (u32, u32) = (2, 256);
/// The same where quants are read of many tiles: a warp then has more chunks of each.
const SMALL_BLOCKS: (u32, u32) = (4, 128);
/// Tiles of a multiprocessor that are many.
const MANY_TILES: u32 = 16;

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
        let tiles = |p: &Part| p.m.rows.div_ceil(if gated { GATED_OUTPUTS } else { TILE_OUTPUTS });
        let mut all = 0;
        for part in &mut args.part[..calls.len()] {
            part.first_block = all;
            all += tiles(part);
        }
        args.tiles = if gated { tiles(&args.part[0]) } else { all };
        let kernels = if gated { &GEMV_GATED } else { &GEMV };
        let kernel = few(kernels, self.rows(*out)).ok_or_else(|| failed(&key, "no kernel for so many rows"))?;
        let multiprocessors = self.device.multiprocessors();
        let many = args.part[0].m.scales != 0 && args.tiles > MANY_TILES * multiprocessors;
        let (each, threads) = if many { SMALL_BLOCKS } else { LARGE_BLOCKS };
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
        let kernel = if heads.is_some() { "attention_heads" } else { "attention_split" };
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
