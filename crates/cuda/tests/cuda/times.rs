//! What the launches of a decode step take on a device, and what they take when one thing is changed: a table to read, nothing
//! that decides whether a test passes. What is asserted is that a changed step still gives the logits of the unchanged one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tare_cuda::device::{Address, Device, GraphId, KernelId, Launch, Taken, TileMap, Tiled};
use tare_cuda::units::Unit;
use tare_cuda::{CudaBackend, Driver};
use tare_engine::{Engine, EngineConfig, Event, Request};
use tare_model::{Model, PlanSpec, classes};
use tare_ops::{IsaSet, OpError};

use crate::gpu;

/// Tokens before the steps that are timed, and the prompt whose prefill is.
const DEPTH: u32 = 128;
const PROMPT: u32 = 2048;
/// Steps before those that are timed, and those.
const WARM: usize = 4;
const STEPS: usize = 32;
/// Replays of a graph; the least of a few such times is kept.
const REPLAYS: u32 = 20;
const TIMES: usize = 5;
/// Largest difference of a changed step's logits, as a share of the largest logit.
const CLOSE: f32 = 0.02;

/// One thing that is changed about a step: the texts of its units, and how kernels are launched.
struct Change {
    name: &'static str,
    text: &'static [(&'static str, &'static str)],
    /// Is given a kernel's name, and names another of the unit or none.
    launch: fn(&str, &mut Launch) -> Option<&'static str>,
}

const fn text(name: &'static str, text: &'static [(&'static str, &'static str)]) -> Change {
    Change { name, text, launch: |_, _| None }
}

const fn launch(name: &'static str, launch: fn(&str, &mut Launch) -> Option<&'static str>) -> Change {
    Change { name, text: &[], launch }
}

/// Where the rows and columns of the first matrix and the number of tiles lie in the argument of `gemv.cu`.
const ROWS_AT: usize = 24;
const COLUMNS_AT: usize = 28;
const TILES_AT: usize = 240;

fn number(args: &[u8], at: usize) -> u32 {
    args[at..at + 4].try_into().map(u32::from_le_bytes).unwrap()
}

/// Gives those products of one row whose kernel's name begins so a number of blocks for each of 132 multiprocessors.
fn blocks((start, kernel): (&str, &str), launch: &mut Launch, (each, threads): (u32, u32)) -> Option<&'static str> {
    if kernel.starts_with(start) {
        (launch.grid.0, launch.threads) = (number(&launch.args, TILES_AT).min(132 * each), threads);
    }
    None
}

/// Tiles of 16 outputs where eight with two halves of their columns were taken.
fn whole(kernel: &str, launch: &mut Launch) -> Option<&'static str> {
    (kernel == "gemv_halves_1").then(|| {
        let tiles = number(&launch.args, ROWS_AT).div_ceil(16);
        launch.args[TILES_AT..TILES_AT + 4].copy_from_slice(&tiles.to_le_bytes());
        launch.grid.0 = tiles.min(396);
        "gemv_1"
    })
}

const STARTS: &str = "    let_next_start();\n    await_previous();";
const CHANGES: [Change; 9] = [
    launch("nothing", |_, _| None),
    launch("no launch starts early", |_, l| {
        l.early = false;
        None
    }),
    launch("no halves", whole),
    launch("products: 1 block of 160 threads", |k, l| blocks(("gemv", k), l, (1, 160))),
    launch("products: 2 blocks of 160 threads", |k, l| blocks(("gemv", k), l, (2, 160))),
    launch("products: 3 blocks of 128 threads", |k, l| blocks(("gemv", k), l, (3, 128))),
    launch("products: 5 blocks of 96 threads", |k, l| blocks(("gemv", k), l, (5, 96))),
    launch("products: 7 blocks of 64 threads", |k, l| blocks(("gemv", k), l, (7, 64))),
    text("the next launch starts late", &[(STARTS, "    await_previous();\n    let_next_start();")]),
];

/// What is told from outside, and what is told back.
#[derive(Debug, Default)]
struct Seen {
    /// The next replay is measured.
    measure: bool,
    lines: Vec<String>,
}

/// A device that keeps what was recorded last and measures it when it is told to.
struct Observed {
    driver: Driver,
    seen: Arc<Mutex<Seen>>,
    kernels: Vec<(Unit, String)>,
    recorded: Vec<Launch>,
}

impl Observed {
    /// Nanoseconds of a list of launches, replayed one right after the other.
    fn time(&mut self, launches: &[Launch]) -> Result<f64, OpError> {
        let graph = self.driver.record(launches)?;
        let mut least = f64::INFINITY;
        for n in 0..=TIMES {
            let start = Instant::now();
            (0..REPLAYS).try_for_each(|_| self.driver.replay(graph))?;
            self.finish()?;
            // The first is for warming up.
            if n > 0 {
                least = least.min(start.elapsed().as_nanos() as f64 / f64::from(REPLAYS));
            }
        }
        self.driver.forget(graph);
        Ok(least)
    }

