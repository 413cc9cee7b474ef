//! What an arm process holds: the model, the engine or the peer, the requests that it ran, and the gate.

use std::path::{Path, PathBuf};
use tare_core::{Fault, Reading};
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::nvml::DeviceState;
use tare_evidence::gate::{GateReport, Judgement};
use tare_evidence::record::Memory;
use tare_evidence::samples::RowTokens;
use tare_model::{CacheKind, Model, PlanSpec};
use tare_ops::{Class, Isa};

use crate::arm::protocol::{Judged, Load};
use crate::arm::subject::Subject;
use crate::build_info::BuildInfo;
use crate::clock::{Baton, Timed, Turns};
use crate::delay::Delay;
use crate::facts::ArmFacts;
use crate::gate::{Gate, Run};
use crate::peers::entry;
use crate::reference::ReferenceStore;
use crate::rig::Rig;
use crate::study::ArmSpec;
use crate::thresholds::Thresholds;
use crate::work::ClockedRequest;
use crate::{LabError, On};

/// Where an arm process finds what lies outside of it.
#[derive(Clone, Debug)]
pub struct Home {
    /// The user's data folder, where peers are installed.
    pub folder: PathBuf,
    /// Kept reference scores.
    pub references: PathBuf,
    /// Kernels compiled for a device.
    pub kernels: PathBuf,
    /// What this process is.
    pub build: BuildInfo,
    /// Threads when an arm does not say.
    pub threads: usize,
}

/// An arm that is ready.
#[derive(Debug)]
pub struct Held<'m> {
    rig: Rig<'m>,
    subject: Subject,
    requests: Vec<ClockedRequest>,
    store: ReferenceStore,
    warmups: Vec<Timed>,
    live: Option<Turns>,
    done: Option<Timed>,
    /// What the device did right after the timed request.
    device: Option<Reading<DeviceState>>,
    facts: ArmFacts,
}

/// The rig that an arm asks for on this host, with `threads` when it names none; `kernels` is the folder of kernels that
/// were compiled for a device.
///
/// # Errors
/// When the plan, the class, the backend, the level or the context does not suit the model, the peer or the host.
pub fn rig<'m>(
    arm: &ArmSpec,
    model: &'m Model,
    requests: &[ClockedRequest],
    (threads, kernels): (usize, &Path),
) -> Result<Rig<'m>, LabError> {
    if arm.peer.is_some() && arm.delay.is_some() {
        return Err(Fault::new("delay", "nothing: no delay can be planted in a peer", "a delay").into());
    }
    let on = On::named(arm.backend(), kernels)?;
    if let Some(peer) = arm.peer.as_deref().map(entry).transpose()?.filter(|peer| peer.backend != on.name()) {
        let expected = format!("{}, on which {} computes", peer.backend, peer.name);
        return Err(Fault::new("backend", expected, on.name()).into());
    }
    if arm.keep_workers && (arm.peer.is_some() || on != On::Cpu) {
        let expected = "nothing: only tare on the processor has workers that may sit out";
        return Err(Fault::new("keep_workers", expected, "true").into());
    }
    let limit = model.config().max_positions;
    let context = requests.iter().map(ClockedRequest::total_tokens).max().unwrap_or(0);
    if context > limit {
        let expected = format!("at most {limit} tokens, which the model was trained for");
        return Err(Fault::new("work", expected, context.to_string()).into());
    }
    let plan = PlanSpec::find(arm.plan.as_deref().unwrap_or(PlanSpec::DEFAULT))?;
    if requests.len() > 1 && plan.cache == CacheKind::Recompute {
        let expected = format!("a plan with a cache for {} sequences together", requests.len());
        return Err(Fault::new("plan", expected, plan.name).into());
    }
    // A peer's own class is read out of it; the rig is that of its judge.
    let class = if arm.peer.is_some() { Class::by_name("f32")? } else { on.class(model, arm.class.as_deref())? };
    Ok(Rig {
        model,
        max_rows: on.max_rows(),
        on,
        cpu: CpuConfig {
            threads: arm.threads.unwrap_or(threads),
            isa: levels(arm.isa.as_deref())?,
            pin: true,
            keep_workers: arm.keep_workers,
        },
        plan,
        class,
        sequences: requests.len(),
        context,
        delay: arm.delay.as_ref().map(planted).transpose()?,
    })
}

/// A delay by the name of its group.
fn planted(delay: &tare_evidence::identity::Delay) -> Result<Delay, Fault> {
    Ok(Delay { group: delay.group.parse()?, percent: delay.percent })
}

/// The levels up to the one that is named; all that the host has when none is.
fn levels(name: Option<&str>) -> Result<tare_ops::IsaSet, Fault> {
    let have = detect_isa();
    let Some(name) = name else { return Ok(have) };
    let level: Option<Isa> = have.levels().iter().copied().find(|l| l.name() == name);
    let names: Vec<&str> = have.levels().iter().map(|l| l.name()).collect();
    let level = level
        .ok_or_else(|| Fault::new("isa", format!("one of {} (this host)", names.join(", ")), format!("`{name}`")))?;
    Ok(have.up_to(level))
}

