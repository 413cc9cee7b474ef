//! A plan made ready: buffers allocated, kernels bound, barriers placed.

mod attention;
mod heads;
mod integers;
mod linker;
pub mod room;
mod tiles;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use tare_core::{DType, Fault};
use tare_ops::{BatchCheck, BufId, ForwardPlan, Op, OpError, RopeTable, Rounding, RowSpace, WeightId};

use crate::codes::Codes;
use crate::epilogue::{Bias, Epilogue};
use crate::fuse::Role;
use crate::kernels::attention::{Attention, AttentionFn};
use crate::kernels::embedding::panels::{Gather, GatherFn};
use crate::kernels::embedding::{Embedding, EmbeddingFn};
use crate::kernels::heads::{Heads, HeadsFn};
use crate::kernels::into_tiles::{IntoTiles, IntoTilesFn, RowNorm};
use crate::kernels::kv_append::KvAppend;
use crate::kernels::linear::{Linear, LinearFn};
use crate::kernels::linear_int::{LinearInt, LinearIntFn};
use crate::kernels::linear_lossless::{LinearLossless, LinearLosslessFn};
use crate::kernels::linear_tiles::gated::{GatedTiles, GatedTilesFn};
use crate::kernels::linear_tiles::heads::{HeadsTiles, HeadsTilesFn};
use crate::kernels::linear_tiles::{LinearTiles, LinearTilesFn};
use crate::kernels::norm::{Norm, NormFn};
use crate::kernels::quantize::{Quantize, QuantizeFn};
use crate::kernels::rope::{Angles, Rope, RopeFn};
use crate::kernels::round::Round;
use crate::kernels::sample::{Sample, SampleFn};
use crate::kernels::select_rows::SelectRows;
use crate::kernels::swiglu::{SwiGlu, SwiGluFn};
use crate::matrix::{Kept, Matrix};
use crate::memory::Memory;
use crate::order::{Order, Resource};
use crate::planted::Spin;
use crate::registry::Entry;
use crate::rows::{Rows, padded};
use crate::tiled::Tiled;

pub use linker::Linker;
use room::{Arenas, Piece, Room, Share};

/// What a stage does.
#[derive(Clone, Debug)]
pub enum Task {
    /// Sines and cosines of the step's positions.
    Angles(Angles),
    /// Rounding in front of linears.
    Round(Round, RowSpace),
    /// Activations to integers in front of linears.
    Quantize(QuantizeFn, Quantize, RowSpace),
    /// Activations to tiles of BF16 in front of linears, with the norm that made them or without.
    IntoTiles(IntoTilesFn, IntoTiles, RowSpace),
    /// Rows of the embedding.
    Embedding(EmbeddingFn, Embedding),
    /// The same, out of panels.
    Gather(GatherFn, Gather),
    /// Norm of rows or heads.
    Norm(NormFn, Norm, RowSpace),
    /// Rotary embedding.
    Rope(RopeFn, Rope),
    /// Matrix product.
    Linear(LinearFn, Linear, RowSpace),
    /// Matrix product with activations in integers.
    LinearInt(LinearIntFn, LinearInt, RowSpace),
    /// Matrix product with BF16 in 12 bits.
    LinearLossless(LinearLosslessFn, LinearLossless, RowSpace),
    /// Matrix product in tiles.
    LinearTiles(LinearTilesFn, LinearTiles, RowSpace),
    /// Two of them and the gated unit.
    GatedTiles(GatedTilesFn, GatedTiles, RowSpace),
    /// Norms and rotations of heads, keys and values into the cache.
    Heads(HeadsFn, Box<Heads>),
    /// The same behind the products that make them.
    HeadsTiles(HeadsTilesFn, Box<HeadsTiles>),
    /// Keys and values into the cache.
    KvAppend(KvAppend),
    /// Attention, and the counter from which its workers take pieces.
    Attention(AttentionFn, Attention, Taken),
    /// The gated unit.
    SwiGlu(SwiGluFn, SwiGlu, RowSpace),
    /// The rows that something is wanted of.
    SelectRows(SelectRows),
    /// Logits to tokens.
    Sample(SampleFn, Sample),
    /// Notes when the stage after it begins, for the spin that follows that stage: see [`crate::planted`].
    Mark(Spin),
    /// A planted delay: see [`crate::planted`].
    Spin(Spin),
}

