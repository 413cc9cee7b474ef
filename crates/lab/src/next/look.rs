//! The part of the loop that takes steps apart: replay of both phases, then the worth of the groups on top.

use tare_core::{Fault, Reading};
use tare_cuda::{CudaBackend, ceilings as device, device::Device};
use tare_evidence::canonical;
use tare_evidence::stats::least_rounds;
use tare_ops::OpError;
use tare_probe::{Ceilings, Host};

use super::rank::{Kept, Ranking, RequestTime};
use crate::LabError;
use crate::replay::launches::{LaunchReplay, LaunchReplaying};
use crate::replay::{Doing, Replay, Replaying, TakenApart, Warmth};
use crate::rig::Rig;
use crate::sensitivity::{ALPHA, DOSES, Probe, Sensitivity};
use crate::shared::Shared;
use crate::specimen::{Phase, Specimen};
use crate::tap::Tap;
use crate::work::ClockedRequest;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Turns of a decode replay.
    pub decode_turns: usize,
    /// Turns of a prefill replay.
    pub prefill_turns: usize,
    /// Blocks of a probe at the most.
    pub blocks: usize,
    /// So many groups from the top are probed, as far as there is time.
    pub probed: usize,
}

impl Effort {
    /// About two minutes for a 0.6B model on two cores.
    pub const FULL: Self = Self { decode_turns: 30, prefill_turns: 3, blocks: 30, probed: 3 };

    /// A few seconds on a device, whose steps are hundreds of times shorter.
    pub const DEVICE: Self = Self { decode_turns: 200, prefill_turns: 30, blocks: 60, probed: 5 };

    fn turns(&self, phase: Phase) -> usize {
        if phase == Phase::Decode { self.decode_turns } else { self.prefill_turns }
    }

    /// The probe of a group whose step takes `step_ns`, and how long it takes: all doses where the fewest blocks of them
    /// fit into [`PROBE_NS`], the largest alone where not.
    fn probe<'g>(&self, group: &'g str, group_ns: f64, step_ns: f64) -> (Probe<'g>, f64) {
        let block_ns = |doses: usize| 2.0 * doses as f64 * step_ns;
        let least = least_rounds(ALPHA);
        let doses = if least as f64 * block_ns(DOSES.len()) <= PROBE_NS { DOSES.len() } else { 1 };
        let blocks = ((PROBE_NS / block_ns(doses)) as usize).min(self.blocks).max(least);
        let probe = Probe { group, group_ns, blocks, first_dose: DOSES.len() - doses, seed: 0 };
        (probe, blocks as f64 * block_ns(doses))
    }
}

/// The longest that one probe may take, as far as the fewest blocks with which there is an interval allow.
const PROBE_NS: f64 = 20e9;
/// No further probe is begun when the probes have taken this long.
const PROBING_NS: f64 = 45e9;

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
    /// Median time of one of them.
    pub decode_step_ns: f64,
    /// For caches and memory.
    pub host: &'a Host,
    /// For the floors.
    pub ceilings: &'a Ceilings,
    /// How much is measured.
    pub effort: Effort,
}

/// What is being done, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At<'a> {
    /// A replay.
    Replay(Phase, Doing),
    /// Block `n` of a probe.
    Probe(Phase, &'a str, usize),
}

/// How a step that was reached is taken apart.
type Apart<'a, B, R> = dyn Fn(&Rig<'_>, &Specimen<B>, Phase, &mut dyn FnMut(Doing) -> bool) -> Result<R, LabError> + 'a;

/// What was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked<R = Replay> {
    /// Of both phases.
    pub replays: Vec<Kept<R>>,
    /// Of the groups on top.
    pub probes: Vec<Kept<Sensitivity>>,
    /// The conclusion.
    pub ranking: Ranking,
}

