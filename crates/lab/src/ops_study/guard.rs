//! When a crossover may become a guard of a plan.
//!
//! Five things must agree: the win is there in every pass, the kernel that was meant is the one that ran, both ran with a
//! geometry that is known, the table over all passes says the same warm and cold, and a study of whole requests kept the
//! plan with the guard. Four of five is a refusal that names the fifth.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tare_core::Fault;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::ledger::Shown;
use tare_evidence::stats::Verdict;
use tare_evidence::{AnyDocument, Ledger, Record, State};
use tare_model::Guard;
use tare_ops::OpName;

use super::Measured;
use crate::replay::Warmth;

/// A verdict on whole requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndToEnd {
    /// Its id.
    pub id: String,
    /// Whether it kept the candidate, and neither it nor its records were taken back since.
    pub keeps: bool,
    /// The model's shape.
    pub shape: String,
    /// The arithmetic class.
    pub class: String,
    /// Buckets of the candidate, by their rows, with the kernels that each ran.
    pub candidate: Vec<(usize, Vec<String>)>,
    /// The same of the baseline.
    pub baseline: Vec<(usize, Vec<String>)>,
}

impl EndToEnd {
    /// Whether the kernel is what the arms differed in, in buckets of these rows.
    fn is_about(&self, c: &Crossover) -> bool {
        let ran = |arm: &[(usize, Vec<String>)]| {
            let inside = |b: &&(usize, Vec<String>)| (c.rows[0]..=c.rows[1]).contains(&b.0);
            arm.iter().filter(inside).any(|(_, kernels)| kernels.contains(&c.kernel))
        };
        ran(&self.candidate) && !ran(&self.baseline)
    }
}

/// What the operators were measured on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The model's shape.
    pub shape: String,
    /// The arithmetic class.
    pub class: String,
}

/// Passes without which a win is no win "in every pass".
pub const LEAST_PASSES: usize = 3;

/// A kernel that beat the plan's at consecutive numbers of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossover {
    /// What it is of.
    pub of: String,
    /// The operator.
    pub operator: OpName,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// The kernel that won.
    pub kernel: String,
    /// The kernel of the plan.
    pub over: String,
    /// The least and the most rows at which it won, with every measured number between.
    pub rows: [usize; 2],
    /// Smallest ratio over these rows.
    pub ratio: f64,
}

/// The crossovers of a study: for each operator and shape, the longest runs of rows at which another kernel than the
/// plan's was the fastest in every pass.
pub fn crossovers(measured: &[Measured]) -> Vec<Crossover> {
    let mut found: Vec<Crossover> = Vec::new();
    let mut last: Option<(&Measured, &str)> = None;
    for m in measured {
        let same_op = last.is_some_and(|(l, _)| (&l.of, l.warmth) == (&m.of, m.warmth) && l.rows < m.rows);
        let won = m.winner().filter(|w| w.kernel != m.chosen);
        match (won, last) {
            (Some(w), Some((_, kernel))) if same_op && kernel == w.kernel => {
                if let Some(c) = found.last_mut() {
                    c.rows[1] = m.rows;
                    c.ratio = c.ratio.min(w.ratio);
                }
            }
            (Some(w), _) => found.push(Crossover {
                of: m.of.clone(),
                operator: m.operator,
                n: m.n,
                k: m.k,
                kernel: w.kernel.clone(),
                over: m.chosen.clone(),
                rows: [m.rows; 2],
                ratio: w.ratio,
            }),
            (None, _) => {}
        }
        last = won.map(|w| (m, w.kernel.as_str()));
    }
    found
}

/// The guard that `crossover` earns. Its evidence is the study of whole requests and the digest of the tables, `table`.
///
/// # Errors
/// What is missing, each by name.
pub fn earned(
    crossover: &Crossover,
    subject: &Subject,
    (warm, cold): (&[Measured], &[Measured]),
    (end_to_end, table): (Option<&EndToEnd>, &str),
) -> Result<Guard, Fault> {
    let inside = |m: &&Measured| m.of == crossover.of && (crossover.rows[0]..=crossover.rows[1]).contains(&m.rows);
    let mut missing = Vec::new();
    for (name, measured) in [("warm", warm), ("cold", cold)] {
        let rows: Vec<&Measured> = measured.iter().filter(inside).collect();
        missing.extend(lacks(crossover, name, &rows));
    }
    if !cold.iter().filter(inside).all(|m| m.warmth == Warmth::Cold) {
        missing.push("a table with cold weights: there is no weight, or no cache of known size".into());
    }
    match end_to_end {
        None => missing.push("a study of whole requests".into()),
        Some(e) if !e.keeps => missing.push(format!("a study of whole requests that keeps it: {} does not", e.id)),
        Some(e) if (&e.shape, &e.class) != (&subject.shape, &subject.class) => {
            missing.push(format!("a study of this model: {} is of {} in {}", e.id, e.shape, e.class));
        }
        Some(e) if !e.is_about(crossover) => {
            missing.push(format!("a study whose candidate alone ran it in buckets of these rows: {} is not", e.id));
        }
        Some(_) => {}
    }
    match end_to_end {
        Some(e) if missing.is_empty() => Ok(Guard {
            operator: crossover.operator.name().to_string(),
            kernel: crossover.kernel.clone(),
            n: crossover.n,
            k: crossover.k,
            rows: crossover.rows,
            evidence: format!("{}, tables sha256:{table}", e.id),
        }),
        _ => Err(Fault::new(
            format!("guard for {} on {} to {} rows", crossover.kernel, crossover.rows[0], crossover.rows[1]),
            "a win in every pass, trace, geometry, operator table and whole requests that agree",
            format!("no {}", missing.join(", no ")),
        )),
    }
}