    /// Waits for the device.
    fn finish(&mut self) -> Result<(), OpError> {
        let (_, results) = self.answers();
        self.driver.download(results, &mut [0; 4])
    }

    /// Logits and results of the sampling that ends a step: address and number, address.
    fn answers(&self) -> ((Address, usize), Address) {
        let last = self.recorded.last().unwrap();
        let word = |at: usize| u64::from_le_bytes(last.args[at..at + 8].try_into().unwrap());
        let vocab = u32::from_le_bytes(last.args[36..40].try_into().unwrap());
        ((Address(word(8)), vocab as usize), Address(word(24)))
    }

    /// What a step gives. Launches come by themselves first, which is when a device loads their kernels.
    fn logits(&mut self, launches: &[Launch]) -> Result<Vec<f32>, OpError> {
        launches.iter().try_for_each(|l| self.driver.launch(l))?;
        let graph = self.driver.record(launches)?;
        let ((at, vocab), _) = self.answers();
        let mut bytes = vec![0; 4 * vocab];
        self.driver.upload(at, &vec![0xff; 4 * vocab])?;
        self.driver.replay(graph)?;
        self.driver.download(at, &mut bytes)?;
        self.driver.forget(graph);
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn changed(&mut self, change: &Change) -> Result<Vec<Launch>, OpError> {
        let mut launches = self.recorded.clone();
        for launch in &mut launches {
            let (unit, name) = self.kernels[launch.kernel.0].clone();
            let text = change.text.iter().fold(unit.text.clone(), |t, (from, to)| t.replace(from, to));
            let other = (change.launch)(&name, launch);
            if text != unit.text || other.is_some() {
                let of = if text == unit.text { unit.name } else { format!("{} with {}", unit.name, change.name) };
                let unit = Unit { name: of, text, kernels: unit.kernels, hopper: unit.hopper };
                launch.kernel = self.driver.kernel(&unit, other.unwrap_or(&name))?;
            }
        }
        Ok(launches)
    }

    /// What a launch does: its kernel, the unit, its grid and, of products of one row, the shape of the first matrix.
    fn kind(&self, launch: &Launch) -> String {
        let (unit, kernel) = &self.kernels[launch.kernel.0];
        let shape = match kernel.starts_with("gemv") {
            true => format!("[{}, {}]", number(&launch.args, ROWS_AT), number(&launch.args, COLUMNS_AT)),
            false => String::new(),
        };
        format!("{kernel} of {} {shape} {:?} x {}", unit.name, launch.grid, launch.threads)
    }

    /// Kinds of launches: how often, what the step takes less without them, what they take alone.
    fn kinds(&mut self, whole: f64) -> Result<Vec<String>, OpError> {
        let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, launch) in self.recorded.iter().enumerate() {
            kinds.entry(self.kind(launch)).or_default().push(i);
        }
        let mut lines = Vec::new();
        for (kind, own) in kinds {
            let all = self.recorded.iter().enumerate();
            let (own, rest): (Vec<_>, Vec<_>) = all.map(|(i, l)| (i, l.clone())).partition(|(i, _)| own.contains(i));
            let launches = |of: &[(usize, Launch)]| of.iter().map(|(_, l)| l.clone()).collect::<Vec<_>>();
            let without = if rest.is_empty() { 0.0 } else { self.time(&launches(&rest))? };
            let alone = self.time(&launches(&own))?;
            let each = |ns: f64| ns / own.len() as f64 / 1e3;
            let (n, less, alone) = (own.len(), each(whole - without), each(alone));
            lines.push(format!("  {n:4} x {kind:70}: {less:7.2} us less without it, {alone:7.2} us alone"));
        }
        Ok(lines)
    }

    fn measure(&mut self) -> Result<(), OpError> {
        let (launches, mut lines) = (self.recorded.clone(), Vec::new());
        let want = self.logits(&launches)?;
        let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest.is_finite() && largest > 0.0);
        let whole = self.time(&launches)?;
        lines.extend(self.kinds(whole)?);
        for change in &CHANGES {
            let line = match self.changed(change) {
                Ok(launches) => {
                    let got = self.logits(&launches)?;
                    let off = got
                        .iter()
                        .zip(&want)
                        .fold(0.0f32, |m, (g, w)| if g.is_nan() { f32::MAX } else { m.max((g - w).abs()) });
                    assert!(off <= CLOSE * largest, "{}: logits differ by {off} of {largest}", change.name);
                    let time = self.time(&launches)?;
                    format!("{:9.1} us, {:7.1} steps/s, logits differ by {off:.1e}", time / 1e3, 1e9 / time)
                }
                Err(why) => why.to_string(),
            };
            lines.push(format!("  {:40} {line}", change.name));
        }
        self.logits(&launches)?;
        self.seen.lock().unwrap().lines = lines;
        Ok(())
    }
}

