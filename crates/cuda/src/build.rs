//! The launches of a plan: each call, or several that one launch can carry, with the structure that its kernel takes.

use std::collections::BTreeSet;
use std::ops::Range;

use tare_core::Fault;
use tare_ops::{BufId, ForwardPlan, Op, OpCall, OpError, OpName, RopeStyle, RowSpace, WeightId};

use crate::args;
use crate::device::{Address, Device, Launch, failed};
use crate::fuse::{Group, groups, writes};
use crate::kv::shape_args;
use crate::program::{Linker, MOST_PARTS, Places, rows, stride};
use crate::registry::{MOST_HEAD, Method};
use crate::units::Unit;
use crate::weights::Held;

mod free;
mod products;
mod tiles;

/// Heads of a block of `heads`.
const HEADS_EACH: usize = 8;
/// Logits of one part in which the largest is looked for.
const PART_LOGITS: usize = 2048;

/// A program in the making.
pub(crate) struct Build<'a, D> {
    pub(crate) linker: Linker<'a>,
    pub(crate) plan: &'a ForwardPlan,
    pub(crate) device: &'a mut D,
    pub(crate) places: &'a Places,
    /// Where the program's memory begins, and with it the step's block.
    pub(crate) base: Address,
    pub(crate) launches: Vec<Launch>,
    /// The calls that each of them carries.
    pub(crate) carried: Vec<Range<usize>>,
    /// Buffers whose rows lie as BF16 too, as they are.
    pub(crate) narrowed: BTreeSet<u16>,
}

/// A kernel's name, the grid and the threads of a block.
type Shape<'a> = (&'a str, (usize, usize), u32);

/// A norm of rows or of heads.
struct Norm {
    x: BufId,
    weight: WeightId,
    heads: u32,
    eps: f32,
    out: BufId,
}

