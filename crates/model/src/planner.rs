//! Binding each operator to a kernel, and writing down why.

use serde::{Serialize, Serializer};
use tare_core::Fault;
use tare_core::digest::sha256_hex;
use tare_formats::ModelConfig;
use tare_formats::config::RopeStyle as FileStyle;
use tare_ops::plan::{RopeStyle, RopeTable};
use tare_ops::reference::rope::frequencies;
use tare_ops::{
    Backend, Bucket, Class, Fit, ForwardPlan, IsaSet, KvShape, Op, OpCall, OpName, OpShape, Order, Rounding, RowSpace,
    Variant,
};

use crate::{ModelError, PackedModel, PlanSpec, Strategy, decoder};

/// What a plan is resolved for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Arithmetic class.
    pub class: Class,
    /// The most rows of a step.
    pub bucket: Bucket,
    /// Cached tokens that kernels are chosen for: the longest context of the session.
    pub context: usize,
}

/// A plan bound to the kernels of a backend.
#[derive(Clone, Debug, Serialize)]
pub struct Resolved {
    /// What the backend compiles.
    pub plan: ForwardPlan,
    /// Why each kernel was taken, one entry for each distinct operator and shape.
    pub choices: Vec<Choice>,
    /// SHA-256 of the plan in JSON.
    pub digest: String,
}

/// Why a kernel was taken for calls of one operator and shape.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Indices of the calls in [`ForwardPlan::calls`].
    pub calls: Vec<usize>,
    /// The operator.
    pub op: OpName,
    /// The shape it was chosen for.
    #[serde(serialize_with = "shape_text")]
    pub shape: OpShape,
    /// The kernel.
    pub chosen: String,
    /// Kernels of this operator that were looked at and not taken.
    pub refused: Vec<Refusal>,
    /// Why nothing better was there, when the kernel is only a fallback. Users are told.
    pub fallback: Option<String>,
    /// Id of the evidence with which a guard of the plan chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<String>,
}

/// A kernel that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Its key.
    pub key: String,
    /// Why not.
    pub why: String,
}

/// Resolves `spec` for `model` on `backend`.
///
/// # Errors
/// When the plan refuses backend or class, the class does not admit a weight, or no kernel of the backend takes a call.
pub fn resolve(
    spec: &PlanSpec,
    model: &PackedModel,
    backend: &dyn Backend,
    target: Target,
) -> Result<Resolved, ModelError> {
    let info = backend.describe();
    spec.runs(&info.name, target.class)?;
    let isa = info.isa;
    let mut plan = unbound(spec, model, target)?;
    let mut choices: Vec<Choice> = Vec::new();
    for i in 0..plan.calls.len() {
        let op = plan.calls[i].op.name();
        // The class itself says the order, which a judge of one in any order asks for otherwise than by its name.
        let order = target.class.order;
        let shape = OpShape { order, ..op_shape(&plan, &plan.calls[i].op, target.context) };
        let known = choices.iter().position(|c| c.op == op && c.shape == shape);
        let at = match known {
            Some(at) => at,
            None => {
                choices.push(choose((op, shape), spec, target.class, (backend.variants(), &isa))?);
                choices.len() - 1
            }
        };
        choices[at].calls.push(i);
        plan.calls[i].kernel.clone_from(&choices[at].chosen);
    }
    plan.validate()?;
    let json =
        serde_json::to_vec(&plan).map_err(|e| Fault::new("plan", "a value that JSON can hold", e.to_string()))?;
    Ok(Resolved { plan, choices, digest: sha256_hex(&json) })
}

impl Resolved {
    /// Calls whose kernel is only a fallback, with the reason: a slow path is never silent.
    pub fn fallbacks(&self) -> impl Iterator<Item = (&Choice, &str)> {
        self.choices.iter().filter_map(|c| c.fallback.as_deref().map(|why| (c, why)))
    }
}