/// What the tables of one warmth lack.
fn lacks(crossover: &Crossover, name: &str, rows: &[&Measured]) -> Vec<String> {
    let mut missing = Vec::new();
    let won = |m: &Measured| m.winner().is_some_and(|w| w.kernel == crossover.kernel);
    let passes = |m: &Measured| m.kernels.iter().all(|k| k.passes_ns.len() >= LEAST_PASSES);
    if rows.is_empty() || !rows.iter().all(|m| won(m) && passes(m)) {
        missing.push(format!("a win in every one of {LEAST_PASSES} passes, {name}"));
    }
    let faster = |m: &Measured| m.kernels.iter().any(|k| k.kernel == crossover.kernel && k.ratio > 1.0);
    if !rows.iter().all(|m| faster(m)) {
        missing.push(format!("a ratio above 1 in the {name} table"));
    }
    if !rows.iter().all(|m| m.kernels.iter().all(|k| k.dispatched)) {
        missing.push(format!("a {name} trace in which each kernel is the one that ran"));
    }
    if !rows.iter().all(|m| m.kernels.iter().all(|k| !k.stages.is_empty())) {
        missing.push(format!("the {name} launch geometry of each kernel"));
    }
    missing
}

/// `plan` with `guard` at its end, as text: what a person wrote in it stays as it is.
///
/// # Errors
/// When the plan does not parse with the guard in it.
pub fn written(plan: &str, guard: &Guard) -> Result<String, Fault> {
    let text = format!(
        "{}\n\n[[guards]]\noperator = \"{}\"\nkernel = \"{}\"\nn = {}\nk = {}\nrows = [{}, {}]\nevidence = \"{}\"\n",
        plan.trim_end(),
        guard.operator,
        guard.kernel,
        guard.n,
        guard.k,
        guard.rows[0],
        guard.rows[1],
        guard.evidence
    );
    tare_model::PlanSpec::parse(&text)?;
    Ok(text)
}

/// What the study of whole requests that `id` closes says: whether it kept a candidate, and which kernels that ran.
///
/// # Errors
/// When the ledger has no such closing document, or its records cannot be read.
pub fn end_to_end(ledger: &Ledger, id: &str) -> Result<EndToEnd, Fault> {
    let unfit = |found: String| Fault::new(format!("study {id}"), "the closing document of a campaign", found);
    let shown = ledger.find(id).map_err(|e| unfit(e.to_string()))?;
    let Shown::Document(entry) = shown else { return Err(unfit("a record".into())) };
    let AnyDocument::Campaign(closing) = &entry.document else {
        return Err(unfit(format!("a document of kind {:?}", entry.document.kind())));
    };
    let rulings = match &closing.body.outcome {
        CampaignOutcome::Ruled(ruled) => &ruled.rulings[..],
        CampaignOutcome::Unruled { .. } => &[],
    };
    let kept = rulings.iter().find(|r| r.verdict == Verdict::Keep);
    let arm = kept.or(rulings.first()).map(|r| r.arm.as_str());
    let pair = closing.body.pairs.iter().find(|p| Some(p.arm.as_str()) == arm);
    let pair = pair.ok_or_else(|| unfit("one without a candidate that was ruled on".into()))?;
    let read = |id: &str| match ledger.find(id) {
        Ok(Shown::Record(entry)) => Ok(entry),
        Ok(Shown::Document(_)) => Err(unfit(format!("{id}, which is no record"))),
        Err(e) => Err(unfit(e.to_string())),
    };
    let (baseline, candidate) = (read(&pair.baseline.id)?, read(&pair.candidate.id)?);
    let stands = [&entry.state, &baseline.state, &candidate.state].iter().all(|s| **s == State::Valid);
    Ok(EndToEnd {
        id: id.to_string(),
        keeps: kept.is_some() && stands,
        shape: candidate.record.work.shape.clone(),
        class: candidate.record.arm.class.clone(),
        candidate: buckets(&candidate.record),
        baseline: buckets(&baseline.record),
    })
}

/// Buckets of a record by their rows, with the kernels that each runs.
fn buckets(record: &Record) -> Vec<(usize, Vec<String>)> {
    let all = record.plan.resolved["buckets"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = |b: &Value| b["bucket"]["rows"].as_u64().unwrap_or(0) as usize;
    let kernels = |b: &Value| b["kernels"].as_object().into_iter().flat_map(|k| k.keys().cloned()).collect();
    all.iter().map(|b| (rows(b), kernels(b))).collect()
}
