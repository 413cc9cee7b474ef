//! The part of the loop that takes steps apart: replay of both phases, then the worth of the groups on top.

use tare_core::Fault;
use tare_evidence::canonical;
use tare_probe::{Ceilings, Host};

use super::rank::{Kept, Ranking, RequestTime};
use crate::LabError;
use crate::groups::Group;
use crate::replay::{Doing, Replay, Replaying, Warmth};
use crate::rig::Rig;
use crate::sensitivity::{Probe, Sensitivity};
use crate::specimen::{Phase, Specimen};
use crate::work::ClockedRequest;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Turns of a decode replay.
    pub decode_turns: usize,
    /// Turns of a prefill replay.
    pub prefill_turns: usize,
    /// Blocks of a probe into a decode step.
    pub decode_blocks: usize,
    /// Blocks of a probe into a prefill step.
    pub prefill_blocks: usize,
    /// So many groups from the top are probed.
    pub probed: usize,
}

impl Effort {
    /// About two minutes for a 0.6B model on two cores; the fewest blocks with which there is an interval, where a step
    /// is long.
    pub const FULL: Self = Self { decode_turns: 30, prefill_turns: 5, decode_blocks: 30, prefill_blocks: 6, probed: 3 };

    fn turns(&self, phase: Phase) -> usize {
        if phase == Phase::Decode { self.decode_turns } else { self.prefill_turns }
    }

    fn blocks(&self, phase: Phase) -> usize {
        if phase == Phase::Decode { self.decode_blocks } else { self.prefill_blocks }
    }
}

/// Output tokens with which a request has room for the tokens that a specimen may still draw.
const ROOM: usize = 5;

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Looking<'a> {
    /// Model, plan and class. Its context must take the request.
    pub rig: &'a Rig<'a>,
    /// The request that was clocked.
    pub request: &'a ClockedRequest,
    /// Median time of its prefill.
    pub prefill_ns: f64,
    /// Median time of its decode steps together.
    pub decode_ns: f64,
    /// For caches and memory.
    pub host: &'a Host,
    /// For the floors.
    pub ceilings: &'a Ceilings,
    /// How much is measured.
    pub effort: Effort,
}

/// What is being done, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A replay.
    Replay(Phase, Doing),
    /// Block `n` of a probe.
    Probe(Phase, Group, usize),
}

/// What was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// Of both phases.
    pub replays: Vec<Kept<Replay>>,
    /// Of the groups on top.
    pub probes: Vec<Kept<Sensitivity>>,
    /// The conclusion.
    pub ranking: Ranking,
}

impl Looking<'_> {
    /// Replays both phases and probes the groups on top until the first ones are all probed.
    ///
    /// # Errors
    /// When a replay or probe fails, or `go_on` said no.
    pub fn run(&self, go_on: &mut dyn FnMut(At) -> bool) -> Result<Looked, LabError> {
        // Room for tokens that are never drawn, so that the cache outlives the step that is looked at.
        let rig =
            &Rig { context: self.rig.context + ROOM.saturating_sub(self.request.output_tokens), ..self.rig.clone() };
        let specimens = [
            (Phase::Prefill, Specimen::take(rig, self.request, Phase::Prefill)?),
            (Phase::Decode, Specimen::take(rig, &self.midway(), Phase::Decode)?),
        ];
        let mut replays = Vec::new();
        for (phase, specimen) in &specimens {
            let of = Replaying {
                rig,
                request: self.request,
                phase: *phase,
                iterations: self.effort.turns(*phase),
                warmth: Warmth::Warm,
                host: self.host,
                ceilings: self.ceilings,
            };
            let document = of.of(specimen, &mut |doing| go_on(At::Replay(*phase, doing)))?;
            replays.push(Kept { id: id_of(&document)?, document });
        }
        let request = self.request_time();
        let mut probes = Vec::new();
        let mut ranking = Ranking::new(request, &replays, &probes);
        while let Some(top) = ranking.unprobed(self.effort.probed) {
            let (phase, group) = (top.phase, top.group);
            let probe = Probe { group, group_ns: top.measured_ns, blocks: self.effort.blocks(phase), seed: 0 };
            let specimen = &specimens[usize::from(phase == Phase::Decode)].1;
            let document = probe.run(specimen, phase, &mut |n| go_on(At::Probe(phase, group, n)))?;
            probes.push(Kept { id: id_of(&document)?, document });
            ranking = Ranking::new(request, &replays, &probes);
        }
        Ok(Looked { replays, probes, ranking })
    }

    /// The request whose first decode step stands in the middle of the decode steps: their costs grow evenly with the
    /// depth, so that it costs what they cost on average.
    fn midway(&self) -> ClockedRequest {
        let input = self.request.input();
        let drawn = (self.request.output_tokens - 1) / 2;
        let prompt = input.iter().cycle().take(input.len() + drawn).copied().collect();
        ClockedRequest { prefix: Vec::new(), prompt, output_tokens: 3, all_prompt_logits: false }
    }

    fn request_time(&self) -> RequestTime {
        RequestTime {
            prefill_ns: self.prefill_ns,
            decode_ns: self.decode_ns,
            prompt_tokens: self.request.prompt.len(),
            chunk_rows: self.request.prompt.len().min(self.rig.max_rows),
            decode_steps: self.request.output_tokens - 1,
        }
    }
}

fn id_of(document: &impl serde::Serialize) -> Result<String, Fault> {
    Ok(canonical::digest_of(document)?[..16].to_string())
}
