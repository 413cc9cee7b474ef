//! What an arm says about itself: the parts of its record that are no samples.
//!
//! They are assembled where the engine is, in the process that runs it, and are plain data from there on: a campaign
//! reads them from its arms, whose builds may differ from its own.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tare_core::{Format, Reading};
use tare_engine::Engine;
use tare_evidence::canonical;
use tare_evidence::floor::Demands;
use tare_evidence::identity::{Arm, Delay, EosRule, PrefillLogits, Warmth, Work, prompt_ids_sha256};
use tare_evidence::record::Memory;
use tare_formats::Role as Weights;
use tare_model::CacheKind;
use tare_model::planner::Resolved;
use tare_ops::Op;
use tare_probe::ResidentMemory;

use crate::build_info::BuildInfo;
use crate::clock::Timed;
use crate::rig::{Rig, slow_paths};
use crate::work::ClockedRequest;
use crate::{LabError, On, floor};

/// Everything a record says of an arm before anything is timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmFacts {
    /// What is computed.
    pub work: Work,
    /// How.
    pub arm: Arm,
    /// The resolved plan.
    pub plan: Value,
    /// Bytes and operations of both phases.
    pub demands: Demands,
    /// The configuration as it is printed.
    pub config: Value,
    /// The binary.
    pub build: BuildInfo,
    /// Threads that compute: those whose ceilings bound it.
    pub threads: usize,
    /// Bytes of matrices that a decode step reads.
    pub streamed_bytes: Reading<u64>,
    /// What a reader of the figures must know.
    pub notes: Vec<String>,
}

impl ArmFacts {
    /// The facts of `engine`, which `rig` made, for `requests` that run together.
    ///
    /// # Errors
    /// When the model cannot be read or a fact has no JSON form.
    pub fn of_engine(
        rig: &Rig<'_>,
        engine: &Engine,
        requests: &[ClockedRequest],
        build: &BuildInfo,
    ) -> Result<Self, LabError> {
        let resolved = widest(engine)?;
        let plan = plan_json(engine, resolved)?;
        let streamed = streamed_bytes(resolved);
        let mut notes = slow_paths(engine);
        notes.extend(together(engine, requests.len()));
        if rig.plan.cache == CacheKind::Concatenate {
            notes.push("memory.kv_bytes leaves out the copy that stands while a region grows".to_string());
        }
        Ok(Self {
            work: work(rig, requests)?,
            arm: arm(rig, engine, resolved, &canonical::digest(&plan), build)?,
            plan,
            demands: floor::demands(&resolved.plan, requests, floor::flop_ceiling(rig.class)),
            config: config(rig, engine),
            build: build.clone(),
            threads: engine.info().threads,
            streamed_bytes: Reading::Available(streamed),
            notes,
        })
    }
}

/// Where memory went over `rounds` of `engine` in this process, in which at most `before` bytes had been resident when the
/// loading began.
pub fn memory(engine: &Engine, rounds: &[Timed], before: &Reading<u64>) -> Memory {
    let rss = ResidentMemory::read();
    let pool = engine.counters().pool;
    let token = engine.resolved().first().map(|r| r.plan.kv.token_bytes());
    let kv = token.map(|t| (pool.peak * pool.page_tokens * t) as u64);
    Memory {
        allocator_peak_bytes: largest(rounds.iter().map(|r| &r.allocator_peak_bytes)),
        peak_rss_bytes: Some(peak_since(rss.peak_bytes, before)),
        anonymous_rss_bytes: rss.anonymous_bytes,
        file_rss_bytes: rss.file_bytes,
        device_bytes: engine.device_bytes(),
        kv_bytes: kv.map_or_else(|| Reading::unavailable("no plan was compiled"), Reading::Available),
    }
}

/// The peak of the process, if it came after a moment before which the peak was `before`: what else the process did until
/// then is not laid at the door of the model.
fn peak_since(peak: Reading<u64>, before: &Reading<u64>) -> Reading<u64> {
    match (peak, before) {
        (Reading::Available(peak), Reading::Available(before)) if peak <= *before => Reading::unavailable(format!(
            "{before} bytes were resident before the model was loaded, for ceilings or for an earlier request and its judge, and \
             no more since: measure one request in a process, after the ceilings are kept"
        )),
        (_, Reading::Unavailable { why }) => Reading::unavailable(why.as_str()),
        (peak, _) => peak,
    }
}

