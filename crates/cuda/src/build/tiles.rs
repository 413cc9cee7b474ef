//! Launches that work in tiles: rows to BF16, packed weights to BF16, products, attention.

mod args;

use std::ops::Range;

use tare_core::Format;
use tare_ops::{BufId, Op, OpCall, OpError, WeightId};

use self::args::{Narrow, Tiles, TilesPart, Widen};
use super::Build;
use crate::device::{Address, Device, TileMap, Tiled, failed};
use crate::layout::Layout;
use crate::registry::Method;
use crate::tiles::{GATED, MMA, WGMMA, choose, depth, narrow_bytes, widened_rows};
use crate::units::PARTS;
use crate::units::tiles::{self, ATTENTION_MMA, ATTENTION_WGMMA, AttentionTile};

/// Chunks of a block of `widen`.
const WIDEN_CHUNKS: usize = 64;
/// Threads of `narrow` and `widen`.
const THREADS: u32 = 256;
/// Threads of the kernels of warpgroups.
const WGMMA_THREADS: u32 = 384;

/// Rows of one matrix of a launch.
#[derive(Clone, Copy, Debug)]
struct Part<'a> {
    call: &'a OpCall,
    weight: WeightId,
    bias: Option<WeightId>,
    out: BufId,
    /// Which of the matrix's rows.
    rows: (usize, usize),
    /// Where they lie as BF16.
    at: Address,
}

