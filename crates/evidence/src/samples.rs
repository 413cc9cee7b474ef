//! The raw logs of a request, round by round: what was emitted, and how long each step took.

use crate::identity::{EosRule, Work};
use crate::schema::ReadingShape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};

/// The rounds of one arm, timed behind a passed gate and without times behind a failed one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Samples<R> {
    /// Untimed rounds that ran first; their tokens passed the gate too.
    pub warmups: Vec<Emitted>,
    /// The planned rounds.
    pub rounds: Vec<R>,
}

/// What one round emitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Emitted {
    /// Number of the round in its campaign, from 0.
    pub round: u32,
    /// Every request of the round, `[rows]`.
    pub rows: Vec<RowTokens>,
}

/// The tokens of one request of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowTokens {
    /// Emitted ids, `[N]`.
    pub ids: Vec<u32>,
    /// The F32 logit that each id had when it was chosen, `[N]`; empty when another engine does not give them out.
    pub logits: Vec<f32>,
}

/// A round with its times.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedRound {
    /// What it emitted.
    pub emitted: Emitted,
    /// How long it took.
    pub timing: Timing,
}

/// Times of one round on the request clock, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Until the request was handed over; a cache that is set up later is in `prefill_ns`.
    pub setup_ns: u64,
    /// From the end of set-up until the first id of every row is on the host.
    pub prefill_ns: u64,
    /// One step each, from the ids of the step before to its own, `[N - 1]`.
    pub token_ns: Vec<u64>,
    /// From the last id to the end of the request; a cache that is released with the last step is in its time.
    pub release_ns: u64,
    /// CPU time of the main thread within the round.
    #[schemars(with = "ReadingShape<u64>")]
    pub main_thread_cpu_ns: Reading<u64>,
    /// Places in `token_ns`, ascending, that count in no figure: the first step after another arm had its turn. Left out
    /// when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untimed: Vec<u32>,
    /// The same steps by the device's own clock; left out where nothing has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTiming>,
}

/// Times of one round by the clock of a device, in nanoseconds: from the first kernel of a step to the end of its last,
/// without what the host does before, between and after steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceTiming {
    /// All steps up to the first id.
    pub prefill_ns: u64,
    /// One step each, `[N - 1]`.
    pub token_ns: Vec<u64>,
}

impl Samples<TimedRound> {
    /// The same rounds without their times: what is left when the gate fails.
    pub fn without_times(self) -> Samples<Emitted> {
        Samples { warmups: self.warmups, rounds: self.rounds.into_iter().map(|r| r.emitted).collect() }
    }
}

impl Emitted {
    /// Steps that emitted a token: the longest row.
    pub fn steps(&self) -> usize {
        self.rows.iter().map(|r| r.ids.len()).max().unwrap_or(0)
    }

    /// Tokens after the first of each row.
    pub fn decoded(&self) -> usize {
        self.rows.iter().map(|r| r.ids.len().saturating_sub(1)).sum()
    }

    /// Tokens of decode step `step`, from 0: one for each row that is longer than it.
    pub fn tokens_of_step(&self, step: usize) -> usize {
        self.rows.iter().filter(|r| r.ids.len() > step + 1).count()
    }

    /// Whether the round is the work that it claims: rows, lengths, and a finite logit for every id.
    pub(crate) fn check(&self, work: &Work) -> Result<(), Fault> {
        let at = |what: String| format!("samples: round {}: {what}", self.round);
        if self.rows.len() != work.rows as usize {
            return Err(Fault::new(at("rows".into()), work.rows.to_string(), self.rows.len().to_string()));
        }
        for (i, (row, &want)) in self.rows.iter().zip(&work.output_lengths).enumerate() {
            let (ids, want) = (row.ids.len(), want as usize);
            let fits = match work.eos {
                EosRule::Ignore => ids == want,
                EosRule::Stop => (1..=want).contains(&ids),
            };
            if !fits {
                let expected = format!("{want} ids, as `work.output_lengths` says");
                return Err(Fault::new(at(format!("row {i}: ids")), expected, ids.to_string()));
            }
            // Only another engine may keep its logits to itself, which `check` asks of the record.
            let given = row.logits.is_empty() || row.logits.len() == ids;
            if !given || row.logits.iter().any(|l| !l.is_finite()) {
                let expected = format!("a finite logit for each of {ids} ids");
                let finite = row.logits.iter().filter(|l| l.is_finite()).count();
                return Err(Fault::new(at(format!("row {i}: logits")), expected, format!("{finite} finite logits")));
            }
        }
        Ok(())
    }
}

