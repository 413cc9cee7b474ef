//! Which calls travel together, and what keeps them apart.

use super::{Group, groups};
use tare_core::{DType, Format};
use tare_ops::plan::KvShape;
use tare_ops::{
    Bucket, BufId, Buffer, ForwardPlan, Op, OpCall, RopeStyle, RopeTable, Rounding, RowSpace, WeightId, WeightInfo,
};

const D: usize = 128;
const HIDDEN: BufId = BufId(0);
const NORMED: BufId = BufId(1);
const Q: BufId = BufId(2);
const K: BufId = BufId(3);
const V: BufId = BufId(4);
const ATTENDED: BufId = BufId(5);
const GATE: BufId = BufId(6);
const UP: BufId = BufId(7);
const PICKED: BufId = BufId(8);
const FINAL: BufId = BufId(9);
const LOGITS: BufId = BufId(10);
const VECTOR: WeightId = WeightId(0);
const MATRIX: WeightId = WeightId(1);
const OTHER: WeightId = WeightId(2);

fn norm(x: BufId, out: BufId) -> Op {
    Op::RmsNorm { x, weight: VECTOR, eps: 1e-6, out }
}

fn linear(x: BufId, out: BufId, accumulate: bool) -> Op {
    Op::Linear { x, weight: MATRIX, bias: None, accumulate, rounding: Rounding::F32, out }
}

/// One layer and the head, all widths alike.
fn layer() -> Vec<Op> {
    let head_norm = |x| Op::HeadNorm { x, weight: VECTOR, heads: 1, eps: 1e-6 };
    let rope = |x| Op::Rope { x, heads: 1 };
    vec![
        norm(HIDDEN, NORMED),
        linear(NORMED, Q, false),
        linear(NORMED, K, false),
        linear(NORMED, V, false),
        head_norm(Q),
        head_norm(K),
        rope(Q),
        rope(K),
        Op::KvAppend { layer: 0, k: K, v: V },
        Op::Attention { layer: 0, q: Q, kv_of_head: vec![0], scale: 1.0, out: ATTENDED },
        linear(ATTENDED, HIDDEN, true),
        norm(HIDDEN, NORMED),
        linear(NORMED, GATE, false),
        linear(NORMED, UP, false),
        Op::SwiGlu { gate: GATE, up: UP, out: GATE },
        linear(GATE, HIDDEN, true),
        Op::SelectRows { x: HIDDEN, out: PICKED },
        norm(PICKED, FINAL),
        linear(FINAL, LOGITS, false),
        Op::Sample { logits: LOGITS },
    ]
}

fn plan(ops: Vec<Op>, rows: usize) -> ForwardPlan {
    let space = |i| if i < PICKED.0 { RowSpace::All } else { RowSpace::Selected };
    let weight = |id, format, rows| WeightInfo { id, name: "w".into(), format, rows, cols: D, bytes: 0 };
    ForwardPlan {
        name: "test".into(),
        class: "f32".into(),
        bucket: Bucket { rows, selected: 1 },
        buffers: (0..11).map(|i| Buffer { name: "b".into(), width: D, rows: space(i) }).collect(),
        weights: vec![weight(VECTOR, Format::F32, 1), weight(MATRIX, Format::BF16, D), weight(OTHER, Format::Q8_0, D)],
        rope: RopeTable { inv_freq: vec![1.0; D / 2], factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: D, dtype: DType::F32 },
        calls: ops.into_iter().map(|op| OpCall { op, kernel: "k".into(), layer: None }).collect(),
    }
}

fn linears(norm: Option<usize>, first: usize, count: usize, gated: Option<usize>) -> Group {
    Group::Linears { norm, first, count, gated }
}

#[test]
fn a_layer_of_one_row_is_six_launches() {
    let found = groups(&plan(layer(), 1), true);
    let want = [
        linears(Some(0), 1, 3, None),
        Group::Heads { first: 4, normed: true, attended: false },
        Group::One(9),
        linears(None, 10, 1, None),
        linears(Some(11), 12, 2, Some(14)),
        linears(None, 15, 1, None),
        Group::One(16),
        linears(Some(17), 18, 1, None),
        Group::One(19),
    ];
    assert_eq!(found, want);
}

