//! A plan made ready: one allocation, and the launches of a step in order.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use tare_core::{Fault, Format};
use tare_ops::{BatchCheck, BufId, ForwardPlan, Op, OpCall, OpError, RopeTable, RowSpace, Variant};

use crate::args::SampleResult;
use crate::build::Build;
use crate::carried::Carried;
use crate::device::{Address, Device, GraphId, Launch};
use crate::registry::Method;
use crate::split::SplitRoom;
use crate::step::StepLayout;
use crate::tiles::{narrow_bytes, widened_rows};
use crate::units::PARTS;
use crate::weights::Held;

/// Rows that one launch can have in its second dimension.
const MOST_ROWS: usize = 65_535;
/// Most parts of a row of logits in which the largest is looked for.
pub(crate) const MOST_PARTS: usize = 64;
/// Alignment of everything inside the allocation.
const ALIGN: usize = 256;

/// An executable.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// What a batch must keep.
    pub(crate) check: BatchCheck,
    /// For the angles.
    pub(crate) rope: RopeTable,
    /// Parts of the step's block.
    pub(crate) layout: StepLayout,
    /// Where the block lies.
    pub(crate) step: Address,
    /// In order.
    pub(crate) launches: Vec<Launch>,
    /// Which of them carry which calls of the plan, in order.
    pub(crate) carried: Vec<Carried>,
    /// Delays behind launches, by the places of these.
    pub(crate) delays: BTreeMap<usize, Vec<Launch>>,
    /// What launches are to take longer, until they have been timed.
    pub(crate) stretch: Option<Stretch>,
    /// Whether it has run.
    pub(crate) ran: bool,
    /// The launches recorded, after the second step.
    pub(crate) graph: Option<GraphId>,
    /// Most query heads of an attention call; 0 without attention.
    pub(crate) heads: usize,
    /// Where the answers are; none when the plan samples nothing.
    pub(crate) answers: Option<Answers>,
    /// The one allocation; none of a twin, which works in that of another.
    pub(crate) memory: Option<Address>,
}

/// How much longer launches take, as a share of their own time.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    /// Their places.
    pub(crate) places: Vec<usize>,
    /// Percent of the time of each.
    pub(crate) percent: f64,
}

impl Program {
    /// The launches at `places`, each with the delays behind it.
    pub(crate) fn chain(&self, places: impl IntoIterator<Item = usize>) -> Vec<Launch> {
        let behind = |at: usize| self.delays.get(&at).into_iter().flatten();
        places.into_iter().flat_map(|at| self.launches.get(at).into_iter().chain(behind(at))).cloned().collect()
    }

    /// The places of the launches that carry any of `calls`, those that carry calls together in one list.
    pub(crate) fn places(&self, calls: &[usize]) -> Vec<Vec<usize>> {
        let carries = |c: &&Carried| c.calls.clone().any(|call| calls.contains(&call));
        self.carried.iter().filter(carries).map(|c| c.launches.clone().collect()).collect()
    }
}

/// Where a step's logits and what the device makes of them lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// [selected] [`SampleResult`]
    pub(crate) results: Address,
    /// [selected, V]
    pub(crate) logits: Address,
    /// Elements from one row of logits to the next.
    pub(crate) stride: usize,
    /// V.
    pub(crate) vocab: usize,
}

/// Elements from one row of a buffer to the next: 128 bytes.
pub(crate) const fn stride(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// What a plan is compiled against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linker<'a> {
    /// The kernels.
    pub(crate) variants: &'a [Variant],
    /// The weights of the backend, by [`tare_ops::WeightId`].
    pub(crate) weights: &'a [Held],
    /// Whether launches may carry several calls.
    pub(crate) fused: bool,
}

