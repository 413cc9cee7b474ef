//! The calls of a step in groups that a person can attack: one projection shape, attention, the head.
//!
//! A call's group follows from what it reads and writes, not from the names of weights: a plan of any family, fused or
//! not, is divided by the same rule, and a call that no rule takes is an error, never a silent "other".

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use tare_core::Fault;
use tare_ops::{BufId, ForwardPlan, Op, RowSpace};

/// A group of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Rows of the embedding.
    Embedding,
    /// Norms of the residual stream and of heads.
    Norm,
    /// Queries, keys and values.
    Qkv,
    /// Rotary embedding, and the angles of the step.
    Rope,
    /// Keys and values into the cache.
    KvAppend,
    /// Norms, rotations and the append, where they run together.
    #[serde(rename = "norm+rope+kv-append")]
    NormedHeads,
    /// Rotations and the append of a model without norms of heads.
    #[serde(rename = "rope+kv-append")]
    Heads,
    /// Queries, keys and values with norms, rotations and the append, where they run together.
    #[serde(rename = "norm+qkv+rope+kv-append")]
    NormedProjections,
    /// The same of a model without norms of heads.
    #[serde(rename = "qkv+rope+kv-append")]
    Projections,
    /// Attention over the cache.
    Attention,
    /// The projection of what attention gave.
    O,
    /// The two projections in front of the gated unit.
    #[serde(rename = "gate+up")]
    GateUp,
    /// The gated unit.
    Activation,
    /// The two projections and the unit, where they run together.
    #[serde(rename = "gate+up+activation")]
    GatedUnit,
    /// The projection behind it.
    Down,
    /// The vocabulary.
    Head,
    /// The rows that something is wanted of, and their tokens.
    Sampling,
}

impl Group {
    /// Every group, in the order in which a step meets them.
    pub const ALL: [Group; 17] = [
        Group::Embedding,
        Group::Norm,
        Group::Qkv,
        Group::Rope,
        Group::KvAppend,
        Group::NormedHeads,
        Group::Heads,
        Group::NormedProjections,
        Group::Projections,
        Group::Attention,
        Group::O,
        Group::GateUp,
        Group::Activation,
        Group::GatedUnit,
        Group::Down,
        Group::Head,
        Group::Sampling,
    ];

    /// Its name: `gate+up`.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Embedding => "embedding",
            Group::Norm => "norm",
            Group::Qkv => "qkv",
            Group::Rope => "rope",
            Group::KvAppend => "kv-append",
            Group::NormedHeads => "norm+rope+kv-append",
            Group::Heads => "rope+kv-append",
            Group::NormedProjections => "norm+qkv+rope+kv-append",
            Group::Projections => "qkv+rope+kv-append",
            Group::Attention => "attention",
            Group::O => "o",
            Group::GateUp => "gate+up",
            Group::Activation => "activation",
            Group::GatedUnit => "gate+up+activation",
            Group::Down => "down",
            Group::Head => "head",
            Group::Sampling => "sampling",
        }
    }

    /// Whether it multiplies rows with a matrix.
    pub const fn is_projection(self) -> bool {
        use Group::{Down, GateUp, GatedUnit, Head, NormedProjections, O, Projections, Qkv};
        matches!(self, Qkv | NormedProjections | Projections | O | GateUp | GatedUnit | Down | Head)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Group {
    type Err = Fault;
    fn from_str(text: &str) -> Result<Self, Fault> {
        Self::ALL.into_iter().find(|g| g.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Group::name).join(", ");
            Fault::new("group", format!("one of {names}"), format!("`{text}`"))
        })
    }
}

/// The groups of `plan` that have calls, in the order of [`Group::ALL`], each with the indices of its calls in order.
///
/// # Errors
/// When a call belongs to no group.
pub fn groups(plan: &ForwardPlan) -> Result<Vec<(Group, Vec<usize>)>, Fault> {
    groups_as_run(plan, &[])
}