#[test]
fn every_call_is_in_one_group_in_order() {
    for (rows, fused) in [(1, true), (4, true), (16, true), (17, true), (1, false)] {
        let plan = plan(layer(), rows);
        let calls: Vec<usize> = groups(&plan, fused).iter().flat_map(Group::calls).collect();
        assert_eq!(calls, (0..plan.calls.len()).collect::<Vec<_>>(), "{rows} rows");
    }
    assert_eq!(groups(&plan(layer(), 1), false).len(), layer().len());
}

#[test]
fn many_rows_keep_their_products_apart() {
    let found = groups(&plan(layer(), 64), true);
    assert!(found.contains(&Group::One(0)) && found.contains(&Group::One(1)), "{found:?}");
    assert!(
        found.contains(&Group::Heads { first: 4, normed: true, attended: false }),
        "heads go together whatever the rows"
    );
    // The head's rows are the selected ones.
    assert!(found.contains(&linears(Some(17), 18, 1, None)));
}

#[test]
fn what_is_read_again_is_written() {
    let mut ops = layer();
    // The norm's rows are wanted once more after the projections.
    ops[9] = linear(NORMED, ATTENDED, false);
    let found = groups(&plan(ops, 1), true);
    assert_eq!(found[..2], [Group::One(0), linears(None, 1, 3, None)]);
    let mut ops = layer();
    // Somebody reads `up` after the gated unit.
    ops[15] = linear(UP, HIDDEN, true);
    let found = groups(&plan(ops, 1), true);
    assert!(found.contains(&linears(Some(11), 12, 2, None)) && found.contains(&Group::One(14)), "{found:?}");
}

#[test]
fn a_product_into_the_rows_that_the_norm_reads_waits_for_it() {
    let mut ops = layer();
    ops[18] = linear(FINAL, PICKED, true);
    let found = groups(&plan(ops, 1), true);
    assert!(found.contains(&Group::One(17)) && found.contains(&linears(None, 18, 1, None)), "{found:?}");
}

#[test]
fn products_that_differ_stay_apart() {
    let mut ops = layer();
    ops[2] = Op::Linear { x: NORMED, weight: OTHER, bias: None, accumulate: false, rounding: Rounding::F32, out: K };
    // The norm cannot go with the first product: the second reads what it makes.
    let found = groups(&plan(ops, 1), true);
    assert_eq!(found[..3], [Group::One(0), linears(None, 1, 1, None), linears(None, 2, 1, None)]);
    let mut ops = layer();
    ops[2] = linear(NORMED, Q, false);
    let found = groups(&plan(ops, 1), true);
    assert_eq!(found[1], linears(None, 1, 1, None), "two products into one buffer");
}

#[test]
fn heads_that_do_not_belong_together_stay_apart() {
    let mut ops = layer();
    ops[8] = Op::KvAppend { layer: 0, k: V, v: K };
    let found = groups(&plan(ops, 1), true);
    assert!(!found.iter().any(|g| matches!(g, Group::Heads { .. })), "the append stores another buffer");
    let mut ops = layer();
    ops.drain(4..6);
    assert!(groups(&plan(ops, 1), true).contains(&Group::Heads { first: 4, normed: false, attended: false }));
}

#[test]
fn heads_that_are_counted_otherwise_stay_apart() {
    let together = |p: &ForwardPlan| groups(p, true).iter().any(|g| matches!(g, Group::Heads { .. }));
    let mut ops = layer();
    // All of q is normalised at once, and turned in two heads.
    ops[6] = Op::Rope { x: Q, heads: 2 };
    assert!(together(&plan(layer(), 1)) && !together(&plan(ops, 1)));
    let mut p = plan(layer(), 1);
    p.rope.inv_freq.pop();
    assert!(!together(&p), "a head is turned in part");
    let mut p = plan(layer(), 1);
    (p.kv.kv_heads, p.kv.head_size) = (2, D / 2);
    assert!(!together(&p), "the cache has other heads");
}

