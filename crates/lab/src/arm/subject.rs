//! What runs the request of an arm: the engine of this build, or a peer behind its shim. The gate asks each what can be
//! asked of it.

use serde_json::json;
use std::path::Path;
use tare_core::Reading;
use tare_engine::Engine;
use tare_evidence::canonical;
use tare_evidence::floor::Demands;
use tare_evidence::gate::GateReport;
use tare_evidence::identity::Arm;
use tare_evidence::record::Memory;
use tare_formats::Role as Weights;
use tare_ops::Benched;

use crate::LabError;
use crate::arm::hold::Home;
use crate::clock::Timed;
use crate::engine_runner::EngineRunner;
use crate::facts::{self, ArmFacts};
use crate::floor::{self, FLOP_CEILING, INT8_CEILING, PRODUCT_CEILING};
use crate::gate::{Gate, Run, judge_starts};
use crate::host::Pages;
use crate::peers::PeerRunner;
use crate::rig::Rig;
use crate::runner::Runner;
use crate::work::ClockedRequest;

/// An engine or a peer.
#[derive(Debug)]
pub(super) enum Subject {
    /// The engine of this build.
    Engine(Box<EngineRunner<Engine>>),
    /// Another engine.
    Peer(Box<PeerRunner>),
}

impl Subject {
    /// The engine that `rig` makes, or the peer on the same file.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn new(peer: Option<&str>, rig: &Rig<'_>, model: &str, home: &Path) -> Result<Self, LabError> {
        Ok(match peer {
            None => Self::Engine(Box::new(EngineRunner::new(rig.engine()?))),
            Some(name) => {
                let peer =
                    PeerRunner::open(name, home, Path::new(model), (rig.cpu.threads, rig.context), rig.sequences)?;
                Self::Peer(Box::new(peer))
            }
        })
    }

    /// What is driven through a request.
    pub(super) fn runner(&mut self) -> &mut dyn Runner {
        match self {
            Self::Engine(e) => &mut **e,
            Self::Peer(p) => &mut **p,
        }
    }

    /// What it says about itself.
    ///
    /// # Errors
    /// When the model cannot be read, or the peer does not declare its class.
    pub(super) fn facts(
        &mut self,
        rig: &Rig<'_>,
        requests: &[ClockedRequest],
        home: &Home,
    ) -> Result<ArmFacts, LabError> {
        match self {
            Self::Engine(e) => ArmFacts::of_engine(rig, e.engine(), requests, &home.build),
            Self::Peer(p) => of_peer(p, rig, requests, home),
        }
    }

    /// Where memory went in this process, and in the peer's.
    pub(super) fn memory(&mut self, timed: &Timed) -> Memory {
        match self {
            // The process was started for this arm.
            Self::Engine(e) => facts::memory(e.engine(), std::slice::from_ref(timed), &Reading::Available(0)),
            Self::Peer(p) => {
                let whole = match p.memory() {
                    Reading::Available(bytes) => format!("the peer tells its resident memory in one: {bytes} bytes"),
                    Reading::Unavailable { why } => why,
                };
                let none = || Reading::unavailable(whole.as_str());
                Memory {
                    allocator_peak_bytes: timed.allocator_peak_bytes.clone(),
                    anonymous_rss_bytes: none(),
                    file_rss_bytes: none(),
                    device_bytes: none(),
                    kv_bytes: none(),
                    peak_rss_bytes: Some(none()),
                }
            }
        }
    }

    /// How its memory lies in the pages of the host; a peer's is not looked at.
    pub(super) fn pages(&mut self) -> Option<Reading<Pages>> {
        match self {
            Self::Engine(e) => Some(e.engine().pages()),
            Self::Peer(_) => None,
        }
    }

    /// How often threads of it sat out; those of a peer are not looked at.
    pub(super) fn benched(&mut self) -> Option<Reading<Benched>> {
        match self {
            Self::Engine(e) => Some(e.engine().benched()),
            Self::Peer(_) => None,
        }
    }

    /// Judges the timed request and the warm-ups before it; `full` compares cached keys and values and launches too, where
    /// the engine shows them.
    ///
    /// # Errors
    /// When a judge cannot be made or fails.
    pub(super) fn judge(
        &mut self,
        gate: &Gate<'_>,
        run: Run<'_>,
        warmups: &[Run<'_>],
        full: bool,
    ) -> Result<GateReport, LabError> {
        match self {
            Self::Engine(e) => {
                let mut report = gate.judge_tokens(&[run])?;
                let limit = gate.thresholds.emulation(gate.rig.class).logit;
                judge_starts(warmups, &run, limit, &mut report);
                if full {
                    gate.judge_cache(e.engine(), &run, &mut report)?;
                    gate.judge_operators(e.engine(), &run, &mut report)?;
                }
                Ok(report)
            }
            Self::Peer(p) => {
                let class = p.class()?;
                let mut report = gate.judge_emitted(class, &[run])?;
                judge_starts(warmups, &run, gate.thresholds.accuracy(class)?.logit, &mut report);
                Ok(report)
            }
        }
    }
}

