//! Running cases on a backend and comparing with the reference.

use std::fmt;

use half::bf16;
use tare_core::{DType, Fault};

use super::case::Case;
use super::exact;
use crate::backend::{Backend, KvId, KvSpan, OpError};
use crate::batch::{RowOutput, StepOutput};
use crate::class::Order;
use crate::isa::IsaSet;
use crate::op::{Op, OpName, WeightId};
use crate::reference::ReferenceBackend;
use crate::reference::kv::KvPool;
use crate::variant::{Fit, Variant};

/// How equal is equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Closeness {
    /// The same bits, NaN included.
    Bitwise,
    /// `|got - want| <= abs + rel * |want|`.
    Within {
        /// Absolute part of the limit.
        abs: f64,
        /// Part relative to the reference.
        rel: f64,
    },
}

impl Closeness {
    fn accepts(self, got: f32, want: f32) -> bool {
        match self {
            Closeness::Bitwise => got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            Closeness::Within { abs, rel } => {
                let (g, w) = (f64::from(got), f64::from(want));
                g == w || (got.is_nan() && want.is_nan()) || (g - w).abs() <= abs + rel * w.abs()
            }
        }
    }
}

/// A kernel that did not answer a case as the reference does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the case.
    pub case: String,
    /// Key of the kernel; empty when no kernel takes the case.
    pub kernel: String,
    /// The first element that differs and how many do, or the error.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pairs of case and kernel that were compared.
    pub compared: usize,
    /// Those that failed.
    pub differences: Vec<Difference>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} differ from the reference", self.differences.len(), self.compared)?;
        for d in &self.differences {
            write!(f, "\n{} on {}: {}", d.case, if d.kernel.is_empty() { "no kernel" } else { &d.kernel }, d.what)?;
        }
        Ok(())
    }
}

/// Runs each case on each kernel of the backend that takes it, and compares with the reference: as `closeness` says where
/// the kernel keeps its order of sums, else with the exact results and the limits of [`super::exact`].
pub fn check(backend: &mut dyn Backend, cases: &[Case], closeness: Closeness) -> Report {
    let mut report = check_kernels(backend, cases, closeness, |_| true);
    let isa = backend.describe().isa;
    for case in cases.iter().filter(|c| !backend.variants().iter().any(|v| takes(v, c, c.call, &isa))) {
        let what = "no kernel of this backend takes it".into();
        report.differences.push(Difference { case: case.name.clone(), kernel: String::new(), what });
    }
    report
}

/// As [`check`], for the kernels that are `wanted` alone. A case that none of them takes is passed over.
pub fn check_kernels(
    backend: &mut dyn Backend,
    cases: &[Case],
    closeness: Closeness,
    wanted: impl Fn(&Variant) -> bool,
) -> Report {
    let mut report = Report::default();
    let variants: Vec<Variant> = backend.variants().iter().filter(|v| wanted(v)).cloned().collect();
    let isa = backend.describe().isa;
    for case in cases.iter().filter(|c| variants.iter().any(|v| takes(v, c, c.call, &isa))) {
        let mut differ = |kernel: &str, what: String| {
            report.differences.push(Difference { case: case.name.clone(), kernel: kernel.into(), what });
        };
        let want = match run(&mut ReferenceBackend::new(), case) {
            Ok(want) => want,
            Err(e) => {
                differ("", format!("the reference itself fails: {e}"));
                continue;
            }
        };
        for variant in variants.iter().filter(|v| takes(v, case, case.call, &isa)) {
            report.compared += 1;
            let difference = match run_kernel(backend, case, &variant.key) {
                Ok(got) if variant.order == Order::Free => exact::difference(case, variant.slack, &got, &want),
                Ok(got) => first_difference(&got, &want, closeness),
                Err(e) => Some(e.to_string()),
            };
            if let Some(what) = difference {
                differ(&variant.key, what);
            }
        }
    }
    report
}

fn takes(variant: &Variant, case: &Case, call: usize, isa: &IsaSet) -> bool {
    variant.op == case.plan.calls[call].op.name() && !matches!(variant.fit(&case.shape(call), isa), Fit::No { .. })
}

fn first_difference(got: &[f32], want: &[f32], closeness: Closeness) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} values instead of {}", got.len(), want.len()));
    }
    let off = |i: &usize| !closeness.accepts(got[*i], want[*i]);
    let first = (0..got.len()).find(off)?;
    let n = (first..got.len()).filter(off).count();
    Some(format!("{n} of {} values; first at {first}: got {:e}, want {:e}", got.len(), got[first], want[first]))
}