impl Linker<'_> {
    /// Compiles `plan`.
    ///
    /// # Errors
    /// When the plan does not validate, names an unknown kernel or weight, or memory runs out.
    pub(crate) fn compile<D: Device>(&self, plan: &ForwardPlan, device: &mut D) -> Result<Program, OpError> {
        plan.validate()?;
        self.check_weights(plan)?;
        for call in &plan.calls {
            self.check_kernel(plan, call)?;
        }
        if plan.bucket.rows.max(plan.bucket.selected) > MOST_ROWS {
            let at = format!("plan {}: bucket", plan.name);
            return Err(Fault::new(at, format!("at most {MOST_ROWS} rows"), plan.bucket.rows.to_string()).into());
        }
        let places = Places::of(plan)?;
        let base = device.alloc("a step", places.bytes)?;
        let built = device.fill(base, places.bytes, 0).and_then(|()| {
            let mut build = Build {
                linker: *self,
                plan,
                device: &mut *device,
                places: &places,
                base,
                launches: vec![],
                carried: vec![],
                narrowed: BTreeSet::new(),
            };
            build.all(self.fused).map(|()| (build.launches, build.carried))
        });
        let (launches, carried) = built.inspect_err(|_| device.free(base))?;
        Ok(Program {
            check: BatchCheck::new(plan),
            rope: plan.rope.clone(),
            layout: places.layout,
            step: base,
            launches,
            carried,
            delays: BTreeMap::new(),
            stretch: None,
            ran: false,
            graph: None,
            heads: places.heads,
            answers: places.answers(plan, base),
            memory: Some(base),
        })
    }

    /// The weights of a plan must be those that were packed.
    fn check_weights(&self, plan: &ForwardPlan) -> Result<(), Fault> {
        for info in &plan.weights {
            let at = || format!("plan {}: weight {}", plan.name, info.name);
            let Some(w) = self.weights.get(info.id.0 as usize) else {
                return Err(Fault::new(at(), "a handle of this backend", info.id.0.to_string()));
            };
            if (w.format, w.rows, w.cols) != (info.format, info.rows, info.cols) {
                let expected = format!("{} [{}, {}]", w.format, w.rows, w.cols);
                return Err(Fault::new(at(), expected, format!("{} [{}, {}]", info.format, info.rows, info.cols)));
            }
        }
        Ok(())
    }

    fn check_kernel(&self, plan: &ForwardPlan, call: &OpCall) -> Result<(), Fault> {
        let format = call.op.matrix().and_then(|w| plan.weight(w)).map(|w| w.format);
        let named = self.variants.iter().find(|v| v.key == call.kernel);
        let rounds = |v: &Variant| match &call.op {
            Op::Linear { rounding, .. } => v.rounds(Some(*rounding)),
            _ => true,
        };
        if named.is_some_and(|v| v.op == call.op.name() && (v.format.is_none() || v.format == format) && rounds(v)) {
            return Ok(());
        }
        let reads = format.map_or_else(String::new, |f| format!(" for {f}"));
        let expected = format!("a kernel of this backend that computes {}{reads}", call.op.name());
        Err(Fault::new(format!("plan {}", plan.name), expected, call.kernel.clone()))
    }
}

/// What lies where in the allocation, counted from its beginning. The step's block is first.
pub(crate) struct Places {
    pub(crate) layout: StepLayout,
    pub(crate) buffers: Vec<usize>,
    /// Which kv head each query head reads, for each way in which the plan says it.
    pub(crate) heads_tables: Vec<(Vec<u16>, usize)>,
    heads: usize,
    /// Of split attention.
    pub(crate) split: SplitRoom,
    pub(crate) parts: usize,
    pub(crate) results: usize,
    /// Where rows that products in tiles read lie as BF16, by their buffers.
    pub(crate) narrow: BTreeMap<u16, usize>,
    /// Room for packed weights as BF16.
    pub(crate) widened: usize,
    logits: Option<BufId>,
    bytes: usize,
}

