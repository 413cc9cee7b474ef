//! One arm of a campaign from end to end: warm up, clock the rounds, judge, write the record.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use tare_core::{Format, Reading};
use tare_engine::Engine;
use tare_evidence::gate::Judgement;
use tare_evidence::identity::{Arm, EosRule, PrefillLogits, Warmth, Work, prompt_ids_sha256};
use tare_evidence::provenance::Provenance;
use tare_evidence::record::{About, Clock, Measured, Memory, Method, Role, TimingContract};
use tare_evidence::samples::{Emitted, RowTokens, Samples, TimedRound, Timing};
use tare_evidence::{Draft, Record, Utc, canonical};
use tare_formats::Role as Weights;
use tare_model::CacheKind;
use tare_model::planner::Resolved;
use tare_ops::Op;
use tare_probe::{Ceilings, Host, Quietness, ResidentMemory};

use crate::build_info::BuildInfo;
use crate::clock::{self, Timed};
use crate::gate::{Gate, Run};
use crate::reference::ReferenceStore;
use crate::rig::{Rig, slow_paths};
use crate::thresholds::Thresholds;
use crate::work::ClockedRequest;
use crate::{LabError, floor, host};

/// What is weighed and where it is.
#[derive(Debug)]
pub struct Weighing<'a> {
    /// Model, plan and class.
    pub rig: &'a Rig<'a>,
    /// The request.
    pub request: &'a ClockedRequest,
    /// Timed rounds.
    pub rounds: usize,
    /// Untimed rounds before them.
    pub warmups: usize,
    /// Folder name of the study.
    pub study: &'a str,
    /// One line for a person.
    pub title: &'a str,
    /// The question.
    pub question: &'a str,
    /// The host and its ceilings.
    pub host: &'a Host,
    /// Measured ceilings.
    pub ceilings: &'a Ceilings,
    /// The binary.
    pub build: &'a BuildInfo,
    /// Kept reference scores.
    pub store: &'a ReferenceStore,
}

/// What a weighing is doing, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Packing and compiling.
    Loading,
    /// Warm-up `n`.
    WarmUp(usize),
    /// Round `n`.
    Round(usize),
    /// The reference is at work.
    Judging,
}

