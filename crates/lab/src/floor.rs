//! What a phase must move and compute at the least, from the plan that really runs.

use tare_core::Reading;
use tare_evidence::floor::{Demand, Demands};
use tare_model::planner::op_shape;
use tare_ops::{Bucket, ForwardPlan, OpName, OpShape, variant::cost};

use crate::work::ClockedRequest;

/// Name of the ceiling that bounds bytes: reads from memory.
pub const BYTE_CEILING: &str = "memory-read";
/// Name of the ceiling that bounds operations: F32 multiply-adds.
pub const FLOP_CEILING: &str = "fma-f32";

/// Bytes and operations of both phases of `request` under `plan`.
///
/// Prefill reads every weight once, however it is chunked: a chunked prefill that reads them again is farther from its
/// floor. Decode reads them once a token. KV is read at the depth of each step.
pub fn demands(plan: &ForwardPlan, request: &ClockedRequest) -> Demands {
    let depth = request.prefix.len();
    let prompt = request.prompt.len();
    let head_rows = if request.all_prompt_logits { prompt } else { 1 };
    let prefill = step(plan, Rows { all: prompt, selected: head_rows, first_slot: depth });
    let decode = (0..request.output_tokens - 1)
        .map(|i| step(plan, Rows { all: 1, selected: 1, first_slot: depth + prompt + i }))
        .reduce(|a, b| Demand {
            weight_bytes: a.weight_bytes + b.weight_bytes,
            kv_read_bytes: a.kv_read_bytes + b.kv_read_bytes,
            kv_write_bytes: a.kv_write_bytes + b.kv_write_bytes,
            flops: a.flops + b.flops,
            ..a
        });
    Demands {
        prefill: Reading::Available(prefill),
        decode: decode.map_or_else(|| Reading::unavailable("no token after the first"), Reading::Available),
    }
}

/// The rows of one step of one sequence.
#[derive(Clone, Copy)]
struct Rows {
    all: usize,
    selected: usize,
    first_slot: usize,
}

fn step(plan: &ForwardPlan, rows: Rows) -> Demand {
    let mut d = Demand {
        weight_bytes: 0,
        kv_read_bytes: 0,
        kv_write_bytes: 0,
        flops: 0,
        byte_ceiling: BYTE_CEILING.into(),
        flop_ceiling: FLOP_CEILING.into(),
    };
    let plan = ForwardPlan { bucket: Bucket { rows: rows.all, selected: rows.selected }, ..plan.clone() };
    // Attention's operations follow the rows one by one, its bytes the longest context.
    let contexts = (1..=rows.all).map(|i| rows.first_slot + i);
    for call in &plan.calls {
        let shape = op_shape(&plan, &call.op, rows.first_slot + rows.all);
        let c = cost(call.op.name(), &shape);
        match call.op.name() {
            OpName::Attention => {
                d.kv_read_bytes += c.bytes;
                d.flops += contexts
                    .clone()
                    .map(|s| cost(OpName::Attention, &OpShape { rows: 1, context: s, ..shape }).flops)
                    .sum::<u64>();
            }
            OpName::KvAppend => d.kv_write_bytes += c.bytes,
            _ => {
                d.weight_bytes += c.bytes;
                d.flops += c.flops;
            }
        }
    }
    d
}