impl<D: Device> Build<'_, D> {
    /// Every launch.
    ///
    /// # Errors
    /// When a kernel does not compile or the device fails.
    pub(crate) fn all(&mut self, fused: bool) -> Result<(), OpError> {
        for (table, at) in &self.places.heads_tables {
            self.device.upload(self.base.plus(*at), bytemuck::cast_slice(table))?;
        }
        for groups in &self.places.split.groups {
            self.device.upload(self.base.plus(groups.at), bytemuck::cast_slice(&groups.table))?;
        }
        groups(self.plan, fused).iter().try_for_each(|group| {
            for call in &self.plan.calls[group.calls()] {
                writes(&call.op).map(|out| self.narrowed.remove(&out.0));
            }
            match group {
                Group::One(at) => self.call(*at),
                Group::Linears { norm, first, count, gated } => {
                    self.linears(group, *norm, *first..*first + *count, *gated)
                }
                Group::Heads { first, normed, attended } => self.heads(group, *first, *normed, *attended),
            }?;
            self.carried.resize(self.launches.len(), group.calls());
            Ok(())
        })
    }

    fn call(&mut self, at: usize) -> Result<(), OpError> {
        let call = &self.plan.calls[at];
        let tiles = Method::of(&call.kernel).is_tiles();
        match &call.op {
            Op::Linear { .. } if tiles => self.tiles(at..at + 1, None),
            Op::Attention { q, .. } if tiles => self.attention_tiles(call, *q),
            Op::Embedding { .. } => self.embedding(call),
            Op::RmsNorm { x, weight, eps, out } => {
                let norm = Norm { x: *x, weight: *weight, heads: 1, eps: *eps, out: *out };
                let kernel = if Method::of(&call.kernel) == Method::Block { "rms_norm_block" } else { "rms_norm" };
                self.norm(call, &norm, (kernel, (self.rows(*x), 1), 256))
            }
            Op::HeadNorm { x, weight, heads, eps } => {
                let norm = Norm { x: *x, weight: *weight, heads: *heads, eps: *eps, out: *x };
                self.norm(call, &norm, ("head_norm", (self.rows(*x), 1), 128))
            }
            Op::Rope { .. } => self.rope(call),
            Op::Linear { .. } => self.linear(call),
            Op::KvAppend { .. } => self.append(call),
            Op::Attention { .. } => self.attention(call),
            Op::SwiGlu { .. } => self.swiglu(call),
            Op::SelectRows { .. } => self.select_rows(call),
            Op::Sample { .. } => self.sample(call),
        }
    }

    fn embedding(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::Embedding { table, out } = &call.op else { return Ok(()) };
        let args = args::Embedding {
            m: self.held(*table).matrix,
            step: self.base.0,
            out: self.at(*out),
            out_stride: self.stride(*out),
            reserved: 0,
        };
        self.push(call, ("embedding", (self.rows(*out), 1), 128), &args)
    }

    fn norm(&mut self, call: &OpCall, n: &Norm, shape: Shape<'_>) -> Result<(), OpError> {
        let width = self.plan.buffer(n.x).width / (n.heads as usize).max(1);
        let args = args::Norm {
            step: self.base.0,
            x: self.at(n.x),
            weight: self.vector(call, n.weight)?,
            out: self.at(n.out),
            x_stride: self.stride(n.x),
            out_stride: self.stride(n.out),
            width: width as u32,
            heads: n.heads,
            eps: n.eps,
            of_selected: self.of_selected(n.x),
        };
        self.push(call, shape, &args)
    }

    fn rope(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::Rope { x, heads } = &call.op else { return Ok(()) };
        let args = args::Rope {
            step: self.base.0,
            x: self.at(*x),
            stride: self.stride(*x),
            heads: *heads,
            pairs: self.plan.rope.inv_freq.len() as u32,
            interleaved: self.interleaved(),
        };
        self.push(call, ("rope", (self.rows(*x), 1), 128), &args)
    }

    fn append(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::KvAppend { layer, k, v } = &call.op else { return Ok(()) };
        let args = args::Append {
            step: self.base.0,
            k: self.at(*k),
            v: self.at(*v),
            pool: shape_args(self.plan.kv),
            k_stride: self.stride(*k),
            v_stride: self.stride(*v),
            layer: *layer,
            reserved: 0,
        };
        self.push(call, ("kv_append", (self.rows(*k), 1), 128), &args)
    }

    fn attention(&mut self, call: &OpCall) -> Result<(), OpError> {
        if Method::of(&call.kernel) == Method::Split {
            return self.split(call.kernel.clone(), call, None);
        }
        let args = self.attention_args(call)?;
        let Op::Attention { q, .. } = &call.op else { return Ok(()) };
        self.push(call, ("attention", (args.heads as usize, self.rows(*q)), 256), &args)
    }

    fn attention_args(&self, call: &OpCall) -> Result<args::Attention, OpError> {
        let Op::Attention { layer, q, kv_of_head, scale, out } = &call.op else {
            return Err(failed(&call.kernel, "no call of attention"));
        };
        if self.plan.kv.head_size > MOST_HEAD {
            let expected = format!("heads of at most {MOST_HEAD} elements");
            return Err(Fault::new(call.kernel.clone(), expected, self.plan.kv.head_size.to_string()).into());
        }
        let table = self.places.heads_tables.iter().find(|(t, _)| t == kv_of_head).map_or(0, |(_, at)| *at);
        Ok(args::Attention {
            step: self.base.0,
            q: self.at(*q),
            out: self.at(*out),
            kv_of_head: self.base.plus(table).0,
            pool: shape_args(self.plan.kv),
            q_stride: self.stride(*q),
            out_stride: self.stride(*out),
            layer: *layer,
            heads: kv_of_head.len() as u32,
            scale: *scale,
            reserved: 0,
        })
    }

    fn swiglu(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::SwiGlu { gate, up, out } = &call.op else { return Ok(()) };
        let width = self.plan.buffer(*out).width;
        let args = args::Swiglu {
            step: self.base.0,
            gate: self.at(*gate),
            up: self.at(*up),
            out: self.at(*out),
            gate_stride: self.stride(*gate),
            up_stride: self.stride(*up),
            out_stride: self.stride(*out),
            width: width as u32,
        };
        let kernel = if Method::of(&call.kernel) == Method::Lanes { "swiglu" } else { "swiglu_fast" };
        self.push(call, (kernel, (width.div_ceil(256), self.rows(*out)), 256), &args)
    }

    fn select_rows(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::SelectRows { x, out } = &call.op else { return Ok(()) };
        let args = args::Select {
            step: self.base.0,
            x: self.at(*x),
            out: self.at(*out),
            x_stride: self.stride(*x),
            out_stride: self.stride(*out),
            width: self.plan.buffer(*out).width as u32,
            reserved: 0,
        };
        self.push(call, ("select_rows", (self.rows(*out), 1), 256), &args)
    }

    fn sample(&mut self, call: &OpCall) -> Result<(), OpError> {
        let Op::Sample { logits } = &call.op else { return Ok(()) };
        let (vocab, rows) = (self.plan.buffer(*logits).width, self.rows(*logits));
        let count = vocab.div_ceil(PART_LOGITS).min(MOST_PARTS);
        let args = args::Sample {
            step: self.base.0,
            logits: self.at(*logits),
            parts: self.base.plus(self.places.parts).0,
            results: self.base.plus(self.places.results).0,
            stride: self.stride(*logits),
            vocab: vocab as u32,
            count: count as u32,
            reserved: 0,
        };
        if Method::of(&call.kernel) == Method::Split {
            self.push(call, ("sample_split_parts", (count, rows), 256), &args)?;
            return self.push(call, ("sample_split_finish", (rows, 1), 256), &args);
        }
        self.push(call, ("sample_parts", (count, rows), 256), &args)?;
        self.push(call, ("sample_finish", (rows, 1), 1024), &args)
    }

    /// Norms and rotations of queries and keys, and the append; with `attended` the attention after them.
    fn heads(&mut self, group: &Group, first: usize, normed: bool, attended: bool) -> Result<(), OpError> {
        let plan = self.plan;
        let calls = &plan.calls[first..];
        let mut args: args::Heads = bytemuck::Zeroable::zeroed();
        if normed {
            for (call, (weight, its)) in
                calls.iter().zip([(&mut args.q_norm, &mut args.q_eps), (&mut args.k_norm, &mut args.k_eps)])
            {
                let Op::HeadNorm { weight: id, eps, .. } = &call.op else { continue };
                (*weight, *its) = (self.vector(call, *id)?, *eps);
            }
        }
        let turned = &calls[if normed { 2 } else { 0 }..];
        let (Op::Rope { x: q, heads }, Op::KvAppend { layer, k, v }) = (&turned[0].op, &turned[2].op) else {
            return Ok(());
        };
        args.step = self.base.0;
        (args.q, args.q_stride) = (self.at(*q), self.stride(*q));
        (args.k, args.k_stride) = (self.at(*k), self.stride(*k));
        (args.v, args.v_stride) = (self.at(*v), self.stride(*v));
        args.pool = shape_args(self.plan.kv);
        (args.heads, args.layer, args.interleaved) = (*heads, *layer, self.interleaved());
        if attended {
            return self.split(self.key(group), &turned[3], Some(args));
        }
        let all = *heads as usize + 2 * self.plan.kv.kv_heads;
        let shape = ("heads", (all.div_ceil(HEADS_EACH), self.rows(*q)), 128);
        self.launch(&Unit::heads(), self.key(group), shape, &args)
    }

    fn push<A: bytemuck::Pod>(&mut self, call: &OpCall, shape: Shape<'_>, args: &A) -> Result<(), OpError> {
        let unit = self.unit(call);
        self.launch(&unit, call.kernel.clone(), shape, args)
    }

    fn launch<A: bytemuck::Pod>(
        &mut self,
        unit: &Unit,
        key: String,
        shape: Shape<'_>,
        args: &A,
    ) -> Result<(), OpError> {
        self.launch_with(unit, key, shape, 0, args)
    }

    /// A launch whose blocks get so many bytes of shared memory.
    fn launch_with<A: bytemuck::Pod>(
        &mut self,
        unit: &Unit,
        key: String,
        (kernel, grid, threads): Shape<'_>,
        shared: u32,
        args: &A,
    ) -> Result<(), OpError> {
        let early = unit.starts_early();
        // A bucket in which nothing may be wanted has no rows to launch for.
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        let kernel = self.device.kernel(unit, kernel)?;
        let grid = (grid.0 as u32, grid.1 as u32);
        let args = bytemuck::bytes_of(args).to_vec();
        self.launches.push(Launch { kernel, key, grid, threads, shared, early, args });
        Ok(())
    }

    /// The unit of a call's kernel.
    fn unit(&self, call: &OpCall) -> Unit {
        let format = call.op.matrix().map(|w| self.held(w).format);
        let op: OpName = call.op.name();
        Unit::with(op, format, Method::of(&call.kernel))
    }

    /// The keys of a group's calls, for messages.
    fn key(&self, group: &Group) -> String {
        let keys: Vec<&str> = self.plan.calls[group.calls()].iter().map(|c| c.kernel.as_str()).collect();
        keys.join(" + ")
    }

    fn held(&self, id: WeightId) -> &Held {
        &self.linker.weights[id.0 as usize]
    }

    fn vector(&self, call: &OpCall, id: WeightId) -> Result<u64, OpError> {
        let held = self.held(id);
        held.vector.map(|at| at.0).ok_or_else(|| failed(&call.kernel, format!("{} is no vector", held.name)))
    }

    fn rows(&self, id: BufId) -> usize {
        rows(self.plan, self.plan.buffer(id).rows)
    }

    fn of_selected(&self, id: BufId) -> u32 {
        u32::from(self.plan.buffer(id).rows == RowSpace::Selected)
    }

    fn at(&self, id: BufId) -> u64 {
        self.base.plus(self.places.buffers[id.0 as usize]).0
    }

    fn stride(&self, id: BufId) -> u32 {
        stride(self.plan.buffer(id).width) as u32
    }

    fn interleaved(&self) -> u32 {
        u32::from(self.plan.rope.style == RopeStyle::Interleaved)
    }
}

/// The kernel of a family for so many rows.
fn few<'a>(kernels: &[(usize, &'a str)], rows: usize) -> Option<&'a str> {
    kernels.iter().find(|(most, _)| rows <= *most).map(|(_, kernel)| *kernel)
}
