//! One arm of a campaign from end to end: warm up, clock the rounds, judge, write the record.

use serde_json::json;
use tare_core::Reading;
use tare_cuda::nvml::DeviceState;
use tare_engine::Engine;
use tare_evidence::gate::Judgement;
use tare_evidence::provenance::Provenance;
use tare_evidence::record::{About, Clock, Measured, Memory, Method, Role, Startup, TimingContract};
use tare_evidence::samples::{Samples, TimedRound};
use tare_evidence::{Draft, Record, Utc};
use tare_ops::Benched;
use tare_probe::clock::process_age_ns;
use tare_probe::{Ceilings, Host, Quietness, ResidentMemory};

use crate::build_info::BuildInfo;
use crate::clock::{self, Timed};
use crate::facts::{self, ArmFacts};
use crate::gate::{Gate, Run};
use crate::reference::ReferenceStore;
use crate::rig::Rig;
use crate::thresholds::Thresholds;
use crate::work::ClockedRequest;
use crate::{LabError, On, host};

/// What is weighed and where it is.
#[derive(Debug)]
pub struct Weighing<'a> {
    /// Model, plan and class.
    pub rig: &'a Rig<'a>,
    /// The request of each sequence: one, or several that run together.
    pub requests: &'a [ClockedRequest],
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
    /// What else this process did before, for which its start until the first token is no start of this model.
    pub busy_before: Option<&'a str>,
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
        let before = ResidentMemory::read().peak_bytes;
        let mut engine = self.rig.engine()?;
        let ready = process_age_ns();
        let mut warmups = Vec::with_capacity(self.warmups);
        for n in 0..self.warmups {
            ask(Stage::WarmUp(n))?;
            warmups.push(clock::clock_together(&mut engine, self.requests)?);
        }
        let quiet = Quietness::observe(std::time::Duration::from_millis(200));
        let mut rounds = Vec::with_capacity(self.rounds);
        for n in 0..self.rounds {
            ask(Stage::Round(n))?;
            rounds.push(clock::clock_together(&mut engine, self.requests)?);
        }
        let device: Vec<_> = self.rig.on.device_state().into_iter().collect();
        let (memory, pages) = (facts::memory(&engine, &rounds, &before), engine.pages());
        let benched = engine.benched();
        ask(Stage::Judging)?;
        let judgement = self.judge(&mut engine, &warmups, &rounds)?;
        let startup = self.startup(ready, warmups.first().or(rounds.first()));
        self.record(at, Finished { startup, engine, warmups, rounds, device, memory, pages, benched, quiet, judgement })
    }

    fn judge(&self, engine: &mut Engine, warmups: &[Timed], rounds: &[Timed]) -> Result<Judgement, LabError> {
        let labels: Vec<String> = (0..warmups.len())
            .map(|n| format!("warm-up {n}"))
            .chain((0..rounds.len()).map(|n| format!("round {n}")))
            .collect();
        let runs: Vec<Run<'_>> =
            warmups.iter().chain(rounds).zip(&labels).map(|(t, label)| Run { label, rows: &t.tokens }).collect();
        let thresholds = Thresholds::built_in()?;
        let gate = Gate { rig: self.rig, requests: self.requests, thresholds: &thresholds, store: self.store };
        Ok(gate.judge(engine, &runs)?.judge()?)
    }

    /// The start of this process until it was `ready`, and until the first token of `first`, with which it went on at once.
    fn startup(&self, ready: Reading<u64>, first: Option<&Timed>) -> Startup {
        let prefix = self.requests.first().is_some_and(|r| !r.prefix.is_empty());
        let ready = match self.busy_before {
            Some(why) => Reading::unavailable(why),
            None if prefix => Reading::unavailable("the request begins at a depth, and its prefix is on no clock"),
            None => ready,
        };
        let to_first = first.map_or(0, |t| t.setup_ns + t.prefill_ns);
        Startup { first_token_ns: ready.clone().map(|ns| ns + to_first), ready_ns: ready }
    }

    fn record(&self, at: Utc, done: Finished) -> Result<Record, LabError> {
        let facts = ArmFacts::of_engine(self.rig, &done.engine, self.requests, self.build)?;
        let notes = self.notes(&done, &facts);
        let round = |(n, t): (usize, &Timed)| TimedRound { emitted: t.emitted(n), timing: t.timing() };
        let measured = Measured {
            samples: Samples {
                warmups: done.warmups.iter().enumerate().map(|(n, t)| t.emitted(n)).collect(),
                rounds: done.rounds.iter().enumerate().map(round).collect(),
            },
            ceilings: match &self.rig.on {
                On::Cpu => host::record_ceilings(self.ceilings, facts.threads),
                On::Cuda(config) => host::device_ceilings(&Reading::from(tare_cuda::ceilings::measure(config))),
            },
            demands: facts.demands,
            startup: Some(done.startup),
        };
        let (pages, benched) = (std::slice::from_ref(&done.pages), std::slice::from_ref(&done.benched));
        let moment = host::Moment { quiet: Some(&done.quiet), device: &done.device, pages, benched };
        let mut config = facts.config;
        config["rounds"] = json!(self.rounds);
        config["warmups"] = json!(self.warmups);
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
            work: facts.work,
            arm: facts.arm,
            provenance: Provenance {
                host: host::describe(self.host, moment)?,
                software: self.build.software.clone(),
                source: self.build.source.clone(),
                binary_sha256: self.build.binary_sha256.clone(),
                config,
            },
            plan: facts.plan,
            method: Method {
                timing_contract: timing_contract(done.rounds.iter().all(|t| t.device.is_some())),
                scheme: "solo".into(),
                order: vec![vec![self.rig.plan.name.clone()]; self.rounds],
                planned_rounds: self.rounds as u32,
                attempt: 1,
                label: None,
            },
            memory: done.memory,
            gate: done.judgement,
            measured,
        })?)
    }

    /// What a reader of the figures must know.
    fn notes(&self, done: &Finished, facts: &ArmFacts) -> Vec<String> {
        let mut notes = vec![
            "ceilings were measured apart from the rounds; every sample of them is here".to_string(),
            "rounds follow each other in one process: they are no independent replicates".to_string(),
        ];
        if let Some(Reading::Available((layers, head))) = done.rounds.first().map(|r| &r.rows) {
            notes.push(format!("a round computes {layers} rows in each layer and {head} in the head"));
        }
        notes.extend(facts.notes.iter().cloned());
        let streamed = facts.streamed_bytes.available().copied().unwrap_or(u64::MAX);
        match self.rig.on {
            On::Cpu => {
                notes.extend(host::doubts(self.ceilings, &done.quiet, streamed));
                notes.extend(host::short_handed(std::slice::from_ref(&done.benched)));
            }
            On::Cuda(_) => notes.push("the judge ran on the processor".to_string()),
        }
        notes
    }
}

