//! Every kernel of this backend, the preferred ones first.

mod attention;
mod tiles;

pub use tiles::InTiles;
use tiles::MANY_ROWS;

use std::marker::PhantomData;

use tare_core::{AffineBits, Format};
use tare_formats::codec::quants::Coding;
use tare_ops::{Fit, Isa, IsaSet, OpName, OpShape, Order, Rounding, Slack, Variant};

use crate::coded::{Coded, Visit, visit};
use crate::dots::Dots;
use crate::kernels::attention::{AttentionFn, Method};
use crate::kernels::embedding::panels::{GatherFn, OfFormat};
use crate::kernels::embedding::{self, EmbeddingFn};
use crate::kernels::heads::{self, HeadsFn};
use crate::kernels::linear::{self, LinearFn};
use crate::kernels::linear_int::{self, LinearIntFn};
use crate::kernels::linear_lossless::LinearLosslessFn;
use crate::kernels::norm::{self, NormFn};
use crate::kernels::quantize::{self, QuantizeFn};
use crate::kernels::rope::{self, RopeFn};
use crate::kernels::sample::{self, SampleFn};
use crate::kernels::swiglu::{self, SwiGluFn};
use crate::lanes::{Lanes, array::Array};
use crate::unpack::{self, Unpack};

/// The function behind a key.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// See [`embedding`].
    Embedding(EmbeddingFn),
    /// See [`panels`](crate::kernels::embedding::panels).
    Gather(GatherFn),
    /// See [`linear`](mod@linear).
    Linear(LinearFn),
    /// See [`linear_int`].
    LinearInt(Integers),
    /// See [`linear_lossless`](crate::kernels::linear_lossless).
    LinearLossless(LinearLosslessFn),
    /// See [`linear_tiles`](crate::kernels::linear_tiles).
    LinearTiles(InTiles),
    /// See [`norm`]: rows and heads.
    Norm(NormFn),
    /// See [`rope`]; and [`heads`] where it goes with the calls around it.
    Rope(RopeFn, HeadsFn),
    /// See [`kv_append`](crate::kernels::kv_append).
    KvAppend,
    /// See [`attention`](crate::kernels::attention).
    Attention {
        /// How they go about it.
        method: Method,
        /// For pools of F32, if it takes them.
        f32: Option<AttentionFn>,
        /// For pools of BF16.
        bf16: AttentionFn,
    },
    /// See [`swiglu`].
    SwiGlu(SwiGluFn),
    /// See [`select_rows`](crate::kernels::select_rows).
    SelectRows,
    /// See [`sample`].
    Sample(SampleFn),
}

/// A linear with activations in integers.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    /// Bytes of an integer.
    pub planes: usize,
    /// Activations to integers.
    pub quantize: QuantizeFn,
    /// The product.
    pub product: LinearIntFn,
}

impl Entry {
    /// Whether it reads its matrix in [`panels`](crate::panels); else as the file has it.
    pub const fn reads_panels(self) -> bool {
        match self {
            Entry::LinearTiles(kernel) => kernel.panels,
            _ => matches!(self, Entry::Gather(_) | Entry::LinearInt(_) | Entry::LinearLossless(_)),
        }
    }
}

/// Kernels and their functions, in the same order.
#[derive(Debug, Default)]
pub struct Registry {
    variants: Vec<Variant>,
    entries: Vec<Entry>,
}

impl Registry {
    /// Everything that was compiled for this architecture.
    pub fn new() -> Self {
        let mut r = Self::default();
        #[cfg(target_arch = "x86_64")]
        {
            // Before those in the reference's order: the first that is best is taken.
            r.integers_in_tiles::<crate::dots::tiles::amx::AmxDots>();
            r.tiles::<crate::tiles::amx::Amx>();
            r.pairs::<crate::pairs::vdpbf16::Avx512Bf16>();
            r.level::<crate::lanes::avx512::Avx512>();
            r.level::<crate::lanes::avx2::Avx2>();
        }
        #[cfg(target_arch = "aarch64")]
        r.level::<crate::lanes::neon::Neon>();
        r.level::<Array>();
        #[cfg(target_arch = "x86_64")]
        {
            r.integers::<crate::dots::vnni::Vnni>();
            r.integers::<crate::lanes::avx2::Avx2>();
        }
        #[cfg(target_arch = "aarch64")]
        {
            r.integers::<crate::dots::neon::NeonDots<true>>();
            r.integers::<crate::dots::neon::NeonDots<false>>();
        }
        r.integers::<Array>();
        for (format, gather) in Format::ALL.into_iter().filter_map(|f| Some((f, visit(f, OfFormat)?))) {
            let what = (OpName::Embedding, format, "panels", Isa::Portable);
            r.over_panels(what, (Order::Reference, Slack::F32, Rounding::ALL), Entry::Gather(gather), gathered);
        }
        #[cfg(target_arch = "x86_64")]
        r.lossless::<crate::pairs::vdpbf16::Avx512Bf16, crate::tiles::amx::Amx>();
        r.gathers_lossless();
        r.add(OpName::KvAppend, None, Isa::Portable, Entry::KvAppend);
        r.add(OpName::SelectRows, None, Isa::Portable, Entry::SelectRows);
        r
    }

