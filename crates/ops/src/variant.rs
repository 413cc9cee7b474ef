//! Kernels as a registry of data: key, whether they fit, what they cost.

use tare_core::Format;

use crate::class::{Order, Rounding};
use crate::isa::{Isa, IsaSet};
use crate::op::OpName;

/// The shape of one operator call, enough to choose a kernel and to say what the call must cost.
/// Fields that the operator does not have are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpShape {
    /// Rows that travel through it (T, or the selected rows).
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// Format of the weight it reads.
    pub format: Option<Format>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_size: usize,
    /// Bytes of one KV element.
    pub kv_element_bytes: usize,
    /// Cached tokens read by each row.
    pub context: usize,
    /// What a linear operator does to its input first; of an embedding that is also a head, what the head does.
    pub rounding: Option<Rounding>,
    /// The order of sums that the class promises. In a class in any order a backend may keep weights in another layout.
    pub order: Order,
}

/// Whether a kernel can take a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is made for this.
    Best,
    /// It is right, but something faster should exist: people are told.
    Fallback {
        /// Why it is not the best.
        why: String,
    },
    /// It cannot.
    No {
        /// Why not.
        why: String,
    },
}

/// The least that a call must move and compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights and KV read and KV written, each once. Activations are left out: they live in cache.
    pub bytes: u64,
    /// Floating-point operations, a multiply-add counted as two.
    pub flops: u64,
    /// The same of integers of 8 and of 15 bits, which have a ceiling of their own: as many, however a processor makes them.
    pub int_ops: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, o: Cost) -> Cost {
        Cost { bytes: self.bytes + o.bytes, flops: self.flops + o.flops, int_ops: self.int_ops + o.int_ops }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(it: I) -> Cost {
        it.fold(Cost::default(), |a, b| a + b)
    }
}

/// Which operands the exact result of a kernel of [`Order::Free`] has, and so how far from it the kernel may be: see
/// [`crate::exact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slack {
    /// Operands of products are what the class says; sums are F32.
    F32,
    /// Operands that the class keeps in F32 are rounded to BF16, to nearest even, before a product: dequantized weights, and
    /// of attention the queries and the weights of the tokens.
    Bf16Products,
    /// Inputs of linears, rounded as the class says, become integers of 15 bits by 32 before a product: see
    /// [`crate::reference::int16`].
    Int16Blocks,
}

/// One kernel of a backend.
#[derive(Clone, Debug)]
pub struct Variant {
    /// `op.format.isa`; the Rust function and CUDA symbol replace dots by `_`.
    pub key: String,
    /// What it computes.
    pub op: OpName,
    /// The weight format it reads; none when it reads no matrix.
    pub format: Option<Format>,
    /// The level it needs.
    pub isa: Isa,
    /// The order in which it adds.
    pub order: Order,
    /// How far it may be from the exact result when its order is its own.
    pub slack: Slack,
    /// What it can do to the input of a linear first. For an embedding: of which linears it reads the layout. Looked at
    /// for operators that read a matrix alone.
    pub roundings: &'static [Rounding],
    /// Whether it can take a call of this shape on a host with these levels.
    pub fits: fn(&Variant, &OpShape, &IsaSet) -> Fit,
}

impl Variant {
    /// [`Variant::fits`] with the checks that are the same for every kernel: level, format and arithmetic.
    pub fn fit(&self, shape: &OpShape, isa: &IsaSet) -> Fit {
        if !isa.has(self.isa) {
            return Fit::No { why: format!("needs {}", self.isa) };
        }
        if self.format.is_some() && self.format != shape.format {
            let found = shape.format.map_or_else(|| "none".to_string(), |f| f.to_string());
            return Fit::No { why: format!("reads another format than {found}") };
        }
        if !self.rounds(shape.rounding) {
            return Fit::No { why: format!("does not compute with activations in {}", rounding(shape.rounding)) };
        }
        (self.fits)(self, shape, isa)
    }

    /// Whether it computes as a linear asks it to, or reads the table of an embedding that such a linear reads too. An
    /// embedding that no linear reads lies as the linears of [`Rounding::F32`] read it.
    pub fn rounds(&self, asked: Option<Rounding>) -> bool {
        !self.op.reads_matrix() || self.roundings.contains(&rounding(asked))
    }
}

fn rounding(asked: Option<Rounding>) -> Rounding {
    asked.unwrap_or(Rounding::F32)
}

/// The floor of a call: what any implementation must move and compute.
pub fn cost(op: OpName, s: &OpShape) -> Cost {
    let (rows, n, k) = (s.rows as u64, s.n as u64, s.k as u64);
    let row_bytes = |cols: usize| s.format.and_then(|f| f.row_bytes(cols)).unwrap_or(0) as u64;
    let kv_token = 2 * (s.kv_heads * s.head_size * s.kv_element_bytes) as u64;
    let of = |bytes, flops| Cost { bytes, flops, int_ops: 0 };
    match op {
        OpName::Embedding => of(rows * row_bytes(s.n), 0),
        OpName::Linear if s.rounding.is_some_and(Rounding::is_integer) => {
            Cost { int_ops: 2 * rows * n * k, ..of(n * row_bytes(s.k), 0) }
        }
        OpName::Linear => of(n * row_bytes(s.k), 2 * rows * n * k),
        OpName::RmsNorm | OpName::HeadNorm => of(0, 4 * rows * n),
        OpName::Rope => of(0, 3 * rows * n),
        OpName::SwiGlu => of(0, 5 * rows * n),
        OpName::KvAppend => of(rows * kv_token, 0),
        OpName::Attention => of(s.context as u64 * kv_token, 4 * rows * (s.heads * s.head_size * s.context) as u64),
        OpName::SelectRows | OpName::Sample => Cost::default(),
    }
}