/// The groups of `plan` as they run: calls of several groups that run together are one group. `carried` has the calls that do.
///
/// # Errors
/// As [`groups`], or when calls run together that no group names together.
pub fn groups_as_run(plan: &ForwardPlan, carried: &[Range<usize>]) -> Result<Vec<(Group, Vec<usize>)>, Fault> {
    let uses = Uses::of(plan);
    let mut of: Vec<Group> = (0..plan.calls.len()).map(|i| uses.group(plan, i)).collect::<Result<_, _>>()?;
    for together in carried.iter().filter(|calls| calls.len() > 1) {
        let theirs: BTreeSet<Group> = of[together.clone()].iter().copied().collect();
        if theirs.len() > 1 {
            let names: Vec<&str> = theirs.iter().map(|g| g.name()).collect();
            let group =
                names.join("+").parse().map_err(|f: Fault| f.within(format!("calls {together:?} of a stage")))?;
            of[together.clone()].fill(group);
        }
    }
    let calls = |g: Group| of.iter().enumerate().filter(move |(_, of)| **of == g).map(|(i, _)| i).collect();
    Ok(Group::ALL.into_iter().map(|g| (g, calls(g))).filter(|(_, calls): &(_, Vec<usize>)| !calls.is_empty()).collect())
}

/// The calls of `group` in `plan`, those of a joined group whether they run together or not; none when the plan has no such
/// call.
///
/// # Errors
/// As [`groups`].
pub fn calls_of(plan: &ForwardPlan, group: Group) -> Result<Vec<usize>, Fault> {
    let uses = Uses::of(plan);
    let mut calls = Vec::new();
    for (i, call) in plan.calls.iter().enumerate() {
        let of = uses.group(plan, i)?;
        let theirs = match group {
            Group::GatedUnit => matches!(of, Group::GateUp | Group::Activation),
            Group::NormedHeads => matches!(call.op, Op::HeadNorm { .. } | Op::Rope { .. } | Op::KvAppend { .. }),
            Group::Heads => matches!(of, Group::Rope | Group::KvAppend),
            Group::NormedProjections => {
                of == Group::Qkv || matches!(call.op, Op::HeadNorm { .. } | Op::Rope { .. } | Op::KvAppend { .. })
            }
            Group::Projections => matches!(of, Group::Qkv | Group::Rope | Group::KvAppend),
            alone => of == alone,
        };
        if theirs {
            calls.push(i);
        }
    }
    Ok(calls)
}

/// What buffers are used for: which projection a linear is follows from it.
#[derive(Default)]
struct Uses {
    /// Queries, keys and values.
    attention_in: Vec<BufId>,
    attention_out: Vec<BufId>,
    unit_in: Vec<BufId>,
    unit_out: Vec<BufId>,
}

impl Uses {
    fn of(plan: &ForwardPlan) -> Self {
        let mut uses = Self::default();
        for call in &plan.calls {
            match &call.op {
                Op::KvAppend { k, v, .. } => uses.attention_in.extend([*k, *v]),
                Op::Attention { q, out, .. } => {
                    uses.attention_in.push(*q);
                    uses.attention_out.push(*out);
                }
                Op::SwiGlu { gate, up, out } => {
                    uses.unit_in.extend([*gate, *up]);
                    uses.unit_out.push(*out);
                }
                _ => {}
            }
        }
        uses
    }

    fn group(&self, plan: &ForwardPlan, call: usize) -> Result<Group, Fault> {
        let op = &plan.calls[call].op;
        Ok(match op {
            Op::Embedding { .. } => Group::Embedding,
            Op::RmsNorm { .. } | Op::HeadNorm { .. } => Group::Norm,
            Op::Rope { .. } => Group::Rope,
            Op::KvAppend { .. } => Group::KvAppend,
            Op::Attention { .. } => Group::Attention,
            Op::SwiGlu { .. } => Group::Activation,
            Op::SelectRows { .. } | Op::Sample { .. } => Group::Sampling,
            Op::Linear { out, .. } if plan.buffer(*out).rows == RowSpace::Selected => Group::Head,
            Op::Linear { out, .. } if self.attention_in.contains(out) => Group::Qkv,
            Op::Linear { x, .. } if self.attention_out.contains(x) => Group::O,
            Op::Linear { out, .. } if self.unit_in.contains(out) => Group::GateUp,
            Op::Linear { x, .. } if self.unit_out.contains(x) => Group::Down,
            Op::Linear { x, out, .. } => {
                let (x, out) = (&plan.buffer(*x).name, &plan.buffer(*out).name);
                let found = format!("{} from {x} to {out}", op.name());
                return Err(Fault::new(format!("call {call}"), "a projection of attention, MLP or head", found));
            }
        })
    }
}