impl Device for Observed {
    fn describe(&self) -> String {
        self.driver.describe()
    }

    fn isa(&self) -> IsaSet {
        self.driver.isa()
    }

    fn multiprocessors(&self) -> u32 {
        self.driver.multiprocessors()
    }

    fn alloc(&mut self, what: &str, bytes: usize) -> Result<Address, OpError> {
        self.driver.alloc(what, bytes)
    }

    fn free(&mut self, at: Address) {
        self.driver.free(at);
    }

    fn fill(&mut self, at: Address, bytes: usize, value: u8) -> Result<(), OpError> {
        self.driver.fill(at, bytes, value)
    }

    fn upload(&mut self, at: Address, bytes: &[u8]) -> Result<(), OpError> {
        self.driver.upload(at, bytes)
    }

    fn download(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), OpError> {
        self.driver.download(at, bytes)
    }

    fn kernel(&mut self, unit: &Unit, name: &str) -> Result<KernelId, OpError> {
        let id = self.driver.kernel(unit, name)?;
        if id.0 == self.kernels.len() {
            self.kernels.push((unit.clone(), name.to_string()));
        }
        Ok(id)
    }

    fn tile_map(&mut self, matrix: Tiled) -> Result<TileMap, OpError> {
        self.driver.tile_map(matrix)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), OpError> {
        self.driver.launch(launch)
    }

    fn record(&mut self, launches: &[Launch]) -> Result<GraphId, OpError> {
        self.recorded = launches.to_vec();
        self.driver.record(launches)
    }

    fn replay(&mut self, graph: GraphId) -> Result<(), OpError> {
        self.driver.replay(graph)?;
        let measure = std::mem::take(&mut self.seen.lock().unwrap().measure);
        if measure { self.measure() } else { Ok(()) }
    }

    fn forget(&mut self, graph: GraphId) {
        self.driver.forget(graph);
    }

    fn memory(&self) -> Taken {
        self.driver.memory()
    }
}

/// Prefill of a long prompt, decode behind a short one, then the launches of one decode step.
fn tell(model: &str, class: &str) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let driver = Driver::open(gpu(false)).unwrap();
    let device = Observed { driver, seen: seen.clone(), kernels: Vec::new(), recorded: Vec::new() };
    let opened = Model::open(model).unwrap();
    let vocab = opened.config().vocab as u32;
    let config = EngineConfig {
        plan: PlanSpec::find("paged").unwrap(),
        class: classes::choose(&opened, Some(class)).unwrap(),
        context: PROMPT as usize + 16,
        kv_tokens: 2 * PROMPT as usize,
        max_rows: PROMPT as usize,
        max_sequences: 1,
        max_queue: 1,
    };
    let mut engine = Engine::new(&opened, Box::new(CudaBackend::new(device)), config).unwrap();
    let ids = |n: u32| (0..n).map(|i| (i * 37 + 11) % vocab).collect::<Vec<u32>>();
    let mut prefill = f64::INFINITY;
    for _ in 0..4 {
        engine.submit(Request::greedy(ids(PROMPT), 1)).unwrap();
        let start = Instant::now();
        while engine.has_work() {
            engine.step().unwrap();
        }
        prefill = prefill.min(start.elapsed().as_secs_f64());
    }
    engine.submit(Request::greedy(ids(DEPTH), WARM + STEPS + 4)).unwrap();
    let mut times = Vec::new();
    while engine.has_work() {
        if times.len() == WARM + STEPS {
            seen.lock().unwrap().measure = true;
        }
        let start = Instant::now();
        let tokens = engine.step().unwrap().events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        times.extend((0..tokens).map(|_| start.elapsed().as_secs_f64()));
    }
    let mut steps = times[WARM..WARM + STEPS].to_vec();
    steps.sort_by(f64::total_cmp);
    let median = steps[STEPS / 2];
    println!("{model}, {class}");
    println!("  prefill of {PROMPT}: {:.2} ms, {:.0} tokens/s", 1e3 * prefill, f64::from(PROMPT) / prefill);
    println!("  decode behind {DEPTH}, as the host sees it: {:.3} ms, {:.1} tokens/s", 1e3 * median, 1.0 / median);
    let lines = std::mem::take(&mut seen.lock().unwrap().lines);
    assert!(!lines.is_empty(), "no step was measured");
    lines.iter().for_each(|l| println!("{l}"));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_times_of_06b_bf16() {
    tell("synthetic:qwen3-0.6b?format=bf16", "bf16-free");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_times_of_06b_w4g128() {
    tell("synthetic:qwen3-0.6b?format=w4g128", "w4a16-free");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_times_of_4b_bf16() {
    tell("synthetic:qwen3-4b?format=bf16", "bf16-free");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_times_of_4b_w4g128() {
    tell("synthetic:qwen3-4b?format=w4g128", "w4a16-free");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_times_of_4b_q4_0() {
    tell("synthetic:qwen3-4b?format=q4_0", "w4a16-free");
}