/// The facts of a peer: what it declares, and its log lines where tare has a plan.
fn of_peer(peer: &PeerRunner, rig: &Rig<'_>, requests: &[ClockedRequest], home: &Home) -> Result<ArmFacts, LabError> {
    let identity = peer.identity();
    let plan = json!({ "peer": identity.name, "proof": peer.proof() });
    let untold = || Reading::unavailable("the peer does not say");
    let arm = Arm {
        plan: identity.name.clone(),
        plan_sha256: canonical::digest(&plan),
        binary_sha256: home.build.binary_sha256.clone(),
        class: peer.class()?.to_string(),
        file_format: rig.model.describe()?.format.to_string(),
        file_sha256: rig.model.values_digest()?,
        head_format: rig.model.weight(Weights::Head)?.format().to_string(),
        cache: "the peer's own".to_string(),
        page_tokens: untold(),
        threads: Reading::Available(peer.threads() as u32),
        isa: "the peer's own".to_string(),
        backend: identity.name.clone(),
        streamed_bytes_per_token: peer.streamed_bytes(),
        peer: Some(identity),
        settings: None,
        delay: None,
    };
    Ok(ArmFacts {
        work: facts::work(rig, requests)?,
        arm,
        plan,
        demands: demands(peer, rig, requests),
        config: json!({ "model": rig.model.describe()?.label(), "context": rig.context }),
        build: home.build.clone(),
        // The ceilings of a round are those of what every arm might use.
        threads: rig.cpu.threads,
        streamed_bytes: peer.streamed_bytes(),
        notes: peer.reservations(),
    })
}

/// What the request of a peer must move and compute, from what it says of its matrices and its cache.
fn demands(peer: &PeerRunner, rig: &Rig<'_>, requests: &[ClockedRequest]) -> Demands {
    let none = |why: &str| Demands { prefill: Reading::unavailable(why), decode: Reading::unavailable(why) };
    let weight_bytes = match peer.streamed_bytes() {
        Reading::Available(bytes) => bytes,
        Reading::Unavailable { why } => return none(&format!("bytes of its matrices: {why}")),
    };
    let Some(declared) = peer.declared() else { return none("the peer does not declare its class") };
    let Some(kv_bytes) = declared.kv_bytes() else {
        return none(&format!("elements of {} in its cache have no whole bytes", declared.kv));
    };
    let flop_ceiling = match declared.activation_bits {
        8 => INT8_CEILING,
        16 => PRODUCT_CEILING,
        _ => FLOP_CEILING,
    };
    floor::demands_of_shape(rig.model.config(), requests, (weight_bytes, kv_bytes), flop_ceiling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build_info::BuildInfo;
    use crate::peers::runner::{Limits, Load};
    use crate::work::Lengths;
    use std::process::Command;
    use tare_cpu::{CpuConfig, detect_isa};
    use tare_evidence::provenance::{Software, Source};
    use tare_model::{Model, PlanSpec};
    use tare_ops::Class;

    fn home(folder: &Path) -> Home {
        let software = Software {
            tare: "0".into(),
            rustc: Reading::unavailable("a test"),
            target: "here".into(),
            profile: "test".into(),
        };
        let unknown = || Reading::unavailable("a test");
        let source = Source { tree_sha256: unknown(), commit: unknown(), dirty: Reading::unavailable("a test") };
        let build = BuildInfo { software, source, binary_sha256: "0".into() };
        Home { folder: folder.into(), references: folder.into(), kernels: folder.into(), build, threads: 4 }
    }

    #[test]
    fn a_peer_says_the_threads_that_it_ran_on_and_what_it_ran_without() {
        let folder = tempfile::tempdir().unwrap();
        let answers = folder.path().join("answers.json");
        std::fs::write(&answers, r#"{"ids":[1],"logits":[1.0],"vocab":512}"#).unwrap();
        let shim = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/shim.py");
        let mut command = Command::new("python3");
        command.arg(shim).arg(&answers).arg("none");
        let load =
            Load { model: "model".into(), threads: 2, context: 32, sequences: 1, settings: serde_json::Map::new() };
        let peer = PeerRunner::start("list", command, &load, Limits::default()).unwrap();

        let model = Model::open("synthetic:qwen3-tiny?format=f32").unwrap();
        let lengths = Lengths { depth: 0, prompt_tokens: 3, output_tokens: 2 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        let rig = Rig {
            model: &model,
            on: crate::On::Cpu,
            cpu: CpuConfig { threads: 4, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find("paged").unwrap(),
            class: Class::by_name("f32").unwrap(),
            sequences: 1,
            context: request.total_tokens(),
            max_rows: 16,
            delay: None,
        };
        let facts = of_peer(&peer, &rig, std::slice::from_ref(&request), &home(folder.path())).unwrap();
        assert_eq!(facts.arm.threads, Reading::Available(2), "tuning chose half of the 4 that it was offered");
        assert!(facts.notes.iter().any(|n| n.contains("not tuned here")), "{:?}", facts.notes);
        let Reading::Unavailable { why } = &facts.demands.decode else { panic!("{:?}", facts.demands) };
        assert!(why.contains("list does not say"), "its bytes are not known: {why}");
    }
}