impl Places {
    fn of(plan: &ForwardPlan) -> Result<Self, OpError> {
        let layout = StepLayout::new(plan.bucket, plan.rope.inv_freq.len());
        let mut end = layout.bytes;
        let mut take = |bytes: usize| {
            let at = end.next_multiple_of(ALIGN);
            end = at.checked_add(bytes).filter(|n| *n <= isize::MAX as usize)?;
            Some(at)
        };
        let too_much = || OpError::OutOfMemory { what: "a step".into(), bytes: usize::MAX, device: "cuda".into() };
        let mut buffers = Vec::with_capacity(plan.buffers.len());
        for b in &plan.buffers {
            let bytes = rows(plan, b.rows).checked_mul(stride(b.width)).and_then(|n| n.checked_mul(size_of::<f32>()));
            buffers.push(bytes.and_then(&mut take).ok_or_else(too_much)?);
        }
        let mut heads_tables: Vec<(Vec<u16>, usize)> = Vec::new();
        let mut logits = None;
        for call in &plan.calls {
            match &call.op {
                Op::Attention { kv_of_head, .. } if heads_tables.iter().all(|(t, _)| t != kv_of_head) => {
                    let at = take(kv_of_head.len() * size_of::<u16>()).ok_or_else(too_much)?;
                    heads_tables.push((kv_of_head.clone(), at));
                }
                Op::Sample { .. } if logits.is_some() => {
                    let at = format!("plan {}: sample", plan.name);
                    return Err(Fault::new(at, "one call", "more").into());
                }
                Op::Sample { logits: buffer } => logits = Some(*buffer),
                _ => {}
            }
        }
        let result = size_of::<SampleResult>();
        let parts = take(plan.bucket.selected * MOST_PARTS * result).ok_or_else(too_much)?;
        let results = take(plan.bucket.selected * result).ok_or_else(too_much)?;
        let split = SplitRoom::new(plan, |bytes| take(bytes).ok_or_else(too_much))?;
        let mut narrow = BTreeMap::new();
        for call in plan.calls.iter().filter(|call| Method::of(&call.kernel).is_tiles()) {
            let Op::Linear { x, .. } = &call.op else { continue };
            let bytes = narrow_bytes(rows(plan, plan.buffer(*x).rows), plan.buffer(*x).width);
            if let Entry::Vacant(free) = narrow.entry(x.0) {
                free.insert(take(bytes).ok_or_else(too_much)?);
            }
        }
        let widened = take(most_widened(plan)).ok_or_else(too_much)?;
        // Other attention keeps no scores in memory.
        let scoring = |call: &OpCall| match &call.op {
            Op::Attention { kv_of_head, .. } if Method::of(&call.kernel) == Method::Lanes => kv_of_head.len(),
            _ => 0,
        };
        let heads = plan.calls.iter().map(scoring).max().unwrap_or(0);
        Ok(Self { layout, buffers, heads_tables, heads, split, parts, results, narrow, widened, logits, bytes: end })
    }

    fn answers(&self, plan: &ForwardPlan, base: Address) -> Option<Answers> {
        let id = self.logits?;
        let vocab = plan.buffer(id).width;
        Some(Answers {
            results: base.plus(self.results),
            logits: base.plus(self.buffers[id.0 as usize]),
            stride: stride(vocab),
            vocab,
        })
    }
}

/// Bytes that the packed weights of one launch in tiles take as BF16, at most: as many as one launch has parts, none wider
/// than what is widened at once.
fn most_widened(plan: &ForwardPlan) -> usize {
    let bytes = |call: &OpCall| {
        let Op::Linear { weight, .. } = &call.op else { return 0 };
        let packed = plan.weight(*weight).filter(|w| Method::of(&call.kernel).is_tiles() && w.format != Format::BF16);
        packed.map_or(0, |w| narrow_bytes(widened_rows(w.rows, w.cols), w.cols).next_multiple_of(ALIGN))
    };
    let all: Vec<usize> = plan.calls.iter().map(bytes).collect();
    all.windows(PARTS.min(all.len().max(1))).map(|w| w.iter().sum()).max().unwrap_or(0)
}

/// The most rows of a space.
pub(crate) fn rows(plan: &ForwardPlan, space: RowSpace) -> usize {
    match space {
        RowSpace::All => plan.bucket.rows,
        RowSpace::Selected => plan.bucket.selected,
    }
}