/// The larger of each figure: what an arm took at its fullest over several processes.
pub fn fullest(all: &[Memory]) -> Memory {
    let of = |part: fn(&Memory) -> &Reading<u64>| largest(all.iter().map(part));
    Memory {
        allocator_peak_bytes: of(|m| &m.allocator_peak_bytes),
        anonymous_rss_bytes: of(|m| &m.anonymous_rss_bytes),
        file_rss_bytes: of(|m| &m.file_rss_bytes),
        device_bytes: of(|m| &m.device_bytes),
        kv_bytes: of(|m| &m.kv_bytes),
        peak_rss_bytes: all
            .iter()
            .map(|m| m.peak_rss_bytes.as_ref())
            .collect::<Option<Vec<_>>>()
            .map(|p| largest(p.into_iter())),
    }
}

/// The largest of readings; missing when one of them is.
fn largest<'a>(readings: impl Iterator<Item = &'a Reading<u64>>) -> Reading<u64> {
    let larger = |a: &'a Reading<u64>, b: &'a Reading<u64>| match (a, b) {
        (Reading::Available(x), Reading::Available(y)) if x >= y => a,
        (Reading::Unavailable { .. }, _) => a,
        _ => b,
    };
    readings.reduce(larger).cloned().unwrap_or_else(|| Reading::unavailable("there was no round"))
}

/// How several sequences run together; nothing of one.
fn together(engine: &Engine, sequences: usize) -> Option<String> {
    let rows = engine.resolved().iter().map(|r| r.plan.bucket.rows).filter(|rows| *rows >= sequences).min();
    (sequences > 1).then(|| {
        let bucket = rows.map_or("no bucket takes it".to_string(), |rows| format!("it runs in the bucket of {rows} rows"));
        format!(
            "{sequences} sequences: their prompts were computed one after the other; after that a step has one row of each: \
             {bucket}"
        )
    })
}

/// What is computed, as a record's identity has it.
///
/// # Errors
/// When the model cannot be read, or there is no request.
pub fn work(rig: &Rig<'_>, requests: &[ClockedRequest]) -> Result<Work, LabError> {
    let Some(request) = requests.first() else { return Err(LabError::Request("has no sequence".to_string())) };
    let inputs: Vec<Vec<u32>> = requests.iter().map(ClockedRequest::input).collect();
    let lengths = |of: fn(&ClockedRequest) -> usize| requests.iter().map(|r| of(r) as u32).collect();
    let sampling = request.greedy();
    Ok(Work {
        weights_values_sha256: rig.model.values_digest()?,
        shape: rig.model.describe()?.name,
        prompt_ids_sha256: prompt_ids_sha256(&inputs)?,
        prompt_lengths: lengths(|r| r.prompt.len()),
        output_lengths: lengths(|r| r.output_tokens),
        prefill_logits: if request.all_prompt_logits { PrefillLogits::All } else { PrefillLogits::Last },
        rows: requests.len() as u32,
        sampling: json!({ "params": sampling.sampling, "seed": sampling.seed }),
        eos: EosRule::Ignore,
        depth: request.prefix.len() as u32,
        warmth: Warmth::Warm,
    })
}