/// Pieces of a call that workers have taken. A copy of a stage has taken none.
#[derive(Debug, Default)]
pub struct Taken(pub AtomicUsize);

impl Clone for Taken {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// One stage: all workers do their share of a task.
#[derive(Clone, Debug)]
pub struct Stage {
    /// What.
    pub task: Task,
    /// The call of the plan that it belongs to: the last one that it carries.
    pub call: usize,
    /// Whether the workers meet before it, because it touches what an earlier stage wrote or reads.
    pub barrier: bool,
}

/// An executable.
#[derive(Clone, Debug)]
pub struct Program {
    /// What a batch must keep.
    pub check: BatchCheck,
    /// The most rows.
    pub bucket: tare_ops::Bucket,
    /// For the angles.
    pub rope: RopeTable,
    /// In order.
    pub stages: Vec<Stage>,
    /// Keys of the plan's calls, for messages.
    pub kernels: Vec<String>,
    /// Whether it has attention, which needs room for scores.
    pub attends: bool,
    /// The calls of the plan that run together, in order, and the buffers that they leave.
    pub(crate) carried: Vec<Carried>,
    /// What the stages' pointers point into, shared with other programs. Parts of a program work in the buffers of the
    /// whole.
    pub(crate) arenas: Arenas,
    /// The same, of this program and its parts alone.
    pub(crate) own: Vec<Arc<Memory>>,
    /// The matrices that the stages' pointers point into.
    pub kept: Arc<Vec<Kept>>,
    /// Nanoseconds that worker 0 spent in planted delays, over all runs.
    pub(crate) spun_ns: Arc<AtomicU64>,
}

impl Program {
    /// The calls that run together with `call`, itself among them.
    pub(crate) fn together_with(&self, call: usize) -> Range<usize> {
        let together = self.carried.iter().map(|(calls, _)| calls).find(|calls| calls.contains(&call));
        together.cloned().unwrap_or(call..call + 1)
    }
}

/// Calls that run together, by their indices in the plan, and what they leave.
pub(crate) type Carried = (Range<usize>, Vec<Written>);

/// A step buffer that a call writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Which.
    pub(crate) buffer: BufId,
    /// Its rows.
    pub(crate) rows: Rows,
    /// The tiles that hold them instead, where only these are written.
    pub(crate) tiled: Option<Tiled>,
    /// Which rows of the step those are.
    pub(crate) space: RowSpace,
}

/// A program in the making.
struct Build<'a> {
    linker: Linker<'a>,
    plan: &'a ForwardPlan,
    room: Room,
    /// Where a resource lies in the room; what lies in none is not here.
    pieces: Vec<(Resource, Piece)>,
    rows: Vec<Rows>,
    /// The rounded copy of each buffer, and whether it is that of the buffer's present content.
    rounded: Vec<Option<(Rows, bool)>>,
    /// The copies of each buffer in integers of one and of two planes, in the same way.
    codes: Vec<[Option<(Codes, bool)>; 2]>,
    /// The copies of each buffer in tiles, one for each side that asks for it, in the same way.
    tiled: Vec<Vec<(Tiled, bool)>>,
    kept: Vec<Kept>,
    angles: Option<Angles>,
    order: Order,
    stages: Vec<Stage>,
    attends: bool,
}

