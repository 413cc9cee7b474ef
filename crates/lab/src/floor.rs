//! What a phase must move and compute at the least, from the plan that really runs.

use serde::{Deserialize, Serialize};
use tare_core::Reading;
use tare_cuda::ceilings as device;
use tare_evidence::floor::{Demand, Demands, Resource};
use tare_formats::ModelConfig;
use tare_model::planner::op_shape;
use tare_ops::{Bucket, Class, Cost, ForwardPlan, OpCall, OpName, OpShape, Order, variant::cost};
use tare_probe::Ceilings;

use crate::work::ClockedRequest;

/// Name of the ceiling that bounds bytes: reads from memory.
pub const BYTE_CEILING: &str = "memory-read";
/// Name of the ceiling that bounds operations: F32 multiply-adds.
pub const FLOP_CEILING: &str = "fma-f32";
/// Name of the ceiling that bounds the operations of a plan with activations in integers: products of bytes, in tiles where there
/// are any, else in vectors. One of integers of 15 bits counts once, however a processor makes it.
pub const INT8_CEILING: &str = "dot-int8";
/// Name of the ceiling that bounds operations of products in any order: on tensor cores, tiles or integers. On a processor
/// it is that of tiles out of L2, which nothing else comes near; without tiles floors stand on bytes.
pub const PRODUCT_CEILING: &str = "products-bf16";

/// What a ceiling arm of a study does in its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CeilingKind {
    /// Reads from memory, past the caches.
    Read,
    /// F32 multiply-adds in registers.
    Fma,
    /// Products of BF16 tiles out of L2; on a device, of its tensor cores.
    Tiles,
}

impl CeilingKind {
    /// All of them, in the order of the ceilings of a record.
    pub const ALL: [Self; 3] = [Self::Read, Self::Fma, Self::Tiles];

    /// Name of the ceiling that it measures.
    pub const fn ceiling(self) -> &'static str {
        match self {
            Self::Read => BYTE_CEILING,
            Self::Fma => FLOP_CEILING,
            Self::Tiles => PRODUCT_CEILING,
        }
    }

    /// What it counts.
    pub const fn resource(self) -> Resource {
        match self {
            Self::Read => Resource::Bytes,
            Self::Fma | Self::Tiles => Resource::Flops,
        }
    }
}

/// The ceiling of the operations of a class: products with sums in any order are no F32 multiply-adds.
pub fn flop_ceiling(class: Class) -> &'static str {
    if class.rounding.is_integer() {
        return INT8_CEILING;
    }
    match class.order {
        Order::Free => PRODUCT_CEILING,
        Order::Reference => FLOP_CEILING,
    }
}

/// Bytes and operations of both phases of `requests` under `plan`, which run together and have the lengths of the first;
/// `flop_ceiling` is what bounds the operations.
///
/// Prefill reads every weight once, however it is chunked and in whatever order the prompts come: one that reads them again
/// is farther from its floor. Decode reads them once a step, whatever rows it has. KV is read at the depth of each step, of
/// every sequence.
pub fn demands(plan: &ForwardPlan, requests: &[ClockedRequest], flop_ceiling: &str) -> Demands {
    let Some(request) = requests.first() else {
        let none = || Reading::unavailable("no sequence");
        return Demands { prefill: none(), decode: none() };
    };
    let depth = request.prefix.len();
    let prompt = request.prompt.len();
    let head_rows = if request.all_prompt_logits { prompt } else { 1 };
    let step = |plan: &ForwardPlan, rows| {
        let step = step(plan, rows, requests.len());
        Demand { flop_ceiling: flop_ceiling.into(), ..step }
    };
    let prefill = step(plan, StepRows { all: prompt, selected: head_rows, first_slot: depth });
    let decode = (0..request.output_tokens - 1)
        .map(|i| step(plan, StepRows { all: 1, selected: 1, first_slot: depth + prompt + i }))
        .reduce(sum);
    Demands {
        prefill: Reading::Available(prefill),
        decode: decode.map_or_else(|| Reading::unavailable("no token after the first"), Reading::Available),
    }
}