/// The plan with empty kernel keys.
fn unbound(spec: &PlanSpec, model: &PackedModel, target: Target) -> Result<ForwardPlan, Fault> {
    let config = model.config();
    let step = decoder::step(model, target.class)?;
    let plan = ForwardPlan {
        name: spec.name.clone(),
        class: target.class.name.into(),
        bucket: target.bucket,
        buffers: step.buffers,
        weights: model.weights().cloned().collect(),
        rope: rope_table(config),
        kv: kv_shape(config, target.class),
        calls: step.calls.into_iter().map(|c| OpCall { op: c.op, kernel: String::new(), layer: c.layer }).collect(),
    };
    for call in &plan.calls {
        let Op::Linear { weight, .. } = call.op else { continue };
        let Some(w) = plan.weight(weight) else { continue };
        target.class.admits(w.format).map_err(|why| Fault::new(&w.name, "a format that the class admits", why))?;
    }
    Ok(plan)
}

fn rope_table(config: &ModelConfig) -> RopeTable {
    let (inv_freq, factor) = frequencies(config.head_size, config.rope.theta, &config.rope.scaling);
    let style = match config.rope.style {
        FileStyle::HalfSplit => RopeStyle::HalfSplit,
        FileStyle::Interleaved => RopeStyle::Interleaved,
    };
    RopeTable { inv_freq, factor, style }
}

/// A token's place in the KV cache of a model computed in `class`.
pub fn kv_shape(config: &ModelConfig, class: Class) -> KvShape {
    KvShape { layers: config.layers, kv_heads: config.kv_heads, head_size: config.head_size, dtype: class.kv }
}

/// The shape of a call at the full bucket and `context` cached tokens.
pub fn op_shape(plan: &ForwardPlan, op: &Op, context: usize) -> OpShape {
    let kv = plan.kv;
    let width = |id| plan.buffer(id).width;
    let rows = |id| match plan.buffer(id).rows {
        RowSpace::All => plan.bucket.rows,
        RowSpace::Selected => plan.bucket.selected,
    };
    let flat = |rows, n| OpShape {
        rows,
        n,
        k: n,
        format: op.matrix().and_then(|w| plan.weight(w)).map(|w| w.format),
        heads: 0,
        kv_heads: 0,
        head_size: 0,
        kv_element_bytes: 0,
        context: 0,
        rounding: None,
        order: plan.order(),
    };
    match op {
        Op::Embedding { table, out } => OpShape { rounding: plan.rounding_of(*table), ..flat(rows(*out), width(*out)) },
        Op::RmsNorm { x, .. } | Op::SelectRows { x, .. } => flat(rows(*x), width(*x)),
        Op::HeadNorm { x, heads, .. } | Op::Rope { x, heads } => {
            OpShape { heads: *heads as usize, head_size: kv.head_size, ..flat(rows(*x), width(*x)) }
        }
        Op::Linear { x, out, rounding, .. } => {
            OpShape { k: width(*x), rounding: Some(*rounding), ..flat(rows(*x), width(*out)) }
        }
        Op::KvAppend { k, .. } => OpShape {
            kv_heads: kv.kv_heads,
            head_size: kv.head_size,
            kv_element_bytes: kv.dtype.bytes(),
            ..flat(rows(*k), width(*k))
        },
        Op::Attention { q, kv_of_head, .. } => OpShape {
            heads: kv_of_head.len(),
            kv_heads: kv.kv_heads,
            head_size: kv.head_size,
            kv_element_bytes: kv.dtype.bytes(),
            context,
            ..flat(rows(*q), width(*q))
        },
        Op::SwiGlu { gate, .. } => flat(rows(*gate), width(*gate)),
        Op::Sample { logits } => flat(rows(*logits), width(*logits)),
    }
}

/// The kernels of a backend, and the levels that may be used.
pub(crate) type Kernels<'a> = (&'a [Variant], &'a IsaSet);