/// Runs a case on the preferred kernel of the call under test that keeps the order of sums of the case's class.
///
/// # Errors
/// When the backend has no kernel for a call, or fails.
pub fn run(backend: &mut dyn Backend, case: &Case) -> Result<Vec<f32>, OpError> {
    let key = preferred(backend, case, case.call)?;
    run_kernel(backend, case, &key)
}

/// Runs a case on kernel `key` and gives every number that came back: the rows of the step in order (logits; for a case
/// of `sample` also token, logit, log-probability and top), then the whole cache.
///
/// # Errors
/// When the backend has no kernel for another call of the case, or fails.
pub fn run_kernel(backend: &mut dyn Backend, case: &Case, key: &str) -> Result<Vec<f32>, OpError> {
    let mut plan = case.plan.clone();
    for n in 0..plan.calls.len() {
        plan.calls[n].kernel = if n == case.call { key.into() } else { preferred(backend, case, n)? };
    }
    let ids = case.weights.iter().map(|w| backend.pack(w)).collect::<Result<Vec<_>, _>>()?;
    for info in &mut plan.weights {
        info.id = ids[info.id.0 as usize];
    }
    for call in &mut plan.calls {
        rename_weights(&mut call.op, &ids);
    }
    let pool = case.cache.as_ref().map(|c| fill(backend, c)).transpose()?;
    let mut batch = case.batch.clone();
    for table in &mut batch.tables {
        table.kv = pool.unwrap_or(table.kv);
    }
    let exe = backend.compile(&plan)?;
    let mut out = StepOutput::default();
    let outcome = backend.run(exe, &batch, &mut out);
    backend.release(exe);
    let mut values: Vec<f32> = out.rows.iter().flat_map(|r| numbers(case.op(), r)).collect();
    if let (Some(kv), Some(cache)) = (pool, &case.cache) {
        values.extend(drain(backend, kv, cache)?);
        backend.free_kv(kv)?;
    }
    outcome.map(|()| values)
}

fn preferred(backend: &dyn Backend, case: &Case, call: usize) -> Result<String, OpError> {
    let isa = backend.describe().isa;
    let order = case.plan.order();
    let allowed = |v: &&Variant| v.order == Order::Reference || order == Order::Free;
    let found = backend.variants().iter().filter(allowed).find(|v| takes(v, case, call, &isa));
    let op = case.plan.calls[call].op.name();
    let missing = || Fault::new(&case.name, format!("a kernel of this backend for {op}"), "none that takes it");
    Ok(found.ok_or_else(missing)?.key.clone())
}

fn rename_weights(op: &mut Op, ids: &[WeightId]) {
    let rename = |id: &mut WeightId| *id = ids[id.0 as usize];
    match op {
        Op::Embedding { table: w, .. } | Op::RmsNorm { weight: w, .. } | Op::HeadNorm { weight: w, .. } => rename(w),
        Op::Linear { weight, bias, .. } => {
            rename(weight);
            bias.as_mut().map(rename);
        }
        _ => {}
    }
}

/// Makes a pool that holds what `cache` holds, page by page.
fn fill(backend: &mut dyn Backend, cache: &KvPool) -> Result<KvId, OpError> {
    let kv = backend.alloc_kv(cache.shape(), cache.pages(), cache.page_tokens())?;
    for span in pages(kv, cache) {
        backend.write_kv(span, &cache.read(span.page, 0, span.tokens)?)?;
    }
    Ok(kv)
}

/// All numbers of a pool.
fn drain(backend: &mut dyn Backend, kv: KvId, cache: &KvPool) -> Result<Vec<f32>, OpError> {
    let mut values = Vec::new();
    for span in pages(kv, cache) {
        let bytes = backend.read_kv(span)?;
        match cache.shape().dtype {
            DType::BF16 => values.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            _ => values.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
        }
    }
    Ok(values)
}

fn pages(kv: KvId, cache: &KvPool) -> impl Iterator<Item = KvSpan> + use<> {
    let tokens = cache.page_tokens();
    (0..cache.pages() as u32).map(move |page| KvSpan { kv, page, start: 0, tokens })
}

fn numbers(op: OpName, row: &RowOutput) -> Vec<f32> {
    let mut all = row.logits.clone();
    if op == OpName::Sample {
        all.extend([row.row as f32, row.token as f32, row.logit, row.logprob]);
        all.extend(row.top.iter().flat_map(|(id, p)| [*id as f32, *p]));
    }
    all
}
