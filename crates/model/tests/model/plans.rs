//! Plan files and what becomes of them on a backend.

use tare_model::{CacheKind, Model, PackedModel, PlanSpec, Resolved, Strategy, Target, classes, resolve};
use tare_ops::reference::ReferenceBackend;
use tare_ops::{Bucket, Op, OpName, OpShape, Order, RowSpace};
use tare_testkit::{goldens, workspace};

fn resolved(spec: &str, plan: &str, rows: usize) -> Resolved {
    let model = Model::open(spec).unwrap();
    let mut backend = ReferenceBackend::new();
    let packed = PackedModel::pack(&model, &mut backend).unwrap();
    // The plain class. The reference's one kernel for linears takes every class: no test here depends on which it is.
    let class = classes::choose_for_device(&model, None).unwrap();
    let target = Target { class, bucket: Bucket { rows, selected: 1 }, context: 64 };
    resolve(&PlanSpec::find(plan).unwrap(), &packed, &backend, target).unwrap()
}

#[test]
fn built_in_plans_are_the_files_and_say_their_own_name() {
    let names: Vec<_> = PlanSpec::names().collect();
    let files = std::fs::read_dir(workspace().join("plans")).unwrap();
    assert_eq!(names.len(), files.count(), "every plan file is inside the binary");
    for name in names {
        let plan = PlanSpec::find(name).unwrap();
        assert_eq!(plan.name, name);
        let file = workspace().join(format!("plans/{name}.toml"));
        assert_eq!(PlanSpec::find(file.to_str().unwrap()).unwrap(), plan, "by path");
    }
    assert_eq!(PlanSpec::find("kv-cache").unwrap().cache, CacheKind::Concatenate);
    assert_eq!(PlanSpec::find(PlanSpec::DEFAULT).unwrap().page_tokens, Some(16));
}