/// What the strategy of the call's operator and the guards of the plan make of it: the readable kernel, the one that a guard
/// names, or what the backend prefers.
fn choose(call: (OpName, OpShape), spec: &PlanSpec, class: Class, kernels: Kernels<'_>) -> Result<Choice, Fault> {
    let (op, shape) = call;
    let strategy = spec.strategy(op, shape.rows);
    if *strategy == Strategy::Readable {
        return readable(call, class, kernels);
    }
    let named = |key: &str| {
        let (variants, isa) = kernels;
        let found = variants.iter().find(|v| v.key == key && v.op == op);
        found.filter(|v| strategy.admits(v).and_then(|()| takes(v, &shape, class, isa)).is_ok())
    };
    match spec.guard(op, &shape, |key| named(key).is_some()) {
        Some(g) => Ok(Choice { guard: Some(g.evidence.clone()), ..taken(call, &g.kernel) }),
        None => preferred(call, strategy, class, kernels),
    }
}

/// The first kernel that is best for the call, else the first that can take it at all.
pub(crate) fn preferred(
    call: (OpName, OpShape),
    strategy: &Strategy,
    class: Class,
    (variants, isa): Kernels<'_>,
) -> Result<Choice, Fault> {
    let (op, shape) = call;
    let mut refused = Vec::new();
    let mut fallback: Option<(&Variant, String)> = None;
    for v in variants.iter().filter(|v| v.op == op) {
        match strategy.admits(v).and_then(|()| takes(v, &shape, class, isa)) {
            Ok(None) => return Ok(Choice { refused, ..taken(call, &v.key) }),
            Ok(Some(why)) if fallback.is_none() => fallback = Some((v, why)),
            Ok(Some(why)) | Err(why) => refused.push(Refusal { key: v.key.clone(), why }),
        }
    }
    if let Some((v, why)) = fallback {
        return Ok(Choice { refused, fallback: Some(why), ..taken(call, &v.key) });
    }
    // Those that the plan asks for, where there are any: the others are refused by what it asks.
    let asked = |r: &&Refusal| variants.iter().any(|v| v.key == r.key && strategy.admits(v).is_ok());
    let all = !refused.iter().any(|r| asked(&r));
    let told = refused.iter().filter(|r| all || asked(r));
    let found: Vec<String> = told.map(|r| format!("{}: {}", r.key, r.why)).collect();
    let found = if found.is_empty() { "none for this operator".into() } else { found.join("; ") };
    Err(Fault::new(format!("{op} {}", describe(&shape)), "a kernel that takes it", found)
        .remedy("take another class, plan or format, or lift the limit on the instruction set"))
}

/// The kernel of the lowest level that takes the call, and of those the one that adds in the reference's order. It is a
/// fallback when the backend has a better one: a plan that asks for it is slow on purpose, and people are told.
fn readable(call: (OpName, OpShape), class: Class, kernels: Kernels<'_>) -> Result<Choice, Fault> {
    let (op, shape) = call;
    let (variants, isa) = kernels;
    let best = preferred(call, &Strategy::Auto, class, kernels)?;
    let of_op = || variants.iter().filter(|v| v.op == op);
    let fitting = of_op().filter(|v| takes(v, &shape, class, isa).is_ok());
    let plainest = fitting.min_by_key(|v| (v.isa, v.order != Order::Reference));
    let Some(chosen) = plainest.filter(|v| v.key != best.chosen) else { return Ok(best) };
    let why = "the plan asks for the readable kernel";
    let refusal = |v: &Variant| Refusal {
        key: v.key.clone(),
        why: takes(v, &shape, class, isa).err().unwrap_or_else(|| why.to_string()),
    };
    let refused = of_op().filter(|v| v.key != chosen.key).map(refusal).collect();
    Ok(Choice { refused, fallback: Some(why.to_string()), ..taken(call, &chosen.key) })
}

/// The choice of `key`, with nothing to say about it.
fn taken((op, shape): (OpName, OpShape), key: &str) -> Choice {
    Choice { calls: Vec::new(), op, shape, chosen: key.to_string(), refused: Vec::new(), fallback: None, guard: None }
}

/// Nothing when the kernel is best for a call in this class, the reason when it is a fallback, an error when it cannot.
fn takes(v: &Variant, shape: &OpShape, class: Class, isa: &IsaSet) -> Result<Option<String>, String> {
    class.allows(v.order).and_then(|()| fit(v, shape, isa))
}