impl<'m> Held<'m> {
    /// Packs, compiles and describes.
    ///
    /// # Errors
    /// When the arm cannot be made.
    pub fn new(load: &Load, model: &'m Model, home: &Home) -> Result<Self, LabError> {
        let rig = rig(&load.arm, model, &load.request, (home.threads, &home.kernels))?;
        let mut subject = Subject::new(load.arm.peer.as_deref(), &rig, &load.model, &home.folder)?;
        let facts = subject.facts(&rig, &load.request, home)?;
        Ok(Self {
            rig,
            subject,
            requests: load.request.clone(),
            store: ReferenceStore::at(home.references.clone(), &home.build.binary_sha256),
            warmups: Vec::new(),
            live: None,
            done: None,
            device: None,
            facts,
        })
    }

    /// What it says about itself.
    pub fn facts(&self) -> &ArmFacts {
        &self.facts
    }

    /// Runs the prompt and draws `tokens`.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn warm_up(&mut self, tokens: usize) -> Result<(), LabError> {
        let shorter = |r: &ClockedRequest| ClockedRequest { output_tokens: tokens, ..r.clone() };
        let requests: Vec<ClockedRequest> = self.requests.iter().map(shorter).collect();
        let mut run = Turns::begin(self.subject.runner(), &requests)?;
        run.decode(self.subject.runner(), tokens - 1, Baton::Kept)?;
        self.warmups.push(run.end(self.subject.runner())?);
        Ok(())
    }

    /// The prompt and the first token of the timed request.
    ///
    /// # Errors
    /// When the engine fails, or a request was run already: a process times one.
    pub fn prefill(&mut self) -> Result<(), LabError> {
        if self.live.is_some() || self.done.is_some() {
            return Err(LabError::Request("was run already: an arm process times one request".to_string()));
        }
        self.live = Some(Turns::begin(self.subject.runner(), &self.requests)?);
        Ok(())
    }

    /// One turn.
    ///
    /// # Errors
    /// When there is no request under way or the engine fails.
    pub fn decode(&mut self, tokens: usize, baton: Baton) -> Result<(), LabError> {
        let live = self.live.as_mut().ok_or_else(no_request)?;
        live.decode(self.subject.runner(), tokens, baton)
    }

    /// Ends the timed request.
    ///
    /// # Errors
    /// As [`Held::decode`].
    pub fn finish(&mut self) -> Result<(), LabError> {
        let live = self.live.take().ok_or_else(no_request)?;
        self.done = Some(live.end(self.subject.runner())?);
        self.device = self.rig.on.device_state();
        Ok(())
    }

    /// No thread of this process keeps a processor busy after it.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    pub fn rest(&mut self) -> Result<(), LabError> {
        self.subject.runner().rest()
    }

    /// Judges the warm-ups and the timed request; only a passed gate lets its times go.
    ///
    /// # Errors
    /// When there is no finished request or a judge fails.
    pub fn judge(&mut self, full: bool) -> Result<Judged, LabError> {
        let timed = self.done.take().ok_or_else(no_request)?;
        // Before the judges take memory of their own.
        let (memory, pages) = (self.subject.memory(&timed), self.subject.pages());
        let benched = self.subject.benched();
        let report = self.report(&timed, full)?;
        Ok(Judged { device: self.device.take(), pages, benched, ..release(report, timed, memory)? })
    }

    fn report(&mut self, timed: &Timed, full: bool) -> Result<GateReport, LabError> {
        let thresholds = Thresholds::built_in()?;
        let gate = Gate { rig: &self.rig, requests: &self.requests, thresholds: &thresholds, store: &self.store };
        let run = Run { label: "round", rows: &timed.tokens };
        let labels: Vec<String> = (0..self.warmups.len()).map(|n| format!("warm-up {n}")).collect();
        let warmups: Vec<Run<'_>> =
            self.warmups.iter().zip(&labels).map(|(t, label)| Run { label, rows: &t.tokens }).collect();
        self.subject.judge(&gate, run, &warmups, full)
    }
}

/// What may leave the process: times only behind a passed gate.
fn release(report: GateReport, timed: Timed, memory: Memory) -> Result<Judged, Fault> {
    let tokens = timed.tokens.clone();
    let rows = timed.rows.available().copied();
    Ok(match report.judge()? {
        Judgement::Passed(gate) => {
            let timing = Some(timed.timing());
            Judged {
                gate: gate.report().clone(),
                tokens,
                timing,
                memory,
                rows,
                device: None,
                pages: None,
                benched: None,
            }
        }
        Judgement::Failed(gate) => {
            // A line has no way to say that a logit is no number, or which is missing; the misses say it.
            let whole = |row: &RowTokens| row.logits.len() == row.ids.len() && row.logits.iter().all(|l| l.is_finite());
            let kept = |row: RowTokens| if whole(&row) { row } else { RowTokens { logits: Vec::new(), ..row } };
            let tokens = tokens.into_iter().map(kept).collect();
            Judged {
                gate: gate.report().clone(),
                tokens,
                timing: None,
                memory,
                rows,
                device: None,
                pages: None,
                benched: None,
            }
        }
    })
}