#[test]
fn plans_with_mistakes_are_refused() {
    let good = std::fs::read_to_string(workspace().join("plans/paged.toml")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        PlanSpec::parse(&good.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert!(refused("rung = ", "rank = ").contains("rank"));
    assert!(refused("cache = \"paged\"", "cache = \"pages\"").contains("pages"));
    assert!(refused("page_tokens = 16", "").contains("page_tokens"));
    assert!(refused("cache = \"paged\"", "cache = \"capacity\"").contains("page_tokens"));
    assert!(refused("wins = \"Many", "won = \"Many").contains("won"));
    assert!(refused("[states]", "[operators]\nmatmul = \"auto\"\n[states]").contains("one of embedding"));
    assert!(refused("[states]", "[operators]\nlinear = \"fast\"\n[states]").contains("fast"));
    assert!(refused("[states]", "[operators]\nlinear = \"rope.f32\"\n[states]").contains("rope.f32"));
    let halves = "[operators]\nlinear = { few = \"auto\", many = \"rope.f32\" }\n[states]";
    assert!(refused("[states]", halves).contains("rope.f32"));
    assert!(refused("[states]", &halves.replace("many", "most")).contains("most"));
    assert!(refused("[states]", "[refused]\ncpu = \" \"\n[states]").contains("refused.cpu: expected why"));
    assert!(refused("page_tokens = 16", "page_tokens = 16\ndeterministic = 1").contains("deterministic"));
    let empty = PlanSpec::parse("name = \"x\"\nrung = \"L1\"\ncache = \"recompute\"").unwrap_err().to_string();
    assert!(empty.contains("states"), "{empty}");
    assert!(PlanSpec::find("fastest").unwrap_err().to_string().contains("capacity-cache"));
}

#[test]
fn guards_are_read_and_those_with_mistakes_refused() {
    let good = std::fs::read_to_string(workspace().join("plans/paged.toml")).unwrap();
    let with = |guards: &str| PlanSpec::parse(&format!("{good}\n{guards}"));
    let guard = |operator: &str, kernel: &str, rows: &str, evidence: &str| {
        format!(
            "[[guards]]\noperator = \"{operator}\"\nkernel = \"{kernel}\"\nn = 64\nk = 32\nrows = {rows}\nevidence = \"{evidence}\"\n"
        )
    };
    let shape = |rows, n| OpShape {
        rows,
        n,
        k: 32,
        format: None,
        heads: 0,
        kv_heads: 0,
        head_size: 0,
        kv_element_bytes: 0,
        context: 0,
        rounding: None,
        order: Order::Reference,
    };
    let first = guard("linear", "linear.q4_0.avx2", "[1, 8]", "e1");
    let plan = with(&first).unwrap();
    let takes = |op, rows, n| plan.guard(op, &shape(rows, n), |_| true).map(|g| g.evidence.clone());
    assert_eq!(takes(OpName::Linear, 8, 64).as_deref(), Some("e1"));
    assert_eq!(takes(OpName::Linear, 9, 64), None, "more rows");
    assert_eq!(takes(OpName::Linear, 8, 128), None, "another width, at which nothing was measured");
    assert_eq!(takes(OpName::Rope, 8, 64), None, "another operator");
    let other_format = guard("linear", "linear.q8_0.avx2", "[1, 8]", "e2");
    assert_eq!(with(&(first.clone() + &other_format)).unwrap().guards.len(), 2, "formats do not meet");
    let mistakes = [
        (guard("matmul", "matmul.x", "[1, 8]", "e"), "one of embedding"),
        (guard("linear", "rope.avx2", "[1, 8]", "e"), "a kernel key"),
        (guard("linear", "linear.q4_0.avx2", "[0, 8]", "e"), "from 1 on"),
        (guard("linear", "linear.q4_0.avx2", "[9, 8]", "e"), "9 to 8"),
        (guard("linear", "linear.q4_0.avx2", "[1, 8]", " "), "id of what was measured"),
        (first.clone() + &guard("linear", "linear.q4_0.portable", "[8, 16]", "e2"), "no other guard"),
        (first + "speed = 3\n", "speed"),
    ];
    for (guards, expected) in mistakes {
        let e = with(&guards).unwrap_err().to_string();
        assert!(e.contains(expected), "{e} lacks {expected}");
    }
}

#[test]
fn strategies_are_read_from_their_names() {
    let good = std::fs::read_to_string(workspace().join("plans/paged.toml")).unwrap();
    let with = "[operators]\nlinear = \"avx2\"\nattention = \"attention.f32.\"\n[states]";
    let plan = PlanSpec::parse(&good.replace("[states]", with)).unwrap();
    assert_eq!(*plan.strategy(OpName::Linear, 1), Strategy::UpTo(tare_ops::Isa::Avx2));
    assert_eq!(*plan.strategy(OpName::Attention, 1), Strategy::Prefix("attention.f32.".into()));
    assert_eq!(*plan.strategy(OpName::Rope, 1), Strategy::Auto);
}

#[test]
fn rungs_are_cumulative() {
    let rungs = ["readable-capacity-cache", "quantized-matvec", "simd-matmul", "rmsnorm", "rope", "swiglu"];
    let rungs = [&rungs[..], &["tiled-prefill", "decode-attention"]].concat();
    let plans: Vec<PlanSpec> = rungs.iter().map(|r| PlanSpec::find(r).unwrap()).collect();
    for (below, plan) in plans.iter().zip(&plans[1..]) {
        assert_eq!(plan.cache, below.cache, "{}", plan.name);
        for op in OpName::ALL {
            for rows in [1, 256] {
                let of = |p: &PlanSpec| *p.strategy(op, rows) == Strategy::Readable;
                assert!(of(below) || !of(plan), "{}: {op} is readable again at {rows} rows", plan.name);
            }
        }
    }
    assert!(plans.last().unwrap().operators.is_empty(), "nothing is readable at the top");
    let labels: Vec<String> = plans.iter().map(|p| p.rung.clone()).collect();
    assert_eq!(labels, ["L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10"]);
}

#[test]
fn every_call_is_bound_once_and_equal_shapes_are_told_once() {
    let r = resolved("synthetic:qwen3-tiny?format=w4g128", "paged", 8);
    let mut calls: Vec<usize> = r.choices.iter().flat_map(|c| c.calls.clone()).collect();
    calls.sort_unstable();
    assert_eq!(calls, (0..r.plan.calls.len()).collect::<Vec<_>>());
    assert!(r.plan.calls.iter().all(|c| c.kernel.starts_with(c.op.name().name())));
    assert!(r.choices.len() < 20, "{} choices for {} calls", r.choices.len(), r.plan.calls.len());
    assert_eq!(r.fallbacks().count(), 0);
}

#[test]
fn the_digest_is_that_of_the_resolved_plan() {
    let one = resolved("synthetic:qwen3-tiny", "paged", 8);
    assert_eq!(one.digest, resolved("synthetic:qwen3-tiny", "paged", 8).digest);
    assert_ne!(one.digest, resolved("synthetic:qwen3-tiny", "paged", 16).digest, "bucket");
    assert_ne!(one.digest, resolved("synthetic:qwen3-tiny", "capacity-cache", 8).digest, "plan");
    assert_ne!(one.digest, resolved("synthetic:qwen3-tiny?format=w4g128", "paged", 8).digest, "format");
}

#[test]
fn families_differ_in_the_blocks_of_a_layer_alone() {
    let layer = |spec: &str| -> Vec<OpName> {
        resolved(spec, "paged", 1).plan.calls.iter().filter(|c| c.layer == Some(1)).map(|c| c.op.name()).collect()
    };
    use OpName::{Attention, HeadNorm, KvAppend, Linear, RmsNorm, Rope, SwiGlu};
    let llama = [
        &[RmsNorm, Linear, Linear, Linear, Rope, Rope, KvAppend, Attention, Linear][..],
        &[RmsNorm, Linear, Linear, SwiGlu, Linear],
    ]
    .concat();
    assert_eq!(layer("synthetic:llama-tiny"), llama);
    let mut qwen3 = llama;
    qwen3.splice(4..4, [HeadNorm, HeadNorm]);
    assert_eq!(layer("synthetic:qwen3-tiny"), qwen3);

    let qwen2 = goldens().join("models/qwen2-tiny");
    let biased = resolved(qwen2.to_str().unwrap(), "paged", 1).plan;
    let biases = biased.calls.iter().filter(|c| matches!(c.op, Op::Linear { bias: Some(_), .. })).count();
    assert_eq!(biases, 2 * 3, "query, key and value of two layers");
}

#[test]
fn rows_that_want_nothing_skip_the_final_norm_and_the_head() {
    let plan = resolved("synthetic:qwen3-tiny", "paged", 8).plan;
    let tail = &plan.calls[plan.calls.len() - 3..];
    let spaces: Vec<_> = tail
        .iter()
        .map(|c| match &c.op {
            Op::RmsNorm { x, .. } | Op::Linear { x, .. } | Op::Sample { logits: x } => plan.buffer(*x).rows,
            other => panic!("{other:?} in the tail"),
        })
        .collect();
    assert_eq!(spaces, [RowSpace::Selected; 3]);
}

#[test]
fn a_class_that_a_weight_forbids_is_refused_by_name() {
    let model = Model::open("synthetic:qwen3-tiny?format=q4_0").unwrap();
    let error = classes::choose(&model, Some("bf16")).unwrap_err().to_string();
    assert!(error.contains("q4_0") && error.contains("which takes w4a15"), "{error}");

    let mut backend = ReferenceBackend::new();
    let packed = PackedModel::pack(&model, &mut backend).unwrap();
    let class = tare_ops::Class::by_name("bf16").unwrap();
    let target = Target { class, bucket: Bucket { rows: 1, selected: 1 }, context: 16 };
    let error = resolve(&PlanSpec::find("paged").unwrap(), &packed, &backend, target).unwrap_err().to_string();
    assert!(error.contains("q_proj"), "{error}");
}