/// Nothing when the kernel is best, the reason when it is a fallback, an error when it cannot.
fn fit(v: &Variant, shape: &OpShape, isa: &IsaSet) -> Result<Option<String>, String> {
    match v.fit(shape, isa) {
        Fit::Best => Ok(None),
        Fit::Fallback { why } => Ok(Some(why)),
        Fit::No { why } => Err(why),
    }
}

/// A shape for people: `8 rows, 1024 -> 3072, w4g128`.
pub fn describe(s: &OpShape) -> String {
    let mut text = format!("{} rows, {} -> {}", s.rows, s.k, s.n);
    if s.heads + s.kv_heads > 0 {
        text += &format!(", {} query and {} kv heads of {}", s.heads, s.kv_heads, s.head_size);
    }
    if s.context > 0 {
        text += &format!(", {} cached tokens", s.context);
    }
    if let Some(format) = s.format {
        text += &format!(", {format}");
    }
    match s.rounding {
        Some(Rounding::Int8) => text += ", 8-bit activations",
        Some(Rounding::Int15) => text += ", 15-bit activations",
        Some(Rounding::F32 | Rounding::Bf16) | None => {}
    }
    text
}

fn shape_text<S: Serializer>(shape: &OpShape, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&describe(shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guard;
    use tare_ops::{Isa, Slack};

    fn variant(key: &str, isa: Isa, fits: fn(&Variant, &OpShape, &IsaSet) -> Fit) -> Variant {
        Variant {
            key: key.into(),
            op: OpName::Rope,
            format: None,
            isa,
            order: Order::Reference,
            slack: Slack::F32,
            roundings: Rounding::ALL,
            fits,
        }
    }

    fn best(_: &Variant, _: &OpShape, _: &IsaSet) -> Fit {
        Fit::Best
    }

    fn narrow(_: &Variant, s: &OpShape, _: &IsaSet) -> Fit {
        if s.rows <= 8 { Fit::Best } else { Fit::Fallback { why: "made for at most 8 rows".into() } }
    }

    fn pick(rows: usize, strategy: &str, isa: &[Isa]) -> Result<Choice, Fault> {
        guarded(rows, strategy, isa, &[])
    }

    fn guarded(rows: usize, strategy: &str, isa: &[Isa], guards: &[Guard]) -> Result<Choice, Fault> {
        in_class("f32", rows, strategy, isa, guards)
    }

    fn in_class(class: &str, rows: usize, strategy: &str, isa: &[Isa], guards: &[Guard]) -> Result<Choice, Fault> {
        let variants = [
            Variant { order: Order::Free, ..variant("rope.split.amx", Isa::Amx, best) },
            variant("rope.f32.amx", Isa::Amx, best),
            variant("rope.few.avx2", Isa::Avx2, narrow),
            variant("rope.few.portable", Isa::Portable, narrow),
            variant("rope.f32.portable", Isa::Portable, best),
        ];
        let shape = OpShape {
            rows,
            n: 64,
            k: 64,
            format: None,
            heads: 1,
            kv_heads: 0,
            head_size: 64,
            kv_element_bytes: 0,
            context: 0,
            rounding: None,
            order: Order::Reference,
        };
        let mut spec = PlanSpec::find(PlanSpec::DEFAULT).unwrap();
        spec.operators.insert("rope".into(), Strategy::try_from(strategy.to_owned()).unwrap().into());
        spec.guards = guards.to_vec();
        choose((OpName::Rope, shape), &spec, Class::by_name(class)?, (&variants, &IsaSet::new(isa.iter().copied())))
    }

    #[test]
    fn the_first_that_is_best_is_taken_and_the_others_say_why_not() {
        let c = pick(8, "auto", &[Isa::Avx2]).unwrap();
        assert_eq!((c.chosen.as_str(), c.fallback), ("rope.few.avx2", None));
        assert_eq!(c.refused[1..], [Refusal { key: "rope.f32.amx".into(), why: "needs amx".into() }]);
        assert_eq!(
            pick(9, "auto", &[Isa::Avx2]).unwrap().chosen,
            "rope.f32.portable",
            "best beats an earlier fallback"
        );
    }

    #[test]
    fn a_kernel_with_an_order_of_its_own_is_for_free_classes_alone() {
        let pick = |class| in_class(class, 8, "auto", &[Isa::Amx, Isa::Avx2], &[]).unwrap();
        let refused = pick("bf16").refused.remove(0);
        assert_eq!(refused.key, "rope.split.amx");
        assert!(refused.why.contains("an order of its own"), "{}", refused.why);
        assert_eq!((pick("bf16").chosen, pick("bf16-free").chosen), ("rope.f32.amx".into(), "rope.split.amx".into()));
    }

    #[test]
    fn a_fallback_is_taken_last_and_named() {
        let c = pick(9, "rope.few.", &[Isa::Avx2]).unwrap();
        assert_eq!((c.chosen.as_str(), c.fallback.as_deref()), ("rope.few.avx2", Some("made for at most 8 rows")));
    }

    #[test]
    fn a_guard_chooses_for_its_rows_and_names_its_evidence() {
        let guard = |kernel: &str, rows| Guard {
            operator: "rope".into(),
            kernel: kernel.into(),
            n: 64,
            k: 64,
            rows,
            evidence: "crossover-1".into(),
        };
        let guards = [guard("rope.f32.portable", [1, 4]), guard("rope.few.amx", [1, 8])];
        let pick = |rows| guarded(rows, "auto", &[Isa::Avx2], &guards).unwrap();
        let c = pick(4);
        assert_eq!((c.chosen.as_str(), c.guard.as_deref()), ("rope.f32.portable", Some("crossover-1")));
        let c = pick(5);
        assert_eq!(
            (c.chosen.as_str(), c.guard),
            ("rope.few.avx2", None),
            "no such kernel here: the guard says nothing"
        );
        let capped = guarded(4, "rope.few.", &[Isa::Avx2], &guards).unwrap();
        assert_eq!(capped.chosen, "rope.few.avx2", "a strategy goes before a guard");
    }

    #[test]
    fn a_level_caps_the_choice() {
        assert_eq!(pick(8, "portable", &[Isa::Avx2]).unwrap().chosen, "rope.few.portable");
    }

    #[test]
    fn the_readable_kernel_is_of_the_lowest_level_and_is_named() {
        let why = Some("the plan asks for the readable kernel");
        for class in ["f32", "bf16-free"] {
            let c = in_class(class, 8, "readable", &[Isa::Amx, Isa::Avx2], &[]).unwrap();
            assert_eq!((c.chosen.as_str(), c.fallback.as_deref()), ("rope.few.portable", why), "{class}");
            let refused: Vec<&str> = c.refused.iter().map(|r| r.key.as_str()).collect();
            assert_eq!(refused, ["rope.split.amx", "rope.f32.amx", "rope.few.avx2", "rope.f32.portable"]);
        }
        let only = pick(8, "readable", &[]).unwrap();
        assert_eq!((only.chosen.as_str(), only.fallback), ("rope.few.portable", None), "nothing better was there");
        let guard = Guard {
            operator: "rope".into(),
            kernel: "rope.few.avx2".into(),
            n: 64,
            k: 64,
            rows: [1, 8],
            evidence: "crossover-1".into(),
        };
        let c = guarded(8, "readable", &[Isa::Avx2], &[guard]).unwrap();
        assert_eq!((c.chosen.as_str(), c.guard), ("rope.few.portable", None), "a strategy goes before a guard");
    }

    #[test]
    fn nothing_that_fits_is_an_error_with_the_reasons_of_what_was_asked_for() {
        let why = |strategy| pick(1, strategy, &[]).unwrap_err().to_string();
        let error = why("rope.f32.amx");
        assert!(error.contains("rope.f32.amx: needs amx") && !error.contains("the plan asks for"), "{error}");
        let error = why("rope.f32.none");
        assert!(error.contains("the plan asks for rope.f32.none"), "where there is nothing of it, of all: {error}");
    }
}