/// The plan of [`layer`] with kernels that have an order of their own, where `op` says so.
fn free(rows: usize, own: impl Fn(&Op) -> Option<&'static str>) -> ForwardPlan {
    let mut plan = plan(layer(), rows);
    for call in &mut plan.calls {
        if let Some(kernel) = own(&call.op) {
            call.kernel = kernel.into();
        }
    }
    plan
}

fn all_free(op: &Op) -> Option<&'static str> {
    match op {
        Op::RmsNorm { .. } => Some("rms_norm.block.cuda"),
        Op::Linear { .. } => Some("linear.bf16.gemv.cuda"),
        Op::Attention { .. } => Some("attention.split.cuda"),
        _ => None,
    }
}

#[test]
fn one_row_in_any_order_is_one_launch_less() {
    let found = groups(&free(1, all_free), true);
    assert_eq!(found[1], Group::Heads { first: 4, normed: true, attended: true });
    assert_eq!(found[2], linears(None, 10, 1, None));
    let found = groups(&free(2, all_free), true);
    assert_eq!(
        found[1..3],
        [Group::Heads { first: 4, normed: true, attended: false }, Group::One(9)],
        "rows may see each other"
    );
    assert!(groups(&free(16, all_free), true).contains(&linears(Some(11), 12, 2, Some(14))));
}

#[test]
fn kernels_of_two_orders_do_not_travel_together() {
    let found = groups(&free(1, |op| all_free(op).filter(|k| !k.starts_with("rms_norm"))), true);
    assert_eq!(found[..2], [Group::One(0), linears(None, 1, 3, None)], "the norm keeps the reference's order");
    let mut plan = free(1, all_free);
    plan.calls[2].kernel = "linear.bf16.cuda".into();
    let found = groups(&plan, true);
    assert_eq!(found[..2], [Group::One(0), linears(None, 1, 1, None)]);
}

/// The layer with products in tiles.
fn tiled(ops: Vec<Op>, method: &str) -> ForwardPlan {
    let mut plan = plan(ops, 64);
    for call in &mut plan.calls {
        call.kernel = match call.op {
            Op::Linear { .. } => format!("linear.bf16.{method}.cuda"),
            Op::SwiGlu { .. } => "swiglu.fast.cuda".into(),
            _ => "k".into(),
        };
    }
    plan
}

#[test]
fn products_in_tiles_go_together_whatever_the_rows_and_leave_the_norm_alone() {
    let found = groups(&tiled(layer(), "wgmma"), true);
    let want = [Group::One(0), linears(None, 1, 3, None)];
    assert_eq!(found[..2], want);
    assert!(found.contains(&linears(None, 12, 2, Some(14))), "{found:?}");
    let found = groups(&tiled(layer(), "mma"), true);
    assert!(found.contains(&linears(None, 12, 2, None)) && found.contains(&Group::One(14)), "{found:?}");
}

#[test]
fn a_gated_unit_that_others_read_too_is_stored_as_it_is() {
    let mut ops = layer();
    ops[16] = Op::SelectRows { x: GATE, out: PICKED };
    let found = groups(&tiled(ops, "wgmma"), true);
    assert!(found.contains(&linears(None, 12, 2, None)) && found.contains(&Group::One(14)), "{found:?}");
    let mut plan = tiled(layer(), "wgmma");
    plan.calls[15].kernel = "linear.bf16.cuda".into();
    let found = groups(&plan, true);
    assert!(found.contains(&Group::One(14)), "a product in lanes reads F32: {found:?}");
}

#[test]
fn a_weight_that_is_widened_in_parts_is_alone() {
    let mut plan = tiled(layer(), "wgmma");
    plan.weights[1] = WeightInfo { format: Format::Q8_0, rows: 1 << 20, ..plan.weights[1].clone() };
    let found = groups(&plan, true);
    assert_eq!(found[1], linears(None, 1, 1, None));
}