/// Bytes and operations of `requests` on another engine, which reads `weight_bytes` of matrices in a step and keeps elements of
/// `kv_bytes`: what follows from the model's shape. Its kernels are not known; `flop_ceiling` is what bounds any of them.
pub fn demands_of_shape(
    config: &ModelConfig,
    requests: &[ClockedRequest],
    (weight_bytes, kv_bytes): (u64, usize),
    flop_ceiling: &str,
) -> Demands {
    let Some(request) = requests.first() else {
        let none = || Reading::unavailable("no sequence");
        return Demands { prefill: none(), decode: none() };
    };
    let (n, layers) = (requests.len() as u64, config.layers as u64);
    let (depth, prompt) = (request.prefix.len(), request.prompt.len());
    let (hidden, heads, kv) = (config.hidden, config.heads * config.head_size, config.kv_heads * config.head_size);
    let of_layer = hidden * heads + 2 * hidden * kv + heads * hidden + 3 * hidden * config.ffn;
    let products =
        |rows: u64, of_head: u64| 2 * (rows * layers * of_layer as u64 + of_head * (config.vocab * hidden) as u64);
    let shape = |rows, context| OpShape {
        rows,
        n: 0,
        k: 0,
        format: None,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_size: config.head_size,
        kv_element_bytes: kv_bytes,
        context,
        rounding: None,
        order: Order::Free,
    };
    let part = |rows: usize, of_head: usize, first_slot: usize| {
        let attended = |i| cost(OpName::Attention, &shape(1, first_slot + i)).flops;
        Demand {
            weight_bytes,
            kv_read_bytes: n * layers * cost(OpName::Attention, &shape(rows, first_slot + rows)).bytes,
            kv_write_bytes: n * layers * cost(OpName::KvAppend, &shape(rows, 0)).bytes,
            flops: n * (products(rows as u64, of_head as u64) + layers * (1..=rows).map(attended).sum::<u64>()),
            byte_ceiling: BYTE_CEILING.into(),
            flop_ceiling: flop_ceiling.into(),
        }
    };
    let head_rows = if request.all_prompt_logits { prompt } else { 1 };
    let decode = (0..request.output_tokens - 1).map(|i| part(1, 1, depth + prompt + i)).reduce(sum);
    Demands {
        prefill: Reading::Available(part(prompt, head_rows, depth)),
        decode: decode.map_or_else(|| Reading::unavailable("no token after the first"), Reading::Available),
    }
}

/// Two steps of one phase.
fn sum(a: Demand, b: Demand) -> Demand {
    Demand {
        weight_bytes: a.weight_bytes + b.weight_bytes,
        kv_read_bytes: a.kv_read_bytes + b.kv_read_bytes,
        kv_write_bytes: a.kv_write_bytes + b.kv_write_bytes,
        flops: a.flops + b.flops,
        ..a
    }
}

/// What this host does in a second at the most.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    bytes_per_s: Reading<u64>,
    flops_per_s: Reading<u64>,
    int_ops_per_s: Reading<u64>,
}

impl Pace {
    /// The ceilings of `threads` where they were measured, else those of all, which no part of them can exceed; for a class
    /// with sums in `order`.
    pub fn of(ceilings: &Ceilings, threads: usize, order: Order) -> Self {
        let r = &ceilings.readings;
        let (bytes, flops, tiles, int_ops) = if threads == 1 {
            (&r.read_1t_bytes_per_s, &r.fma_f32_1t_flop_per_s, &r.tiles_1t_flop_per_s, &r.dot_int8_1t_op_per_s)
        } else {
            (&r.read_all_bytes_per_s, &r.fma_f32_all_flop_per_s, &r.tiles_all_flop_per_s, &r.dot_int8_all_op_per_s)
        };
        let flops_per_s = match order {
            Order::Reference => flops,
            Order::Free => tiles,
        };
        Self { bytes_per_s: bytes.clone(), flops_per_s: flops_per_s.clone(), int_ops_per_s: int_ops.clone() }
    }