impl<'a> Build<'a> {
    fn new(linker: Linker<'a>, plan: &'a ForwardPlan, room: Room) -> Result<Self, OpError> {
        let mut build = Self {
            linker,
            plan,
            room,
            pieces: Vec::new(),
            rows: Vec::new(),
            rounded: vec![None; plan.buffers.len()],
            codes: vec![[None; 2]; plan.buffers.len()],
            tiled: vec![Vec::new(); plan.buffers.len()],
            kept: Vec::new(),
            angles: None,
            order: Order::default(),
            stages: Vec::new(),
            attends: false,
        };
        for (id, b) in plan.buffers.iter().enumerate() {
            let rows = build.allocate(Resource::Buffer(BufId(id as u16)), b.rows, b.width)?;
            build.rows.push(rows);
        }
        Ok(build)
    }

    /// Rows of F32 for `what`.
    fn allocate(&mut self, what: Resource, space: RowSpace, width: usize) -> Result<Rows, OpError> {
        let bytes = self.most(space).saturating_mul(padded(width)).saturating_mul(size_of::<f32>());
        // Columns that pad a row hold 0 for as long as it lives.
        let share = if padded(width) == width { Share::Numbers } else { Share::Nobody };
        Ok(Rows::at(self.piece(what, share, bytes)?.cast(), width))
    }

    /// A piece of the room for `what`: where it begins.
    fn piece(&mut self, what: Resource, share: Share, bytes: usize) -> Result<*mut u8, OpError> {
        let (piece, first) = self.room.piece(share, bytes)?;
        self.pieces.push((what, piece));
        Ok(first)
    }

    /// The most rows of a buffer.
    fn most(&self, space: RowSpace) -> usize {
        match space {
            RowSpace::All => self.plan.bucket.rows,
            RowSpace::Selected => self.plan.bucket.selected,
        }
    }

    /// A matrix as the file has it.
    fn matrix(&mut self, id: WeightId) -> Result<Matrix, Fault> {
        let linker = self.linker;
        // What is pointed into is what is kept: bytes that have to be made are made for this clone.
        let weight = linker.weights[id.0 as usize].file()?.clone();
        let matrix = Matrix::of(&weight);
        self.kept.push(Kept::File(weight));
        Ok(matrix)
    }

    fn buffer(&self, id: BufId) -> Rows {
        self.rows[id.0 as usize]
    }

    fn written(&self, buffer: BufId, role: Role) -> Written {
        let side = match role {
            Role::InTiles(kernel) | Role::Gated(kernel) | Role::Projected(_, kernel) => Some(kernel.side),
            Role::Alone | Role::Carried | Role::Heads(_) => None,
        };
        let tiled = side.and_then(|side| self.copy(buffer, side)).map(|(copy, _)| copy);
        Written { buffer, rows: self.buffer(buffer), tiled, space: self.space(buffer) }
    }

    fn space(&self, id: BufId) -> RowSpace {
        self.plan.buffer(id).rows
    }

    fn vector(&self, id: WeightId) -> Result<NonNull<f32>, Fault> {
        let held = &self.linker.weights[id.0 as usize];
        let shape = || format!("[{}, {}]", held.info().rows, held.info().cols);
        let v = held.vector().ok_or_else(|| Fault::new(&held.info().name, "a vector: one row", shape()))?;
        // Of the whole slice: kernels read all of it through this pointer.
        Ok(NonNull::from(v).cast())
    }

    /// Appends a stage that reads and writes these; what it changes is among both.
    fn push(&mut self, call: usize, task: Task, reads: &[Resource], writes: &[Resource]) {
        let barrier = self.order.meets(reads, writes);
        if barrier {
            self.room.meet();
        }
        for (what, piece) in &self.pieces {
            if reads.contains(what) {
                self.room.read(*piece);
            } else if writes.contains(what) {
                self.room.write(*piece);
            } else if reads.iter().any(|r| r.is_copy_of(*what)) {
                self.room.read_copy(*piece);
            }
        }
        for w in writes {
            if let Resource::Buffer(id) = w {
                self.forget_copies(*id);
            }
        }
        self.stages.push(Stage { task, call, barrier });
    }

