//! Operators at the shapes of a model: every kernel that could take a call against the one that does.
//!
//! Each kernel first answers as the reference does, or within the limits of its order, on the inputs and the rows that are then
//! timed. A *pass* runs the
//! kernels in every order that there is, so that none is always the one after a slow neighbour; a kernel wins at a number
//! of rows when its median is the smallest in every pass. Cold means that copies of the weight take turns.

pub mod guard;
mod judge;
mod operator;
pub mod orders;

use serde::{Deserialize, Serialize};
use std::time::Instant;
use tare_core::{Fault, Reading};
use tare_cpu::Dispatch;
use tare_evidence::stats::median;
use tare_model::Choice;
use tare_ops::{Backend, Batch, Bucket, Executable, OpName, StepOutput};
use tare_probe::{Ceilings, Host};

use crate::LabError;
use crate::floor::Pace;
use crate::held::Steady;
use crate::replay::Warmth;
use crate::rig::Rig;
use crate::tap::Tap;
use operator::{Feeds, Operator, Stand, takers};

pub use operator::MOST_ROWS;

/// A sample lasts at least this long: shorter calls are run several times.
const SAMPLE_NS: u64 = 200_000;
/// Outputs of a step at the most: the head of a large vocabulary is not asked for hundreds of rows.
const MOST_OUTPUTS: usize = 1 << 24;
/// Kernels of one operator at the most: their orders must be few enough to run all of them.
const MOST_KERNELS: usize = 4;

/// What is studied.
#[derive(Clone, Debug)]
pub struct OpsStudy<'a> {
    /// Model, plan and class.
    pub rig: &'a Rig<'a>,
    /// Operators; all when empty.
    pub operators: Vec<OpName>,
    /// Numbers of rows.
    pub rows: Vec<usize>,
    /// Tokens in the cache that attention reads.
    pub context: usize,
    /// Passes: a win counts when it is there in each.
    pub passes: usize,
    /// Whether copies of the weight take turns.
    pub warmth: Warmth,
    /// For its cache.
    pub host: &'a Host,
    /// For the floors.
    pub ceilings: &'a Ceilings,
}

/// How far a study is, before it measures one operator more.
#[derive(Clone, Copy, Debug)]
pub struct Ahead<'a> {
    /// The operator, its widths and its rows.
    pub what: &'a str,
    /// Those before it, with those that have one kernel alone.
    pub done: usize,
    /// All of them.
    pub of: usize,
}

/// One operator of one shape at one number of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What it is of: `model.layers.0.mlp.down_proj.weight`, or the operator where it has no weight.
    pub of: String,
    /// The operator.
    pub operator: OpName,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// Rows.
    pub rows: usize,
    /// Tokens that attention reads.
    pub context: usize,
    /// Warm or cold, as it could be made.
    pub warmth: Warmth,
    /// Copies of the weight that took turns.
    pub copies: usize,
    /// Threads that computed: without those that sat out, the same ones for every kernel.
    pub threads: usize,
    /// Threads that sat out while its kernels were timed.
    pub sat_out: usize,
    /// The kernel that the plan takes for these rows.
    pub chosen: String,
    /// The kernels, the preferred ones first.
    pub kernels: Vec<KernelTime>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    /// Its key.
    pub kernel: String,
    /// Median time of a call over all passes.
    pub ns: f64,
    /// Nanoseconds of a call, sample by sample, pass by pass.
    pub passes_ns: Vec<Vec<f64>>,
    /// Time of the plan's kernel over its time: above 1 it is faster.
    pub ratio: f64,
    /// 100 * floor / time.
    pub percent_of_floor: Reading<f64>,
    /// The stages that ran.
    pub stages: Vec<String>,
    /// Whether every stage of the operator ran this kernel.
    pub dispatched: bool,
}

impl Measured {
    /// The kernel whose median is the smallest in every pass, if one is.
    pub fn winner(&self) -> Option<&KernelTime> {
        let passes = self.kernels.first()?.passes_ns.len();
        let fastest = |pass: usize| {
            let time = |k: &&KernelTime| median(&k.passes_ns[pass]).unwrap_or(f64::INFINITY);
            self.kernels.iter().min_by(|a, b| time(a).total_cmp(&time(b)))
        };
        let first = fastest(0)?;
        (1..passes).all(|p| fastest(p).is_some_and(|k| k.kernel == first.kernel)).then_some(first)
    }
}