    /// The ceilings of a device, for a class with sums in `order`: products of a free class run on tensor cores.
    pub fn of_device(ceilings: &Reading<device::Ceilings>, order: Order) -> Self {
        let rate = |samples: fn(&device::Ceilings) -> Reading<&[device::Sample]>| match ceilings {
            Reading::Available(c) => match samples(c) {
                Reading::Available(all) => {
                    Reading::from(device::Ceilings::rate(all).map(|r| r as u64).ok_or("no sample was taken"))
                }
                Reading::Unavailable { why } => Reading::unavailable(why),
            },
            Reading::Unavailable { why } => Reading::unavailable(why.as_str()),
        };
        let flops_per_s = match order {
            Order::Reference => rate(|c| Reading::Available(&c.flops)),
            Order::Free => rate(device::Ceilings::products),
        };
        let int_ops_per_s = Reading::unavailable("no class on a device has activations in integers");
        Self { bytes_per_s: rate(|c| Reading::Available(&c.read)), flops_per_s, int_ops_per_s }
    }

    /// The least time for `cost` in nanoseconds, and which of its parts makes it. It stands on the parts whose ceilings are
    /// known: each alone is a true lower bound.
    pub fn floor(&self, cost: Cost) -> Reading<(f64, Resource)> {
        if cost == Cost::default() {
            return Reading::unavailable("no bytes and no operations are counted for it");
        }
        let ns = |amount: u64, rate: &Reading<u64>| rate.available().map(|rate| amount as f64 * 1e9 / *rate as f64);
        let byte_ns = ns(cost.bytes, &self.bytes_per_s).map(|ns| (ns, Resource::Bytes));
        let int_ns = ns(cost.int_ops, &self.int_ops_per_s).filter(|_| cost.int_ops > 0);
        let flop_ns = [ns(cost.flops, &self.flops_per_s), int_ns];
        let flop_ns = flop_ns.into_iter().flatten().reduce(f64::max).map(|ns| (ns, Resource::Flops));
        match (byte_ns, flop_ns, &self.bytes_per_s) {
            (Some(bytes), Some(flops), _) if flops.0 > bytes.0 => Reading::Available(flops),
            (Some(bytes), _, _) => Reading::Available(bytes),
            (None, Some(flops), _) => Reading::Available(flops),
            (None, None, Reading::Unavailable { why }) => Reading::unavailable(why.clone()),
            (None, None, Reading::Available(_)) => Reading::unavailable("no ceiling is known"),
        }
    }
}

/// The rows of one step of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRows {
    /// All of them (T).
    pub all: usize,
    /// Those that something is wanted of.
    pub selected: usize,
    /// The slot of the first one: tokens that are cached before it.
    pub first_slot: usize,
}

/// What each call of `plan` must move and compute on `rows`, in the order of the calls.
pub fn call_costs(plan: &ForwardPlan, rows: StepRows) -> Vec<Cost> {
    let plan = ForwardPlan { bucket: Bucket { rows: rows.all, selected: rows.selected }, ..plan.clone() };
    // Attention's operations follow the rows one by one, its bytes the longest context.
    let contexts = (1..=rows.all).map(|i| rows.first_slot + i);
    let of = |call: &OpCall| {
        let shape = op_shape(&plan, &call.op, rows.first_slot + rows.all);
        let whole = cost(call.op.name(), &shape);
        if call.op.name() != OpName::Attention {
            return whole;
        }
        let one = |context| cost(OpName::Attention, &OpShape { rows: 1, context, ..shape }).flops;
        Cost { flops: contexts.clone().map(one).sum(), ..whole }
    };
    plan.calls.iter().map(of).collect()
}

/// A step of as many `sequences`, each with these rows: weights once, the cache of each.
fn step(plan: &ForwardPlan, rows: StepRows, sequences: usize) -> Demand {
    let together = StepRows { all: rows.all * sequences, selected: rows.selected * sequences, ..rows };
    let mut d = Demand {
        weight_bytes: 0,
        kv_read_bytes: 0,
        kv_write_bytes: 0,
        flops: 0,
        byte_ceiling: BYTE_CEILING.into(),
        flop_ceiling: FLOP_CEILING.into(),
    };
    let costs = call_costs(plan, rows).into_iter().zip(call_costs(plan, together));
    for (call, (each, all)) in plan.calls.iter().zip(costs) {
        let n = sequences as u64;
        match call.op.name() {
            OpName::Attention => d.kv_read_bytes += n * each.bytes,
            OpName::KvAppend => d.kv_write_bytes += all.bytes,
            _ => d.weight_bytes += all.bytes,
        }
        d.flops += match call.op.name() {
            OpName::Attention => n * each.flops,
            _ => all.flops + all.int_ops,
        };
    }
    d
}