    /// Copies of a buffer are no longer those of its content.
    fn forget_copies(&mut self, id: BufId) {
        self.rounded[id.0 as usize].iter_mut().for_each(|(_, fresh)| *fresh = false);
        self.codes[id.0 as usize].iter_mut().flatten().for_each(|(_, fresh)| *fresh = false);
        self.tiled[id.0 as usize].iter_mut().for_each(|(_, fresh)| *fresh = false);
    }

    fn call(&mut self, i: usize, op: &Op, (entries, role): (&[Entry], Role)) -> Result<(), OpError> {
        use Resource::{Buffer, Cache, Output};
        match (role, op) {
            (Role::Carried, _) => return Ok(()),
            (Role::Gated(kernel), Op::SwiGlu { out, .. }) => return self.gated_tiles(i, *out, kernel),
            (Role::InTiles(kernel), Op::RmsNorm { x, weight, eps, out }) => {
                let norm = RowNorm { weight: self.vector(*weight)?, eps: *eps };
                return self.norm_tiles(i, (*x, *out), norm, kernel);
            }
            (Role::Heads(heads), _) => return self.heads(heads, entries),
            (Role::Projected(heads, kernel), _) => return self.projected(heads, kernel),
            _ => {}
        }
        match (op, entries[i]) {
            (Op::Embedding { table, out }, Entry::Embedding(f)) => {
                let call = Embedding { table: self.matrix(*table)?, out: self.buffer(*out) };
                self.push(i, Task::Embedding(f, call), &[], &[Buffer(*out)]);
            }
            (Op::Embedding { table, out }, Entry::Gather(f)) => {
                let call = Gather { table: self.panels(*table)?, out: self.buffer(*out) };
                self.push(i, Task::Gather(f, call), &[], &[Buffer(*out)]);
            }
            (Op::RmsNorm { x, weight, eps, out }, Entry::Norm(f)) => {
                let (size, weight) = (self.buffer(*x).width, self.vector(*weight)?);
                let call = Norm { x: self.buffer(*x), out: self.buffer(*out), weight, heads: 1, size, eps: *eps };
                self.push(i, Task::Norm(f, call, self.space(*x)), &[Buffer(*x)], &[Buffer(*out)]);
            }
            (Op::HeadNorm { x, weight, heads, eps }, Entry::Norm(f)) => {
                let call = self.head_norm(*x, (*weight, *eps), *heads)?;
                self.push(i, Task::Norm(f, call, self.space(*x)), &[Buffer(*x)], &[Buffer(*x)]);
            }
            (Op::Rope { x, heads }, Entry::Rope(f, _)) => {
                let call = self.rope(i, *x, *heads)?;
                self.push(i, Task::Rope(f, call), &[Resource::Angles, Buffer(*x)], &[Buffer(*x)]);
            }
            (Op::Linear { .. }, Entry::Linear(f)) => self.linear(i, op, f)?,
            (Op::Linear { x, weight, .. }, Entry::LinearInt(kernel)) => {
                self.linear_int(i, op, (*x, *weight), kernel)?;
            }
            (Op::Linear { weight, .. }, Entry::LinearLossless(f)) => {
                let (weight, end) = (self.panels(*weight)?, self.epilogue(op)?);
                let (x, space, read) = self.rounded_input(i, op)?;
                let task = Task::LinearLossless(f, LinearLossless { x, weight, end }, space);
                self.push_linear(i, op, task, read);
            }
            (Op::Linear { x, weight, .. }, Entry::LinearTiles(kernel)) => {
                self.linear_tiles(i, op, (*x, *weight), kernel)?;
            }
            (Op::KvAppend { layer, k, v }, Entry::KvAppend) => {
                let call = self.append(*layer, *k, *v);
                self.push(i, Task::KvAppend(call), &[Buffer(*k), Buffer(*v)], &[Cache(*layer)]);
            }
            (Op::Attention { .. }, Entry::Attention { method, f32, bf16 }) => {
                let f = match self.plan.kv.dtype {
                    DType::BF16 => bf16,
                    other => {
                        f32.ok_or_else(|| Fault::new("kv of a plan", "bf16, which this kernel reads", other.name()))?
                    }
                };
                self.attention(i, op, (f, method), role)?;
            }
            (Op::SwiGlu { gate, up, out }, Entry::SwiGlu(f)) => {
                let call = SwiGlu { gate: self.buffer(*gate), up: self.buffer(*up), out: self.buffer(*out) };
                self.push(i, Task::SwiGlu(f, call, self.space(*out)), &[Buffer(*gate), Buffer(*up)], &[Buffer(*out)]);
            }
            (Op::SelectRows { x, out }, Entry::SelectRows) => {
                let call = SelectRows { x: self.buffer(*x), out: self.buffer(*out) };
                self.push(i, Task::SelectRows(call), &[Buffer(*x)], &[Buffer(*out)]);
            }
            (Op::Sample { logits }, Entry::Sample(f)) => {
                let call = Sample { logits: self.buffer(*logits) };
                self.push(i, Task::Sample(f, call), &[Buffer(*logits)], &[Output]);
            }
            (op, _) => unreachable!("the registry lists a kernel of another operator under {}", op.name()),
        }
        Ok(())
    }

