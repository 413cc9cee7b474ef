//! Norms and rotations of heads, and the append: one by one, together, and together with the linears before them.

use tare_core::Fault;
use tare_ops::{BufId, HeadCalls, Op, OpError, RowSpace, WeightId};

use super::room::Share;
use super::{Build, Task};
use crate::fuse::LINEARS;
use crate::kernels::heads::Heads;
use crate::kernels::kv_append::KvAppend;
use crate::kernels::linear_tiles::heads::HeadsTiles;
use crate::kernels::norm::Norm;
use crate::kernels::rope::{Angles, Rope};
use crate::order::Resource;
use crate::registry::{Entry, InTiles};
use crate::rows::{Rows, padded};

impl Build<'_> {
    /// The calls `heads`, in one stage of the last one.
    pub(super) fn heads(&mut self, heads: HeadCalls, entries: &[Entry]) -> Result<(), OpError> {
        let Entry::Rope(_, f) = entries[heads.rope()] else {
            unreachable!("no rotation at the call that `fuse` found it at")
        };
        let (call, layer, v) = self.made_ready(heads)?;
        let (q, k) = (Resource::Buffer(heads.q), Resource::Buffer(heads.k));
        let read = [Resource::Angles, q, k, Resource::Buffer(v)];
        self.push(heads.append(), Task::Heads(f, Box::new(call)), &read, &[q, k, Resource::Cache(layer)]);
        Ok(())
    }

    /// The same with the linears before them, which all multiply the same rows.
    pub(super) fn projected(&mut self, calls: HeadCalls, kernel: InTiles) -> Result<(), OpError> {
        let (plan, i, side) = (self.plan, calls.append(), kernel.side);
        let linear = |n: usize| match plan.calls[calls.first - LINEARS + n].op {
            Op::Linear { x, weight, .. } => (x, weight),
            _ => unreachable!("no linears in front of heads that `fuse` found them at"),
        };
        let ((x, q), (_, k), (_, v)) = (linear(0), linear(1), linear(2));
        let tiled = self.tiled(i, x, kernel)?;
        let weights = [self.weights(q, kernel)?, self.weights(k, kernel)?, self.weights(v, kernel)?];
        let (heads, layer, _) = self.made_ready(calls)?;
        let call = HeadsTiles { x: tiled, weights, heads, q: self.in_tiles(calls.q, side)? };
        let read = [Resource::Angles, Resource::Tiled(x, side)];
        let written = [Resource::Tiled(calls.q, side), Resource::Cache(layer)];
        self.push(i, Task::HeadsTiles(kernel.heads, Box::new(call)), &read, &written);
        self.only_in_tiles(calls.q, side);
        Ok(())
    }

    /// What the calls `heads` do, the layer of their cache, and their values.
    fn made_ready(&mut self, heads: HeadCalls) -> Result<(Heads, u32, BufId), OpError> {
        let (plan, i) = (self.plan, heads.append());
        let op = |i: usize| &plan.calls[i].op;
        let (Op::Rope { heads: of_q, .. }, Op::Rope { heads: of_k, .. }, Op::KvAppend { layer, k, v }) =
            (op(heads.rope()), op(heads.rope() + 1), op(i))
        else {
            unreachable!("no heads at the calls that `fuse` found them at")
        };
        let norms = match (op(heads.first), op(heads.first + 1)) {
            (
                Op::HeadNorm { x: q, weight: q_weight, heads: of_q, eps: q_eps },
                Op::HeadNorm { x: k, weight: k_weight, heads: of_k, eps: k_eps },
            ) => {
                Some([self.head_norm(*q, (*q_weight, *q_eps), *of_q)?, self.head_norm(*k, (*k_weight, *k_eps), *of_k)?])
            }
            _ => None,
        };
        let ropes = [self.rope(i, heads.q, *of_q)?, self.rope(i, heads.k, *of_k)?];
        Ok((Heads { norms, ropes, append: self.append(*layer, *k, *v) }, *layer, *v))
    }

    /// The norm of the heads of x, in place.
    pub(super) fn head_norm(&self, x: BufId, (weight, eps): (WeightId, f32), heads: u32) -> Result<Norm, Fault> {
        let (x, heads, weight) = (self.buffer(x), heads as usize, self.vector(weight)?);
        Ok(Norm { x, out: x, weight, heads, size: x.width / heads.max(1), eps })
    }

    /// The rotation of the heads of x, in place, for call `i`.
    pub(super) fn rope(&mut self, i: usize, x: BufId, heads: u32) -> Result<Rope, OpError> {
        let angles = self.angles(i)?;
        Ok(Rope { x: self.buffer(x), heads: heads as usize, angles, style: self.plan.rope.style })
    }

    /// The append of keys and values.
    pub(super) fn append(&self, layer: u32, k: BufId, v: BufId) -> KvAppend {
        let (kv, k, v) = (self.plan.kv, self.buffer(k), self.buffer(v));
        KvAppend { layer: layer as usize, k, v, kv_heads: kv.kv_heads, head_size: kv.head_size, dtype: kv.dtype }
    }

    /// The step's sines and cosines, made by a stage before the first call that needs them.
    fn angles(&mut self, i: usize) -> Result<Angles, OpError> {
        if let Some(angles) = self.angles {
            return Ok(angles);
        }
        let pairs = self.plan.rope.inv_freq.len();
        // Wanted from the first layer to the last, and small: by itself it fills no huge page beside the others.
        let bytes = self.most(RowSpace::All).saturating_mul(padded(pairs)).saturating_mul(size_of::<f32>());
        let mut half = || Ok::<_, OpError>(Rows::at(self.piece(Resource::Angles, Share::Nobody, bytes)?.cast(), pairs));
        let angles = Angles { cos: half()?, sin: half()? };
        self.push(i, Task::Angles(angles), &[], &[Resource::Angles]);
        self.angles = Some(angles);
        Ok(angles)
    }
}