impl Weighing<'_> {
    /// Clocks the rounds and judges them. The record has no times when the gate failed.
    ///
    /// `go_on` is asked before every stage; false ends the weighing with nothing kept.
    ///
    /// # Errors
    /// When the engine or a judge fails, or `go_on` said no.
    pub fn run(&self, at: Utc, go_on: &mut dyn FnMut(Stage) -> bool) -> Result<Record, LabError> {
        let mut ask = |stage| if go_on(stage) { Ok(()) } else { Err(LabError::Interrupted) };
        ask(Stage::Loading)?;
        let mut engine = self.rig.engine()?;
        let mut warmups = Vec::with_capacity(self.warmups);
        for n in 0..self.warmups {
            ask(Stage::WarmUp(n))?;
            warmups.push(clock::clock(&mut engine, self.request)?);
        }
        let quiet = Quietness::observe(std::time::Duration::from_millis(200));
        let mut rounds = Vec::with_capacity(self.rounds);
        for n in 0..self.rounds {
            ask(Stage::Round(n))?;
            rounds.push(clock::clock(&mut engine, self.request)?);
        }
        let memory = self.memory(&engine, &rounds);
        ask(Stage::Judging)?;
        let judgement = self.judge(&mut engine, &warmups, &rounds)?;
        self.record(at, Finished { engine, warmups, rounds, memory, quiet, judgement })
    }

    fn judge(&self, engine: &mut Engine, warmups: &[Timed], rounds: &[Timed]) -> Result<Judgement, LabError> {
        let labels: Vec<String> = (0..warmups.len())
            .map(|n| format!("warm-up {n}"))
            .chain((0..rounds.len()).map(|n| format!("round {n}")))
            .collect();
        let runs: Vec<Run<'_>> = warmups
            .iter()
            .chain(rounds)
            .zip(&labels)
            .map(|(t, label)| Run { label, ids: &t.ids, logits: &t.logits })
            .collect();
        let thresholds = Thresholds::built_in()?;
        let gate = Gate { rig: self.rig, request: self.request, thresholds: &thresholds, store: self.store };
        Ok(gate.judge(engine, &runs)?.judge()?)
    }

    fn memory(&self, engine: &Engine, rounds: &[Timed]) -> Memory {
        let rss = ResidentMemory::read();
        let pool = engine.counters().pool;
        let token = engine.resolved().first().map(|r| r.plan.kv.token_bytes());
        let kv = token.map(|t| (pool.peak * pool.page_tokens * t) as u64);
        Memory {
            allocator_peak_bytes: largest(rounds.iter().map(|r| &r.allocator_peak_bytes)),
            anonymous_rss_bytes: rss.anonymous_bytes,
            file_rss_bytes: rss.file_bytes,
            device_bytes: Reading::unavailable("this backend has no memory of its own"),
            kv_bytes: kv.map_or_else(|| Reading::unavailable("no plan was compiled"), Reading::Available),
        }
    }

    fn record(&self, at: Utc, done: Finished) -> Result<Record, LabError> {
        let resolved = widest(&done.engine)?;
        let plan = plan_json(&done.engine, resolved)?;
        let notes = self.notes(&done, streamed_bytes(resolved));
        let threads = done.engine.info().threads;
        let work = self.work()?;
        let arm = self.arm(&done.engine, resolved, &canonical::digest(&plan))?;
        let demands = floor::demands(&resolved.plan, self.request);
        let round = |(n, t): (usize, Timed)| TimedRound { emitted: emitted(n, &t), timing: timing(&t) };
        let measured = Measured {
            samples: Samples {
                warmups: done.warmups.iter().enumerate().map(|(n, t)| emitted(n, t)).collect(),
                rounds: done.rounds.into_iter().enumerate().map(round).collect(),
            },
            ceilings: host::record_ceilings(self.ceilings, threads),
            demands,
        };
        Ok(Record::seal(Draft {
            about: About {
                role: Role::Screening,
                study: self.study.into(),
                campaign: format!("{}-{}", at.compact(), std::process::id()),
                created_at: at,
                title: self.title.into(),
                question: self.question.into(),
                notes,
            },
            work,
            arm,
            provenance: Provenance {
                host: host::describe(self.host, Some(&done.quiet))?,
                software: self.build.software.clone(),
                source: self.build.source.clone(),
                binary_sha256: self.build.binary_sha256.clone(),
                config: self.config(),
            },
            plan,
            method: self.method(),
            memory: done.memory,
            gate: done.judgement,
            measured,
        })?)
    }

    fn work(&self) -> Result<Work, LabError> {
        let r = self.request;
        let sampling = r.greedy();
        Ok(Work {
            weights_values_sha256: self.rig.model.values_digest()?,
            shape: self.rig.model.describe()?.name,
            prompt_ids_sha256: prompt_ids_sha256(&[r.input()])?,
            prompt_lengths: vec![r.prompt.len() as u32],
            output_lengths: vec![r.output_tokens as u32],
            prefill_logits: if r.all_prompt_logits { PrefillLogits::All } else { PrefillLogits::Last },
            rows: 1,
            sampling: json!({ "params": sampling.sampling, "seed": sampling.seed }),
            eos: EosRule::Ignore,
            depth: r.prefix.len() as u32,
            warmth: Warmth::Warm,
        })
    }

    fn arm(&self, engine: &Engine, resolved: &Resolved, plan_sha256: &str) -> Result<Arm, LabError> {
        let info = engine.info();
        let head: Format = self.rig.model.weight(Weights::Head)?.format();
        let description = self.rig.model.describe()?;
        let streamed = streamed_bytes(resolved);
        Ok(Arm {
            plan: resolved.plan.name.clone(),
            plan_sha256: plan_sha256.into(),
            binary_sha256: self.build.binary_sha256.clone(),
            class: resolved.plan.class.clone(),
            file_format: description.format.to_string(),
            file_sha256: self.rig.model.values_digest()?,
            head_format: head.to_string(),
            cache: format!("{:?}", self.rig.plan.cache).to_lowercase(),
            page_tokens: Reading::Available(engine.counters().pool.page_tokens as u32),
            threads: Reading::Available(info.threads as u32),
            isa: highest_level(engine),
            backend: info.name,
            streamed_bytes_per_token: Reading::Available(streamed),
            peer: None,
            settings: None,
            delay: None,
        })
    }

    fn config(&self) -> Value {
        json!({
            "model": self.rig.model.describe().map(|d| d.label().to_string()).unwrap_or_default(),
            "plan": self.rig.plan,
            "class": self.rig.class.name,
            "context": self.rig.context,
            "max_rows": self.rig.max_rows,
            "threads": self.rig.cpu.threads,
            "pin": self.rig.cpu.pin,
            "isa": self.rig.cpu.isa,
            "rounds": self.rounds,
            "warmups": self.warmups,
        })
    }

    /// What a reader of the figures must know.
    fn notes(&self, done: &Finished, streamed_bytes: u64) -> Vec<String> {
        let mut notes = vec![
            "ceilings were measured apart from the rounds; every sample of them is here".to_string(),
            "rounds follow each other in one process: they are no independent replicates".to_string(),
        ];
        if let Some((layers, head)) = done.rounds.first().map(|r| r.rows) {
            notes.push(format!("a round computes {layers} rows in each layer and {head} in the head"));
        }
        if self.rig.plan.cache == CacheKind::Concatenate {
            notes.push("memory.kv_bytes leaves out the copy that stands while a region grows".to_string());
        }
        notes.extend(slow_paths(&done.engine));
        notes.extend(host::doubts(self.ceilings, &done.quiet, streamed_bytes));
        notes
    }

    fn method(&self) -> Method {
        let clock = Clock {
            source: "CLOCK_MONOTONIC".into(),
            inside: vec![
                "handing the request to the engine (setup)".into(),
                "admission, cache set-up, every forward, sampling, id and logit on the host".into(),
                "release of the cache, in the step of the last token; what is left after it (release)".into(),
            ],
            outside: vec![
                "loading, packing, compiling, tokenizing".into(),
                "the prefix of a request at a depth".into(),
            ],
        };
        Method {
            timing_contract: TimingContract {
                device: Reading::unavailable("the CPU backend has no clock of its own"),
                request: Reading::Available(clock),
                wall: Reading::unavailable("the request clock alone was read"),
            },
            scheme: "solo".into(),
            order: vec![vec![self.rig.plan.name.clone()]; self.rounds],
            planned_rounds: self.rounds as u32,
            attempt: 1,
            label: None,
        }
    }
}

struct Finished {
    engine: Engine,
    warmups: Vec<Timed>,
    rounds: Vec<Timed>,
    memory: Memory,
    quiet: Quietness,
    judgement: Judgement,
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

/// The resolved plan of the widest bucket: the one that a prefill chunk runs.
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

fn emitted(round: usize, t: &Timed) -> Emitted {
    Emitted { round: round as u32, rows: vec![RowTokens { ids: t.ids.clone(), logits: t.logits.clone() }] }
}

fn timing(t: &Timed) -> Timing {
    Timing {
        setup_ns: t.setup_ns,
        prefill_ns: t.prefill_ns,
        token_ns: t.decode_ns.clone(),
        release_ns: t.release_ns,
        main_thread_cpu_ns: t.main_thread_cpu_ns.clone(),
        untimed: Vec::new(),
    }
}