impl<D: Device> Build<'_, D> {
    /// Products over the same rows, and the gated unit that two of them feed: that one's output is then kept as BF16
    /// alone, which is what the products that read it want.
    ///
    /// # Errors
    /// When a kernel does not compile or the device fails.
    pub(super) fn tiles(&mut self, calls: Range<usize>, gated: Option<usize>) -> Result<(), OpError> {
        let plan = self.plan;
        let calls: Vec<&OpCall> = plan.calls[calls].iter().collect();
        let Op::Linear { x, weight, .. } = &calls[0].op else { return Ok(()) };
        self.narrow(calls[0], *x)?;
        let (rows, cols) = (self.held(*weight).rows, self.held(*weight).cols);
        // Matrices that share a launch are never too wide for it.
        let step = if calls.len() == 1 { self.rows_at_once(*weight, rows, cols) } else { usize::MAX };
        let mut first = 0;
        while first < rows {
            let end = first.saturating_add(step).min(rows);
            let parts = self.parts(&calls, (first, if calls.len() == 1 { end } else { usize::MAX }))?;
            self.products(&parts, gated)?;
            first = end;
        }
        if let Some(Op::SwiGlu { out, .. }) = gated.map(|at| &plan.calls[at].op) {
            self.narrowed.insert(out.0);
        }
        Ok(())
    }

    fn rows_at_once(&self, weight: WeightId, rows: usize, cols: usize) -> usize {
        if self.held(weight).format == Format::BF16 { rows } else { widened_rows(rows, cols).max(1) }
    }

    /// The matrices of a launch as BF16: as they are held, or widened.
    fn parts<'a>(&mut self, calls: &[&'a OpCall], within: (usize, usize)) -> Result<Vec<Part<'a>>, OpError> {
        let mut widened = self.base.plus(self.places.widened);
        let mut parts = Vec::with_capacity(calls.len());
        for &call in calls {
            let Op::Linear { weight, bias, out, .. } = &call.op else { continue };
            let held = self.held(*weight);
            let (format, cols, matrix) = (held.format, held.cols, held.matrix);
            let rows = (within.0, within.1.min(held.rows));
            let at = if format == Format::BF16 {
                Address(matrix.quants)
            } else {
                let args = Widen { m: matrix, out: widened.0, first: rows.0 as u32, count: (rows.1 - rows.0) as u32 };
                let chunks = (rows.1 - rows.0) * matrix.chunks as usize;
                let shape = ("widen", (chunks.div_ceil(WIDEN_CHUNKS), 1), THREADS);
                self.launch(&tiles::widen(Layout::of(format)), call.kernel.clone(), shape, &args)?;
                let at = widened;
                widened = widened.plus(narrow_bytes(rows.1 - rows.0, cols).next_multiple_of(256));
                at
            };
            parts.push(Part { call, weight: *weight, bias: *bias, out: *out, rows, at });
        }
        Ok(parts)
    }

    /// One launch of products.
    fn products(&mut self, parts: &[Part<'_>], gated: Option<usize>) -> Result<(), OpError> {
        let call = parts[0].call;
        let Op::Linear { x, accumulate, .. } = &call.op else { return Ok(()) };
        let rows = self.rows(*x);
        let outputs: Vec<usize> = parts.iter().map(|p| p.rows.1 - p.rows.0).collect();
        let hopper = Method::of(&call.kernel) == Method::Wgmma;
        let at_once = self.device.multiprocessors() as usize;
        let tile = match (hopper, gated) {
            (false, _) => Some(MMA),
            (true, None) => choose(&WGMMA, at_once, rows, &outputs),
            (true, Some(_)) => choose(&GATED, at_once, rows, &outputs),
        };
        let tile = tile.ok_or_else(|| failed(&call.kernel, "no kernel for these rows"))?;
        let cols = self.plan.buffer(*x).width;
        let mut args: Tiles = bytemuck::Zeroable::zeroed();
        args.step = self.base.0;
        args.x = self.narrow_at(*x).0;
        args.depth = depth(cols) as u32;
        args.accumulate = u32::from(*accumulate);
        args.of_selected = self.of_selected(*x);
        args.parts = parts.len().min(PARTS) as u32;
        let mut columns = tile.count(&outputs);
        if let Some(Op::SwiGlu { out, .. }) = gated.map(|at| &self.plan.calls[at].op) {
            args.gated = self.narrow_at(*out).0;
            args.gated_depth = depth(outputs[0]) as u32;
            // Half of a tile is outputs; what pads the rows is written too.
            columns = (args.gated_depth as usize).div_ceil(tile.outputs / 2);
        }
        if hopper {
            args.map = self.map(Address(args.x), rows, cols, tile.rows)?;
        }
        let tile_rows = if gated.is_some() { tile.outputs / 2 } else { tile.outputs };
        let mut first_tile = 0;
        for (to, part) in args.part.iter_mut().zip(parts) {
            *to = self.part(part, first_tile, hopper.then_some(tile_rows))?;
            first_tile += tile.count(&[part.rows.1 - part.rows.0]) as u32;
        }
        let (unit, threads) =
            if hopper { (tiles::products_wgmma(), WGMMA_THREADS) } else { (tiles::products_mma(), 256) };
        let keys: Vec<&str> = parts.iter().map(|p| p.call.kernel.as_str()).collect();
        let shape = (tile.kernel, (rows.div_ceil(tile.rows), columns), threads);
        self.launch_with(&unit, keys.join(" + "), shape, tile.shared() as u32, &args)
    }

    fn part(&mut self, p: &Part<'_>, first_tile: u32, tile_rows: Option<usize>) -> Result<TilesPart, OpError> {
        let (rows, cols) = (p.rows.1 - p.rows.0, self.held(p.weight).cols);
        let offset = (p.rows.0 * size_of::<f32>()) as u64;
        Ok(TilesPart {
            map: tile_rows.map_or(Ok([0; 16]), |n| self.map(p.at, rows, cols, n))?,
            w: p.at.0,
            bias: p.bias.map(|b| self.vector(p.call, b)).transpose()?.map_or(0, |at| at + offset),
            out: self.at(p.out) + offset,
            rows: rows as u32,
            out_stride: self.stride(p.out),
            first_tile,
            reserved: [0; 7],
        })
    }

    fn map(&mut self, at: Address, rows: usize, cols: usize, tile_rows: usize) -> Result<TileMap, OpError> {
        self.device.tile_map(Tiled { at, rows, columns: depth(cols), tile_rows })
    }

    /// The rows of a buffer as BF16, unless they are there.
    fn narrow(&mut self, call: &OpCall, x: BufId) -> Result<(), OpError> {
        if !self.narrowed.insert(x.0) {
            return Ok(());
        }
        let width = self.plan.buffer(x).width;
        let args = Narrow {
            step: self.base.0,
            x: self.at(x),
            out: self.narrow_at(x).0,
            x_stride: self.stride(x),
            width: width as u32,
            depth: depth(width) as u32,
            of_selected: self.of_selected(x),
        };
        let shape = ("narrow", ((depth(width) / 8).div_ceil(THREADS as usize), self.rows(x)), THREADS);
        self.launch(&tiles::narrow(), call.kernel.clone(), shape, &args)
    }

    pub(super) fn narrow_at(&self, x: BufId) -> Address {
        self.base.plus(self.places.narrow.get(&x.0).copied().unwrap_or_default())
    }

    /// Attention for tiles of rows.
    ///
    /// # Errors
    /// As [`Build::tiles`].
    pub(super) fn attention_tiles(&mut self, call: &OpCall, q: BufId) -> Result<(), OpError> {
        let hopper = Method::of(&call.kernel) == Method::Wgmma;
        let kernels: &[AttentionTile] = if hopper { &ATTENTION_WGMMA } else { &ATTENTION_MMA };
        let e = self.plan.kv.head_size;
        let kernel = kernels.iter().find(|k| e <= k.head);
        let kernel = kernel.ok_or_else(|| failed(&call.kernel, format!("no kernel for heads of {e} elements")))?;
        let (unit, threads) =
            if hopper { (tiles::attention_wgmma(), WGMMA_THREADS) } else { (tiles::attention_mma(), 128) };
        let args = self.attention_args(call)?;
        let grid = (args.heads as usize, self.rows(q).div_ceil(kernel.rows));
        self.launch_with(&unit, call.kernel.clone(), (kernel.name, grid, threads), kernel.shared() as u32, &args)
    }
}