fn arm(
    rig: &Rig<'_>,
    engine: &Engine,
    resolved: &Resolved,
    plan_sha256: &str,
    build: &BuildInfo,
) -> Result<Arm, LabError> {
    let info = engine.info();
    let head: Format = rig.model.weight(Weights::Head)?.format();
    Ok(Arm {
        plan: resolved.plan.name.clone(),
        plan_sha256: plan_sha256.into(),
        binary_sha256: build.binary_sha256.clone(),
        class: resolved.plan.class.clone(),
        file_format: rig.model.describe()?.format.to_string(),
        file_sha256: rig.model.values_digest()?,
        head_format: head.to_string(),
        cache: format!("{:?}", rig.plan.cache).to_lowercase(),
        page_tokens: Reading::Available(engine.counters().pool.page_tokens as u32),
        threads: Reading::Available(info.threads as u32),
        isa: highest_level(engine),
        backend: info.name,
        streamed_bytes_per_token: Reading::Available(streamed_bytes(resolved)),
        peer: None,
        // Left out where it is as nobody asked, so that arms of before and of now are the same.
        settings: kept(rig).then(|| json!({ "keep_workers": true })),
        delay: rig.delay.map(|d| Delay { group: d.group.name().to_string(), percent: d.percent }),
    })
}

/// Whether every worker is in every step, whoever waits for its processor.
fn kept(rig: &Rig<'_>) -> bool {
    rig.on == On::Cpu && rig.cpu.keep_workers
}

/// The configuration that runs: of what was asked for, what `engine` made of it.
pub(crate) fn config(rig: &Rig<'_>, engine: &Engine) -> Value {
    let info = engine.info();
    json!({
        "model": rig.model.describe().map(|d| d.label().to_string()).unwrap_or_default(),
        "plan": rig.plan,
        "class": rig.class.name,
        "context": rig.context,
        "max_rows": rig.max_rows,
        "device": info.device,
        "threads": info.threads,
        "pin": rig.cpu.pin,
        "keep_workers": kept(rig),
        "isa": info.isa,
    })
}

/// The resolved plan of the widest bucket: that of the largest chunks of which many rows are read.
fn widest(engine: &Engine) -> Result<&Resolved, LabError> {
    let by_rows = |r: &&Resolved| r.plan.bucket.rows;
    engine.resolved().iter().max_by_key(by_rows).ok_or_else(|| LabError::Judge("no plan was compiled".into()))
}

/// Bytes of the matrices that a decode step reads.
fn streamed_bytes(resolved: &Resolved) -> u64 {
    let plan = &resolved.plan;
    let linear = |op: &Op| match op {
        Op::Linear { weight, .. } => plan.weight(*weight).map(|w| w.bytes as u64),
        _ => None,
    };
    plan.calls.iter().filter_map(|c| linear(&c.op)).sum()
}

/// What ran: the operator calls of the widest bucket in full, and of every bucket its kernels, each with the number of
/// calls that it takes, and the digest of its plan.
fn plan_json(engine: &Engine, widest: &Resolved) -> Result<Value, LabError> {
    let kernels = |r: &Resolved| {
        let mut calls = BTreeMap::<String, usize>::new();
        r.plan.calls.iter().for_each(|c| *calls.entry(c.kernel.clone()).or_default() += 1);
        calls
    };
    let bucket = |r: &Resolved| json!({ "bucket": r.plan.bucket, "sha256": r.digest, "kernels": kernels(r) });
    let whole =
        serde_json::to_value(&widest.plan).map_err(|e| LabError::Judge(format!("the plan has no JSON form: {e}")))?;
    Ok(json!({ "buckets": engine.resolved().iter().map(bucket).collect::<Vec<_>>(), "widest": whole }))
}

/// The highest level that any kernel of any bucket needs: not what the host has, but what ran.
fn highest_level(engine: &Engine) -> String {
    let used = |level: &str| {
        let mut calls = engine.resolved().iter().flat_map(|r| &r.plan.calls);
        calls.any(|c| c.kernel.rsplit('.').next() == Some(level))
    };
    let isa = engine.info().isa;
    isa.levels().iter().rev().map(|l| l.name()).find(|l| used(l)).unwrap_or("portable").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_from_before_the_model_is_not_its_own() {
        let some = Reading::Available;
        assert_eq!(peak_since(some(7), &some(6)), some(7));
        let before = peak_since(some(7), &some(7));
        assert!(before.to_string().contains("7 bytes were resident before"), "{before}");
        let none = || Reading::unavailable("no meter");
        assert_eq!((peak_since(none(), &some(0)), peak_since(some(7), &none())), (none(), none()));
    }
}