/// The three clocks of a request, and what each includes; that of a device where it was read.
pub(crate) fn timing_contract(device: bool) -> TimingContract {
    let on_device = || Clock {
        source: "events of the device, before a step's first kernel and after its last".into(),
        inside: vec!["the kernels of every step and the gaps between them".into()],
        outside: vec!["the host, and the copies of what changes and of the answers".into()],
    };
    let clock = Clock {
        source: "CLOCK_MONOTONIC".into(),
        inside: vec![
            "handing the request to the engine (setup)".into(),
            "admission, cache set-up, every forward, sampling, id and logit on the host".into(),
            "release of the cache, in the step of the last token; what is left after it (release)".into(),
        ],
        outside: vec!["loading, packing, compiling, tokenizing".into(), "the prefix of a request at a depth".into()],
    };
    TimingContract {
        device: if device {
            Reading::Available(on_device())
        } else {
            Reading::unavailable("no clock of a device was read")
        },
        request: Reading::Available(clock),
        wall: Reading::unavailable("the request clock alone was read"),
    }
}

struct Finished {
    startup: Startup,
    engine: Engine,
    warmups: Vec<Timed>,
    rounds: Vec<Timed>,
    device: Vec<Reading<DeviceState>>,
    memory: Memory,
    pages: Reading<host::Pages>,
    benched: Reading<Benched>,
    quiet: Quietness,
    judgement: Judgement,
}