    fn linear(&mut self, i: usize, op: &Op, f: LinearFn) -> Result<(), OpError> {
        let Op::Linear { weight, .. } = op else { return Ok(()) };
        let (x, space, read) = self.rounded_input(i, op)?;
        let call = Linear { x, weight: self.matrix(*weight)?, end: self.epilogue(op)? };
        self.push_linear(i, op, Task::Linear(f, call, space), read);
        Ok(())
    }

    /// The rows that linear `i` multiplies, rounded as it asks.
    fn rounded_input(&mut self, i: usize, op: &Op) -> Result<(Rows, RowSpace, Resource), OpError> {
        let Op::Linear { x, rounding, .. } = op else { unreachable!("asked for linears alone") };
        let (rows, read) = match rounding {
            Rounding::Bf16 => (self.round(i, *x)?, Resource::Rounded(*x)),
            _ => (self.buffer(*x), Resource::Buffer(*x)),
        };
        Ok((rows, self.space(*x), read))
    }

    /// Appends the stage of a linear that reads its rows from `read`.
    fn push_linear(&mut self, i: usize, op: &Op, task: Task, read: Resource) {
        let out = Resource::Buffer(*op.output());
        let adds = matches!(op, Op::Linear { accumulate: true, .. });
        self.push(i, task, &[read, out][..1 + usize::from(adds)], &[out]);
    }

    /// What a linear does with its products.
    fn epilogue(&self, op: &Op) -> Result<Epilogue, Fault> {
        let (bias, accumulate) = match op {
            Op::Linear { bias, accumulate, .. } => (*bias, *accumulate),
            _ => (None, false),
        };
        let bias = Bias(bias.map(|b| self.vector(b)).transpose()?);
        Ok(Epilogue { bias, accumulate, out: self.buffer(*op.output()) })
    }

    /// The rounded copy of a buffer, made by a stage unless it is there already.
    fn round(&mut self, i: usize, x: BufId) -> Result<Rows, OpError> {
        let at = x.0 as usize;
        let (out, fresh) = match self.rounded[at] {
            Some(copy) => copy,
            None => (self.allocate(Resource::Rounded(x), self.space(x), self.buffer(x).width)?, false),
        };
        if !fresh {
            let task = Task::Round(Round { x: self.buffer(x), out }, self.space(x));
            self.push(i, task, &[Resource::Buffer(x)], &[Resource::Rounded(x)]);
        }
        self.rounded[at] = Some((out, true));
        Ok(out)
    }
}