impl TimedRound {
    /// Steps that count in figures: `(place in token_ns, nanoseconds)`.
    pub fn timed_steps(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counted(&self.timing.token_ns)
    }

    /// Those of `steps`, one for each step after the first token, that count in figures.
    pub(crate) fn counted<'a>(&'a self, steps: &'a [u64]) -> impl Iterator<Item = (usize, u64)> + 'a {
        let untimed = &self.timing.untimed;
        steps.iter().copied().enumerate().filter(|(step, _)| untimed.binary_search(&(*step as u32)).is_err())
    }

    /// Tokens of the steps that count in figures.
    pub fn timed_tokens(&self) -> usize {
        self.timed_steps().map(|(step, _)| self.emitted.tokens_of_step(step)).sum()
    }

    /// As [`Emitted::check`], and a time for every step.
    pub(crate) fn check(&self, work: &Work) -> Result<(), Fault> {
        self.emitted.check(work)?;
        let at = |what: &str| format!("samples: round {}: {what}", self.emitted.round);
        let steps = self.emitted.steps().saturating_sub(1);
        if self.timing.token_ns.len() != steps {
            let expected = format!("{steps} times, one for each step after the first token");
            return Err(Fault::new(at("token_ns"), expected, self.timing.token_ns.len().to_string()));
        }
        if let Some(device) = &self.timing.device
            && device.token_ns.len() != steps
        {
            let expected = format!("{steps} times, as `token_ns` has");
            return Err(Fault::new(at("device.token_ns"), expected, device.token_ns.len().to_string()));
        }
        let untimed = &self.timing.untimed;
        let ascending = untimed.windows(2).all(|w| w[0] < w[1]);
        if !ascending || untimed.last().is_some_and(|&last| last as usize >= steps) {
            let expected = format!("ascending places among {steps} steps");
            return Err(Fault::new(at("untimed"), expected, format!("{untimed:?}")));
        }
        if steps > 0 && untimed.len() == steps {
            return Err(Fault::new(at("untimed"), "at least one step that counts", "none"));
        }
        if self.timing.prefill_ns == 0 || (steps > 0 && self.timing.token_ns.iter().all(|&ns| ns == 0)) {
            return Err(Fault::new(at("timing"), "phases that took time", "0 ns"));
        }
        Ok(())
    }
}

/// The written form of a round of either kind.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoundShape {
    /// Number of the round in its campaign, from 0.
    round: u32,
    /// Every request of the round, `[rows]`.
    rows: Vec<RowTokens>,
    /// Its times; absent exactly when the gate failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
}

impl From<Emitted> for RoundShape {
    fn from(e: Emitted) -> Self {
        Self { round: e.round, rows: e.rows, timing: None }
    }
}

impl From<TimedRound> for RoundShape {
    fn from(r: TimedRound) -> Self {
        Self { timing: Some(r.timing), ..r.emitted.into() }
    }
}

impl TryFrom<RoundShape> for Emitted {
    type Error = Fault;
    fn try_from(r: RoundShape) -> Result<Self, Fault> {
        match r.timing {
            None => Ok(Self { round: r.round, rows: r.rows }),
            Some(_) => Err(Fault::new(format!("samples: round {}", r.round), "no timing: the gate failed", "a timing")),
        }
    }
}

impl TryFrom<RoundShape> for TimedRound {
    type Error = Fault;
    fn try_from(r: RoundShape) -> Result<Self, Fault> {
        match r.timing {
            Some(timing) => Ok(Self { emitted: Emitted { round: r.round, rows: r.rows }, timing }),
            None => Err(Fault::new(format!("samples: round {}", r.round), "a timing: the gate passed", "none")),
        }
    }
}
