//! Launches of products, each by itself or with others over the same rows.

use tare_ops::{Op, OpCall, OpError, Rounding};

use super::{Build, few};
use crate::args::{self, Part};
use crate::device::{Device, failed};
use crate::fuse::Group;
use crate::registry::Method;
use crate::units::{LINEAR_FEW, LINEAR_GATED, LINEAR_MANY, PARTS};

/// Rows and outputs of a tile of `linear_many`.
const TILE: usize = 32;
/// Outputs of a block of `linear_few_*`.
const FEW_OUTPUTS: usize = 8;

impl<D: Device> Build<'_, D> {
    /// One product by itself.
    pub(super) fn linear(&mut self, call: &OpCall) -> Result<(), OpError> {
        if Method::of(&call.kernel) == Method::Gemv {
            return self.gemv(call.kernel.clone(), &[call], None, false);
        }
        let args = self.linear_args(&[call], None)?;
        let Op::Linear { out, .. } = &call.op else { return Ok(()) };
        let (rows, outputs) = (self.rows(*out), args.part[0].m.rows as usize);
        let shape = match few(&LINEAR_FEW, rows) {
            Some(kernel) => (kernel, (outputs.div_ceil(FEW_OUTPUTS), 1), 128),
            None => (LINEAR_MANY, (outputs.div_ceil(TILE), rows.div_ceil(TILE)), 256),
        };
        self.push(call, shape, &args)
    }

    /// Products over the same rows, with the norm before and the gated unit after them.
    pub(super) fn linears(
        &mut self,
        group: &Group,
        norm: Option<usize>,
        products: std::ops::Range<usize>,
        gated: Option<usize>,
    ) -> Result<(), OpError> {
        let plan = self.plan;
        if Method::of(&plan.calls[products.start].kernel).is_tiles() {
            return self.tiles(products, gated);
        }
        let calls: Vec<&OpCall> = plan.calls[products].iter().collect();
        if Method::of(&calls[0].kernel) == Method::Gemv {
            return self.gemv(self.key(group), &calls, norm.map(|at| &plan.calls[at]), gated.is_some());
        }
        let args = self.linear_args(&calls, norm.map(|at| &plan.calls[at]))?;
        let Op::Linear { out, .. } = &calls[0].op else { return Ok(()) };
        let rows = self.rows(*out);
        let blocks = |p: &Part| (p.m.rows as usize).div_ceil(FEW_OUTPUTS);
        let (kernel, blocks) = match gated {
            Some(_) => (few(&LINEAR_GATED, rows), blocks(&args.part[0])),
            None => (few(&LINEAR_FEW, rows), args.part[..calls.len()].iter().map(blocks).sum()),
        };
        let kernel = kernel.ok_or_else(|| failed(&calls[0].kernel, "no kernel for so many rows"))?;
        let unit = self.unit(calls[0]);
        self.launch(&unit, self.key(group), (kernel, (blocks, 1), 128), &args)
    }

    pub(super) fn linear_args(&self, calls: &[&OpCall], norm: Option<&OpCall>) -> Result<args::Linear, OpError> {
        let mut args: args::Linear = bytemuck::Zeroable::zeroed();
        let mut first_block = 0;
        for (part, call) in args.part.iter_mut().zip(calls) {
            let Op::Linear { weight, bias, out, .. } = &call.op else { continue };
            let m = self.held(*weight).matrix;
            *part = Part {
                m,
                bias: bias.map(|b| self.vector(call, b)).transpose()?.unwrap_or(0),
                out: self.at(*out),
                out_stride: self.stride(*out),
                first_block,
            };
            first_block += m.rows.div_ceil(FEW_OUTPUTS as u32);
        }
        args.parts = calls.len().min(PARTS) as u32;
        args.share = 1.0 / args.part[0].m.cols as f32;
        args.step = self.base.0;
        if let Op::Linear { x, accumulate, rounding, .. } = &calls[0].op {
            (args.x, args.x_stride) = (self.at(*x), self.stride(*x));
            args.accumulate = u32::from(*accumulate);
            args.bf16 = u32::from(*rounding == Rounding::Bf16);
            args.of_selected = self.of_selected(*x);
        }
        if let Some((call, Op::RmsNorm { x, weight, eps, .. })) = norm.map(|call| (call, &call.op)) {
            (args.x, args.x_stride) = (self.at(*x), self.stride(*x));
            args.norm = self.vector(call, *weight)?;
            args.eps = *eps;
        }
        Ok(args)
    }
}