impl OpsStudy<'_> {
    /// Measures every distinct operator and shape of the plan at every number of rows, into `kept`: what was measured before
    /// an error or an interruption stays there.
    ///
    /// `go_on` is asked before each with what it is, and while it is made ready and timed again and again; false ends the study,
    /// and what was measured of the operator under way is lost.
    ///
    /// # Errors
    /// When a kernel answers otherwise than the reference, the backend fails, or `go_on` said no.
    pub fn run(&self, kept: &mut Vec<Measured>, go_on: &mut dyn FnMut(Ahead<'_>) -> bool) -> Result<(), LabError> {
        self.check()?;
        let engine = self.rig.engine()?;
        let largest = engine.resolved().last().ok_or_else(|| Fault::new("engine", "a plan", "none"))?;
        let tap = self.rig.tap()?.copying();
        let mut bench = Bench { study: self, tap, feeds: Feeds::new(), reference: Feeds::new() };
        let wanted: Vec<(&Choice, usize)> = largest
            .choices
            .iter()
            .filter(|c| self.operators.is_empty() || self.operators.contains(&c.op))
            .filter(|c| !matches!(c.op, OpName::KvAppend | OpName::SelectRows | OpName::Sample))
            .flat_map(|c| self.rows.iter().map(move |rows| (c, *rows)))
            .filter(|(c, rows)| rows * c.shape.n <= MOST_OUTPUTS)
            .collect();
        for (done, (choice, rows)) in wanted.iter().copied().enumerate() {
            let context = if choice.op == OpName::Attention { self.context.max(rows) } else { rows };
            let model = self.rig.model;
            let of = Operator { model, plan: &largest.plan, call: choice.calls[0], rows, context };
            let what = format!("{} {} x {}, {rows} rows", choice.op, choice.shape.n, choice.shape.k);
            let ahead = Ahead { what: &what, done, of: wanted.len() };
            let mut ask = || if go_on(ahead) { Ok(()) } else { Err(LabError::Interrupted) };
            ask()?;
            // The bucket that takes so many rows, all of them selected where it can, says which kernel the plan has.
            let most = rows.min(largest.plan.bucket.selected);
            let takes = |b: Bucket| b.rows >= rows && b.selected >= most;
            let chosen = engine.resolved().iter().find(|r| takes(r.plan.bucket)).unwrap_or(largest);
            let chosen = chosen.plan.calls[choice.calls[0]].kernel.clone();
            kept.extend(bench.measure(&of, chosen, &mut ask)?);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Fault> {
        if self.passes == 0 {
            return Err(Fault::new("passes", "at least 1", "0"));
        }
        let bad = self.rows.iter().find(|r| !(1..=MOST_ROWS).contains(*r));
        match bad {
            Some(rows) => Err(Fault::new("rows", format!("1 to {MOST_ROWS}"), rows.to_string())),
            None => Ok(()),
        }
    }
}

/// Says whether to go on: an error ends the operator under way.
type Ask<'a> = &'a mut dyn FnMut() -> Result<(), LabError>;

struct Bench<'a> {
    study: &'a OpsStudy<'a>,
    tap: Tap,
    feeds: Feeds,
    reference: Feeds,
}

/// A kernel compiled once for each copy of the weight: the operator alone.
struct Arm {
    kernel: String,
    parts: Vec<Executable>,
    /// Everything that was compiled, to be given back.
    wholes: Vec<Executable>,
}

impl Bench<'_> {
    /// One operator at one number of rows; none when there is nothing to choose.
    fn measure(&mut self, of: &Operator<'_>, chosen: String, ask: Ask<'_>) -> Result<Option<Measured>, LabError> {
        let shape = of.shape();
        let mut kernels = takers(&self.tap, of.op(), &shape);
        kernels.truncate(MOST_KERNELS);
        if kernels.len() < 2 {
            return Ok(None);
        }
        // A backend never gives weights back: copies of one operator must not add up over all of them.
        self.tap = self.study.rig.tap()?.copying();
        self.feeds.clear();
        let weight = of.op().weight().and_then(|w| of.plan.weight(w));
        let (copies, warmth) = self.copies(weight.map_or(0, |w| w.bytes as u64));
        let mut stands: Vec<Stand> = Vec::with_capacity(copies);
        for _ in 0..copies {
            stands.push(of.stand(&mut self.tap, &mut self.feeds)?);
            ask()?;
        }
        let arms: Vec<Arm> = kernels.iter().map(|k| self.arm(&stands, k, ask)).collect::<Result<_, _>>()?;
        let batch = stands[0].timed(of);
        self.judge(of, &stands[0], &arms, &batch)?;
        ask()?;
        let inner = self.inner(&arms, &batch)?;
        let tap = self.tap.clone();
        let _steady = Steady::of(&tap);
        let (all, threads) = tap.with(|cpu| (cpu.describe().threads, cpu.active()));
        let passes: Vec<Vec<Vec<f64>>> =
            (0..self.study.passes).map(|_| self.pass(&arms, &batch, inner, ask)).collect::<Result<_, _>>()?;
        let pace = Pace::of(self.study.ceilings, threads, of.plan.order());
        let floor = pace.floor(of.cost());
        let medians: Vec<f64> = (0..arms.len())
            .map(|a| median(&passes.iter().flat_map(|p| p[a].clone()).collect::<Vec<_>>()).unwrap_or(f64::NAN))
            .collect();
        let base = arms.iter().position(|a| a.kernel == chosen).map_or(medians[0], |at| medians[at]);
        let mut times = Vec::with_capacity(arms.len());
        for (a, arm) in arms.iter().enumerate() {
            let ran = self.tap.with(|cpu| cpu.dispatches(arm.parts[0], &batch))?;
            times.push(KernelTime {
                kernel: arm.kernel.clone(),
                ns: medians[a],
                passes_ns: passes.iter().map(|p| p[a].clone()).collect(),
                ratio: base / medians[a],
                percent_of_floor: floor.clone().map(|(ns, _)| 100.0 * ns / medians[a]),
                dispatched: !ran.is_empty() && ran.iter().all(|d| d.kernel == arm.kernel),
                stages: ran.iter().map(geometry).collect(),
            });
        }
        let spent = arms.iter().flat_map(|a| a.parts.iter().chain(&a.wholes));
        self.tap.with(|cpu| spent.for_each(|exe| cpu.release(*exe)));
        Ok(Some(Measured {
            of: weight.map_or_else(|| shape_name(of), |w| w.name.clone()),
            operator: of.op().name(),
            n: shape.n,
            k: shape.k,
            rows: of.rows,
            context: of.context,
            warmth,
            copies,
            threads,
            sat_out: all - threads,
            chosen,
            kernels: times,
        }))
    }

    /// Copies of a weight that exceed twice the last-level cache; one where that is not asked for, or there is no weight.
    fn copies(&self, bytes: u64) -> (usize, Warmth) {
        let caches = &self.study.host.cpu.caches;
        let cache = [&caches.l3, &caches.l2].into_iter().find_map(|c| c.available()).map_or(0, |c| c.bytes());
        if bytes >= 2 * cache && cache > 0 {
            return (1, Warmth::Cold);
        }
        if self.study.warmth == Warmth::Warm || bytes == 0 || cache == 0 {
            return (1, Warmth::Warm);
        }
        ((2 * cache).div_ceil(bytes) as usize + 1, Warmth::Cold)
    }

    fn arm(&self, stands: &[Stand], kernel: &str, ask: Ask<'_>) -> Result<Arm, LabError> {
        let mut arm = Arm { kernel: kernel.to_string(), parts: Vec::new(), wholes: Vec::new() };
        for stand in stands {
            let whole = stand.compile(&mut self.tap.clone(), kernel)?;
            arm.wholes.push(whole);
            arm.parts.push(self.tap.with(|cpu| cpu.part(whole, &[stand.call]))?);
            ask()?;
        }
        Ok(arm)
    }

    /// Calls of a sample, so that the fastest kernel's lasts long enough to be timed.
    fn inner(&self, arms: &[Arm], batch: &Batch) -> Result<usize, LabError> {
        let mut fastest = u64::MAX;
        for arm in arms {
            self.sample(arm, batch, 1, &mut 0)?;
            fastest = fastest.min(self.sample(arm, batch, 1, &mut 0)? as u64);
        }
        Ok((SAMPLE_NS / fastest.max(1) + 1).min(1000) as usize)
    }

    /// All orders once: for each arm the time of a call, order by order. It asks before each sample, outside of its time.
    fn pass(&self, arms: &[Arm], batch: &Batch, inner: usize, ask: Ask<'_>) -> Result<Vec<Vec<f64>>, LabError> {
        let mut times = vec![Vec::new(); arms.len()];
        let mut runs = 0;
        for order in orders::all(arms.len()) {
            for a in order {
                ask()?;
                times[a].push(self.sample(&arms[a], batch, inner, &mut runs)?);
            }
        }
        Ok(times)
    }

    /// Nanoseconds of a call, over `inner` of them; each takes the next copy of the weight.
    fn sample(&self, arm: &Arm, batch: &Batch, inner: usize, runs: &mut usize) -> Result<f64, LabError> {
        let mut out = StepOutput::default();
        let ns = self.tap.with(|cpu| -> Result<u64, LabError> {
            let start = Instant::now();
            for _ in 0..inner {
                cpu.run(arm.parts[*runs % arm.parts.len()], batch, &mut out)?;
                *runs += 1;
            }
            Ok(start.elapsed().as_nanos() as u64)
        })?;
        Ok(ns as f64 / inner as f64)
    }
}

fn geometry(d: &Dispatch) -> String {
    format!("{} of {} on {} rows: {}", d.stage, d.kernel, d.rows, d.split)
}

fn shape_name(of: &Operator<'_>) -> String {
    let op = of.op();
    let layer = of.plan.calls[of.call].layer.map_or_else(String::new, |l| format!(" of layer {l}"));
    format!("{}{layer}", op.name())
}