    /// The kernels.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// The kernel `key` and its function.
    pub fn find(&self, key: &str) -> Option<(&Variant, Entry)> {
        self.variants.iter().zip(&self.entries).find(|(v, _)| v.key == key).map(|(v, e)| (v, *e))
    }

    fn add(&mut self, op: OpName, format: Option<Format>, isa: Isa, entry: Entry) {
        let key = match format {
            Some(f) => format!("{op}.{f}.{isa}"),
            None => format!("{op}.{isa}"),
        };
        let fits = match entry {
            Entry::KvAppend | Entry::SelectRows => always,
            Entry::Linear(_) | Entry::Embedding(_) => of_the_file,
            _ => best_level,
        };
        let (order, slack, roundings) = (Order::Reference, Slack::F32, Rounding::FLOATING);
        self.variants.push(Variant { key, op, format, isa, order, slack, roundings, fits });
        self.entries.push(entry);
    }

    /// A kernel that reads panels, with a word in its key for how it goes about it.
    fn over_panels(
        &mut self,
        (op, format, word, isa): (OpName, Format, &str, Isa),
        (order, slack, roundings): (Order, Slack, &'static [Rounding]),
        entry: Entry,
        fits: Fits,
    ) {
        let (key, format) = (format!("{op}.{format}.{word}.{isa}"), Some(format));
        self.variants.push(Variant { key, op, format, isa, order, slack, roundings, fits });
        self.entries.push(entry);
    }

    /// The linears written over [`Dots`], for one instruction set.
    fn integers<D: Dots>(&mut self) {
        for format in Format::ALL {
            let Some([eight, sixteen]) = visit(format, LinearOf::<D>(PhantomData)) else { continue };
            let what = |word| (OpName::Linear, format, word, D::ISA);
            self.over_panels(what("a8"), (Order::Reference, Slack::F32, EIGHT_BITS), eight, best_of_dots);
            self.over_panels(what("a15"), (Order::Reference, Slack::F32, FIFTEEN_BITS), sixteen, best_of_dots);
            self.over_panels(what("i16"), (Order::Free, Slack::Int16Blocks, IN_BF16), sixteen, best_of_dots);
        }
    }

    /// The kernels written over [`Lanes`], for one instruction set.
    fn level<L: Lanes>(&mut self) {
        for format in Format::ALL {
            let (linear, embedding) = of_format::<L>(format);
            self.add(OpName::Linear, Some(format), L::ISA, Entry::Linear(linear));
            self.add(OpName::Embedding, Some(format), L::ISA, Entry::Embedding(embedding));
        }
        self.add(OpName::RmsNorm, None, L::ISA, Entry::Norm(norm::kernel::<L>()));
        self.add(OpName::HeadNorm, None, L::ISA, Entry::Norm(norm::kernel::<L>()));
        self.add(OpName::Rope, None, L::ISA, Entry::Rope(rope::kernel::<L>(), heads::kernel::<L>()));
        self.attention::<L>();
        self.add(OpName::SwiGlu, None, L::ISA, Entry::SwiGlu(swiglu::kernel::<L>()));
        self.add(OpName::Sample, None, L::ISA, Entry::Sample(sample::kernel::<L>()));
    }
}

/// When a kernel fits.
type Fits = fn(&Variant, &OpShape, &IsaSet) -> Fit;

/// What linears over integers of 8 bits do to activations.
const EIGHT_BITS: &[Rounding] = &[Rounding::Int8];
/// What those over integers of 15 bits do, where the class says that they are made.
const FIFTEEN_BITS: &[Rounding] = &[Rounding::Int15];
/// What linears of classes in any order do to activations, whatever they make of them then.
const IN_BF16: &[Rounding] = &[Rounding::Bf16];

/// The linears of a format on `D`: with activations in integers of 8 and of 15 bits.
struct LinearOf<D>(PhantomData<D>);

impl<D: Dots> Visit for LinearOf<D> {
    type Output = [Entry; 2];
    fn visit<F: Coded>(self) -> [Entry; 2] {
        [integers::<D, F, 1>(), integers::<D, F, 2>()].map(Entry::LinearInt)
    }
}

fn integers<D: Dots, F: Coded, const P: usize>() -> Integers {
    Integers { planes: P, quantize: quantize::kernel::<D::L, P>(), product: linear_int::kernel::<D, F, P>() }
}

fn of_format<L: Lanes>(format: Format) -> (LinearFn, EmbeddingFn) {
    match format {
        Format::F32 => both::<L, unpack::F32>(),
        Format::F16 => both::<L, unpack::F16>(),
        Format::BF16 => both::<L, unpack::Bf16>(),
        Format::Q8_0 => both::<L, unpack::Q8_0>(),
        Format::Q4_0 => both::<L, unpack::Q4_0>(),
        Format::Q4_1 => both::<L, unpack::Q4_1>(),
        Format::Q5_0 => both::<L, unpack::Q5_0>(),
        Format::Q5_1 => both::<L, unpack::Q5_1>(),
        Format::Q4K => both::<L, unpack::Q4K>(),
        Format::Q5K => both::<L, unpack::Q5K>(),
        Format::Q6K => both::<L, unpack::Q6K>(),
        Format::Affine { bits: AffineBits::Four, .. } => both::<L, unpack::Affine4>(),
        Format::Affine { bits: AffineBits::Eight, .. } => both::<L, unpack::Affine8>(),
    }
}

fn both<L: Lanes, F: Unpack>() -> (LinearFn, EmbeddingFn) {
    (linear::kernel::<L, F>(), embedding::kernel::<L, F>())
}

fn always(_: &Variant, _: &OpShape, _: &IsaSet) -> Fit {
    Fit::Best
}

/// Whether the weight of a call lies in panels: in packed formats, for activations in integers and in classes in any order. Class
/// and format alone say so, so that all who read a weight agree, whatever the bucket.
fn in_panels(s: &OpShape) -> bool {
    let packed = s.format.is_some_and(|f| Coding::of(f).is_some());
    packed && s.rounding.is_some_and(|r| r.is_integer() || s.order == Order::Free)
}

/// Kernels that read a matrix as the file has it.
fn of_the_file(v: &Variant, s: &OpShape, isa: &IsaSet) -> Fit {
    if in_panels(s) {
        return Fit::No { why: "reads weights as the file has them, which this class keeps in panels".to_string() };
    }
    if v.op == OpName::Linear && s.order == Order::Free && s.rows >= MANY_ROWS {
        let why = format!("multiplies many rows in F32, for which there are kernels of tiles ({})", Isa::Amx);
        return Fit::Fallback { why };
    }
    best_level(v, s, isa)
}

/// Rows of a table that lies in panels.
fn gathered(_: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
    if in_panels(s) {
        return Fit::Best;
    }
    Fit::No { why: "reads a table in panels, and this one lies as the file has it".to_string() }
}

/// Best on the highest level that the host has a kernel for; a fallback below it.
fn best_level(v: &Variant, _: &OpShape, isa: &IsaSet) -> Fit {
    best_of(&[Isa::Avx512, Isa::Avx2, Isa::Neon], v, isa)
}

/// The same for kernels over [`Dots`].
fn best_of_dots(v: &Variant, _: &OpShape, isa: &IsaSet) -> Fit {
    best_of(&[Isa::Avx512Vnni, Isa::Avx2, Isa::NeonDotprod, Isa::Neon], v, isa)
}

fn best_of(built: &[Isa], v: &Variant, isa: &IsaSet) -> Fit {
    match built.iter().find(|level| isa.has(**level)) {
        Some(best) if *best == v.isa => Fit::Best,
        Some(best) => Fit::Fallback { why: format!("this host has {best}, for which there is a kernel") },
        None => {
            let levels: Vec<&str> = built.iter().map(|level| level.name()).collect();
            Fit::Fallback {
                why: format!("no vector level that kernels are written for ({}) is in use", levels.join(", ")),
            }
        }
    }
}
