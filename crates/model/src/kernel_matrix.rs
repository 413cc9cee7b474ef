//! Which kernel of a backend runs what: operator and weight format, class, phase, instruction set.
//!
//! The planner is asked for every cell as it is asked for a call of a plan, so that the matrix cannot say anything else than
//! what a plan would bind. The shapes are those of Qwen3-0.6B at 512 cached tokens.

use serde::{Serialize, Serializer};
use tare_core::{Format, Reading};
use tare_ops::class::CLASSES;
use tare_ops::{Class, Isa, IsaSet, OpName, OpShape, Variant};

use crate::planner::{Choice, preferred};
use crate::strategy::{FEW_ROWS, Strategy};

/// What a step is about, as far as kernels care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// One row.
    Decode,
    /// As many rows as count as few.
    FewRows,
    /// A chunk of 512 rows.
    Prefill,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 3] = [Phase::Decode, Phase::FewRows, Phase::Prefill];

    /// Its rows.
    pub const fn rows(self) -> usize {
        match self {
            Phase::Decode => 1,
            Phase::FewRows => FEW_ROWS,
            Phase::Prefill => 512,
        }
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The operator.
    #[serde(serialize_with = "by_name")]
    pub operator: OpName,
    /// The format of the matrix that it reads.
    #[serde(serialize_with = "by_key")]
    pub format: Option<Format>,
    /// The class.
    pub class: &'static str,
    /// The phase.
    pub phase: Phase,
    /// The highest level that may be used.
    pub level: Isa,
    /// Key of the kernel, or why there is none.
    pub kernel: Reading<String>,
    /// Why nothing better is there, when the kernel is only a fallback.
    pub fallback: Option<String>,
}

impl Cell {
    /// Whether it runs plain Rust.
    pub fn is_readable(&self) -> bool {
        let level = self.kernel.available().and_then(|key| key.rsplit('.').next());
        level == Some(Isa::Portable.name())
    }
}

/// Every cell of a backend with these kernels on a host with these levels: by level from the highest, operator, format, class,
/// phase. A level that no kernel needs has no cells of its own.
pub fn cells(variants: &[Variant], isa: &IsaSet) -> Vec<Cell> {
    let needed = isa.levels().iter().rev().filter(|l| variants.iter().any(|v| v.isa == **l));
    let mut cells = Vec::new();
    for level in needed.copied() {
        let isa = isa.up_to(level);
        for (operator, format, class) in asked() {
            for phase in Phase::ALL {
                let call = (operator, shape(operator, format, class, phase));
                let choice = preferred(call, &Strategy::Auto, class, (variants, &isa));
                cells.push(cell((operator, format, class, phase), level, choice.ok()));
            }
        }
    }
    cells
}

/// Operators with the formats that they read and the classes in which they may.
fn asked() -> impl Iterator<Item = (OpName, Option<Format>, Class)> {
    let formats = |op: OpName| {
        let all = Format::ALL.into_iter().map(Some).filter(move |_| op.reads_matrix());
        all.chain((!op.reads_matrix()).then_some(None))
    };
    let fits = |format: Option<Format>, class: Class| match format {
        None => true,
        Some(f) => class.admits(f).is_ok() && (class.name == "f32" || class.plain() == Class::default_for(f)),
    };
    let classes = move |format| CLASSES.into_iter().filter(move |c| fits(format, *c));
    OpName::ALL
        .into_iter()
        .flat_map(move |op| formats(op).map(move |f| (op, f)))
        .flat_map(move |(op, f)| classes(f).map(move |c| (op, f, c)))
}

fn cell(
    (operator, format, class, phase): (OpName, Option<Format>, Class, Phase),
    level: Isa,
    choice: Option<Choice>,
) -> Cell {
    let (kernel, fallback) = match choice {
        Some(c) => (Reading::Available(c.chosen), c.fallback),
        None => (Reading::unavailable(format!("no kernel of this backend computes it in class {}", class.name)), None),
    };
    Cell { operator, format, class: class.name, phase, level, kernel, fallback }
}

/// A call of Qwen3-0.6B.
fn shape(op: OpName, format: Option<Format>, class: Class, phase: Phase) -> OpShape {
    let (hidden, wide, heads, kv_heads, head_size, vocabulary) = (1024, 3072, 16, 8, 128, 151_936);
    let (n, k) = match op {
        OpName::Linear => (wide, hidden),
        OpName::SwiGlu => (wide, wide),
        OpName::HeadNorm | OpName::Rope | OpName::Attention => (heads * head_size, heads * head_size),
        OpName::KvAppend => (kv_heads * head_size, kv_heads * head_size),
        OpName::Sample => (vocabulary, vocabulary),
        OpName::Embedding | OpName::RmsNorm | OpName::SelectRows => (hidden, hidden),
    };
    let of_heads = matches!(op, OpName::HeadNorm | OpName::Rope | OpName::Attention);
    let of_cache = matches!(op, OpName::KvAppend | OpName::Attention);
    OpShape {
        rows: phase.rows(),
        n,
        k,
        format,
        heads: if of_heads { heads } else { 0 },
        kv_heads: if of_cache { kv_heads } else { 0 },
        head_size: if of_heads || of_cache { head_size } else { 0 },
        kv_element_bytes: if of_cache { class.kv.bytes() } else { 0 },
        context: if op == OpName::Attention { 512 } else { 0 },
        rounding: op.reads_matrix().then_some(class.rounding),
        order: class.order,
    }
}

fn by_name<S: Serializer>(op: &OpName, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(op.name())
}

fn by_key<S: Serializer>(format: &Option<Format>, s: S) -> Result<S::Ok, S::Error> {
    format.map(|f| f.to_string()).serialize(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_ops::{Backend, ReferenceBackend};

    #[test]
    fn every_format_has_a_cell_in_f32_and_in_its_own_classes_for_each_phase() {
        let backend = ReferenceBackend::new();
        let cells = cells(backend.variants(), &backend.describe().isa);
        let of = |format: &str, class: &str| {
            let fits = |c: &&Cell| {
                c.operator == OpName::Linear && c.class == class && c.format.is_some_and(|f| f.to_string() == format)
            };
            cells.iter().filter(fits).count()
        };
        assert_eq!((of("q4_0", "w4a16"), of("q4_0", "f32"), of("q4_0", "w8a16")), (3, 3, 0));
        assert_eq!((of("bf16", "bf16"), of("bf16", "bf16-free"), of("bf16", "w4a8")), (3, 3, 0));
        for op in OpName::ALL {
            assert!(cells.iter().any(|c| c.operator == op), "{op}");
        }
        assert!(cells.iter().all(|c| c.kernel.available().is_some()), "the reference computes everything");
    }

    #[test]
    fn a_cell_without_a_kernel_says_so() {
        let isa = IsaSet::new([Isa::Avx2]);
        let backend = ReferenceBackend::new();
        let linears: Vec<Variant> = backend.variants().iter().filter(|v| v.op == OpName::Linear).cloned().collect();
        let cells = cells(&linears, &isa);
        let rope = cells.iter().find(|c| c.operator == OpName::Rope).unwrap();
        assert!(rope.kernel.to_string().contains("no kernel of this backend"), "{}", rope.kernel);
        assert!(!rope.is_readable());
        assert!(cells.iter().all(|c| c.level != Isa::Avx2), "no kernel needs it");
    }
}