fn no_request() -> LabError {
    LabError::Request("is not there: prefill, decode, finish and judge come in this order".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::protocol::{Answer, line, parse};
    use crate::work::Lengths;
    use tare_evidence::gate::{Check, Miss};

    #[test]
    fn an_arm_runs_where_it_says_or_is_refused() {
        let model = Model::open("synthetic:qwen3-tiny?format=f32").unwrap();
        let lengths = Lengths { depth: 0, prompt_tokens: 3, output_tokens: 2 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        let of = |arm: &ArmSpec| {
            rig(arm, &model, std::slice::from_ref(&request), (2, Path::new("kernels"))).map(|rig| rig.on)
        };
        let named = |backend: Option<&str>, peer: Option<&str>| ArmSpec {
            backend: backend.map(str::to_string),
            peer: peer.map(str::to_string),
            ..ArmSpec::default()
        };
        assert_eq!(of(&named(None, None)).unwrap(), On::Cpu);
        let On::Cuda(config) = of(&named(Some("cuda"), None)).unwrap() else { panic!("on the processor") };
        assert_eq!(config.cache.as_deref(), Some(Path::new("kernels")));
        assert!(of(&named(Some("cuda"), Some("llama.cpp-cuda"))).is_ok());
        let elsewhere = of(&named(None, Some("llama.cpp-cuda"))).unwrap_err().to_string();
        assert!(elsewhere.contains("cuda, on which llama.cpp-cuda computes, found cpu"), "{elsewhere}");
        assert!(of(&named(Some("gpu"), None)).unwrap_err().to_string().contains("cpu or cuda"));
        let kept = |backend, peer| {
            rig(
                &ArmSpec { keep_workers: true, ..named(backend, peer) },
                &model,
                std::slice::from_ref(&request),
                (2, Path::new("kernels")),
            )
        };
        assert!(kept(None, None).unwrap().cpu.keep_workers);
        for (backend, peer) in [(Some("cuda"), None), (None, Some("llama.cpp"))] {
            let said = kept(backend, peer).unwrap_err().to_string();
            assert!(said.contains("keep_workers: expected nothing"), "{said}");
        }
        let delay = |group: &str| Some(tare_evidence::identity::Delay { group: group.into(), percent: 5.0 });
        assert!(of(&ArmSpec { delay: delay("down"), ..named(Some("cuda"), None) }).is_ok());
        let said = of(&ArmSpec { delay: delay("nowhere"), ..named(Some("cuda"), None) }).unwrap_err().to_string();
        assert!(said.contains("one of embedding") && said.contains("`nowhere`"), "{said}");
    }

    /// What leaves for a request whose gate has these misses.
    fn left(logits: &[f32], misses: usize) -> Judged {
        let none = || Reading::unavailable("a test");
        let timed = Timed {
            setup_ns: 1,
            prefill_ns: 1,
            decode_ns: vec![1],
            untimed: Vec::new(),
            release_ns: 1,
            main_thread_cpu_ns: none(),
            allocator_peak_bytes: none(),
            tokens: vec![RowTokens { ids: vec![1, 2], logits: logits.to_vec() }],
            rows: Reading::unavailable("a test"),
            device: None,
        };
        let miss = Miss { check: "x".into(), at: "token 1".into(), expected: "1".into(), found: "NaN".into() };
        let check = Check { name: "x".into(), compared: 2, max_error: 0.0, limit: 0.0 };
        let report = GateReport { thresholds_version: "1".into(), checks: vec![check], misses: vec![miss; misses] };
        let memory = Memory {
            allocator_peak_bytes: none(),
            anonymous_rss_bytes: none(),
            file_rss_bytes: none(),
            device_bytes: none(),
            kv_bytes: none(),
            peak_rss_bytes: Some(none()),
        };
        release(report, timed, memory).unwrap()
    }

    #[test]
    fn misses_cross_the_pipe_without_times_even_where_a_logit_is_no_number() {
        assert!(left(&[0.5, 1.5], 0).timing.is_some());
        for (logits, kept) in [(&[0.5, 1.5][..], 2), (&[0.5, f32::NAN], 0), (&[f32::INFINITY, 1.5], 0), (&[0.5], 0)] {
            let judged = left(logits, 1);
            assert_eq!(
                (judged.timing.is_none(), judged.tokens[0].logits.len(), judged.tokens[0].ids.len()),
                (true, kept, 2)
            );
            let text = line(&Answer::Judged(Box::new(judged.clone()))).unwrap();
            assert_eq!(parse::<Answer>(&text).unwrap(), Answer::Judged(Box::new(judged)));
        }
    }
}