impl Looking<'_> {
    /// Replays both phases on the processor and probes the groups on top until the first ones are all probed.
    ///
    /// # Errors
    /// When the rig runs elsewhere, a replay or probe fails, or `go_on` said no.
    pub fn run(&self, go_on: &mut dyn FnMut(At<'_>) -> bool) -> Result<Looked, LabError> {
        let apart = |rig: &Rig<'_>, specimen: &Specimen, phase: Phase, go_on: &mut dyn FnMut(Doing) -> bool| {
            let (request, iterations, warmth) = (self.request, self.effort.turns(phase), Warmth::Warm);
            let (host, ceilings) = (self.host, self.ceilings);
            Replaying { rig, request, phase, iterations, warmth, host, ceilings }.of(specimen, go_on)
        };
        self.look(&mut || self.rig.tap(), &apart, go_on)
    }

    /// The same on a device, launch by launch: `backend` gives a new one each time, `ceilings` are those of the device.
    ///
    /// # Errors
    /// When a backend cannot be had, a replay or probe fails, or `go_on` said no.
    pub fn on_device<D: Device + 'static>(
        &self,
        ceilings: &Reading<device::Ceilings>,
        backend: &mut dyn FnMut() -> Result<CudaBackend<D>, OpError>,
        go_on: &mut dyn FnMut(At<'_>) -> bool,
    ) -> Result<Looked<LaunchReplay>, LabError> {
        let apart = |rig: &Rig<'_>, specimen: &Specimen<_>, phase: Phase, go_on: &mut dyn FnMut(Doing) -> bool| {
            let (request, iterations) = (self.request, self.effort.turns(phase));
            LaunchReplaying { rig, request, phase, iterations, ceilings }.of(specimen, go_on)
        };
        self.look(&mut || Ok(Tap::new(backend()?, self.rig.delay)), &apart, go_on)
    }

    fn look<B: Shared + 'static, R: TakenApart>(
        &self,
        tap: &mut dyn FnMut() -> Result<Tap<B>, LabError>,
        apart: &Apart<'_, B, R>,
        go_on: &mut dyn FnMut(At<'_>) -> bool,
    ) -> Result<Looked<R>, LabError> {
        // Room for tokens that are never drawn, so that the cache outlives the step that is looked at.
        let rig =
            &Rig { context: self.rig.context + ROOM.saturating_sub(self.request.output_tokens), ..self.rig.clone() };
        let specimens = [
            (Phase::Prefill, Specimen::of(tap()?, rig, self.request, Phase::Prefill)?),
            (Phase::Decode, Specimen::of(tap()?, rig, &self.midway(), Phase::Decode)?),
        ];
        let mut replays = Vec::new();
        for (phase, specimen) in &specimens {
            let document = apart(rig, specimen, *phase, &mut |doing| go_on(At::Replay(*phase, doing)))?;
            replays.push(Kept { id: id_of(&document)?, document });
        }
        let request = self.request_time();
        let mut probes = Vec::new();
        let mut ranking = Ranking::new(request, &replays, &probes);
        let mut spent_ns = 0.0;
        while spent_ns < PROBING_NS
            && let Some(top) = ranking.unprobed(self.effort.probed)
        {
            let (phase, group) = (top.phase, top.group.as_str());
            let at = usize::from(phase == Phase::Decode);
            let (probe, ns) = self.effort.probe(group, top.measured_ns, replays[at].document.step_ns());
            spent_ns += ns;
            let document = probe.run(&specimens[at].1, phase, &mut |n| go_on(At::Probe(phase, group, n)))?;
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
            decode_step_ns: self.decode_step_ns,
            prompt_tokens: self.request.prompt.len(),
            chunk_rows: self.request.prompt.len().min(self.rig.max_rows),
            decode_steps: self.request.output_tokens - 1,
        }
    }
}

fn id_of(document: &impl serde::Serialize) -> Result<String, Fault> {
    Ok(canonical::digest_of(document)?[..16].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_get_one_dose_and_the_fewest_blocks() {
        let of = |step_ns| Effort::FULL.probe("down", 1e6, step_ns);
        let (short, ns) = of(3e7);
        assert_eq!((short.first_dose, short.blocks), (0, 30), "30 ms: all doses, as many blocks as there may be");
        assert!(ns < PROBE_NS);
        let (middle, ns) = of(2e8);
        assert_eq!((middle.first_dose, middle.blocks), (0, 16));
        assert!(ns <= PROBE_NS);
        let (long, ns) = of(4e9);
        assert_eq!((long.first_dose, long.blocks), (2, 6), "4 s: the largest dose, 12 steps");
        assert_eq!(ns, 48e9);
    }
}
