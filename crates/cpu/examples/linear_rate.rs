//! How fast the linears run on this host: weight GB/s, percent of what the same threads read in the same minute, and
//! GFLOP/s. Feedback for who writes kernels, never evidence.
//!
//! `cargo run --release --workspace --example linear_rate [threads] [formats, comma separated] [level] [rows]`
//!
//! A format with `-a8` behind it is multiplied with activations in 8 bits, one with `-a15` or `-i16` with integers of 15 bits: as the
//! class says, or as a class in any order leaves open.

use std::time::Instant;

use tare_core::{Affine, Blob, DType, Format, Weight, WeightData};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, Isa, IsaSet, KvShape, Op, OpCall, Order, RopeStyle, RopeTable,
    Rounding, Row, RowSpace, StepOutput, TokenSource, Wants, WeightInfo,
};
use tare_probe::Host;
use tare_probe::ceilings::Sampler;

/// Bytes of weights in a step where nobody knows the last-level cache; else four times what that holds.
const COLD: u64 = 768 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let formats = args.next().unwrap_or_else(|| FORMATS.into());
    let isa = match args.next().as_deref() {
        Some("portable") => detect_isa().up_to(Isa::Portable),
        Some("avx2") => detect_isa().up_to(Isa::Avx2),
        _ => detect_isa(),
    };
    let rows = args.next().unwrap_or_else(|| "1,4,8,32,256".into());
    let rows: Vec<usize> = rows.split(',').filter_map(|r| r.parse().ok()).collect();
    let host = Host::read();
    let cold = host.cpu.caches.l3.available().map_or(COLD, |l3| 4 * l3.bytes());
    let read = Sampler::new(&host, threads, cold, 10_000_000).expect("a sampler");
    println!(
        "{:10} {:>6} {:>6} {:>5} {:>9} {:>7} {:>9}  kernel",
        "format", "n", "k", "rows", "GB/s", "% read", "GFLOP/s"
    );
    for name in formats.split(',') {
        let (format, word) = name.split_once('-').unwrap_or((name, ""));
        let rounding = match word {
            "a8" => Rounding::Int8,
            "a15" => Rounding::Int15,
            "i16" => Rounding::Bf16,
            _ => Rounding::F32,
        };
        let Ok(format) = format.parse::<Format>() else { continue };
        for (n, k) in [(3072, 1024), (1024, 3072), (1536, 576), (2560, 9728)] {
            if format.row_bytes(k).is_none() {
                continue;
            }
            for rows in &rows {
                measure((threads, &isa), (format, word, rounding), (n, k), (*rows, cold), &read);
            }
        }
    }
}

/// What is measured when nobody says otherwise.
const FORMATS: &str = "f32,bf16,q8_0,q4_0,q4_1,q5_1,q4_k,q5_k,q6_k,w4g128,w4g32,w8g64,\
    q8_0-a8,q4_0-a8,q4_1-a8,q5_1-a8,q4_k-a8,q5_k-a8,q6_k-a8,w4g128-a8,w4g32-a8,w8g64-a8,\
    q8_0-i16,q4_0-i16,q4_k-i16,q6_k-i16,w4g128-i16,w8g64-i16";

fn measure(
    (threads, isa): (usize, &IsaSet),
    (format, word, rounding): (Format, &str, Rounding),
    (n, k): (usize, usize),
    (rows, cold): (usize, u64),
    read: &Sampler,
) {
    let mut backend =
        CpuBackend::new(CpuConfig { threads, isa: isa.clone(), pin: true, keep_workers: false }).expect("a backend");
    let bytes = format.row_bytes(k).expect("a whole number of blocks") * n;
    let copies = if rows > 8 { 8 } else { (cold as usize / bytes).clamp(8, 2000) };
    let prefix = format!("linear.{format}.");
    let order = if word == "i16" { Order::Free } else { Order::Reference };
    let does = |v: &tare_ops::Variant| v.order == order && v.rounds(Some(rounding)) && isa.has(v.isa);
    let fits = |v: &&tare_ops::Variant| v.key.starts_with(&prefix) && does(v);
    let kernel = backend.variants().iter().find(fits).expect("a kernel").key.clone();
    let (plan, batch) = plan(&mut backend, (format, rounding), (n, k), (rows, copies), &kernel);
    let exe = backend.compile(&plan).expect("a plan");
    let mut out = StepOutput::default();
    let (mut best, mut ceiling) = (f64::INFINITY, 0.0f64);
    for _ in 0..7 {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        backend.run(exe, &batch, &mut out).expect("a step");
        // One thread is timed by its own clock, which stands still while other processes have the processor.
        let one = (threads == 1).then(|| cpu_seconds() - cpu);
        best = best.min(one.unwrap_or_else(|| start.elapsed().as_secs_f64()));
        ceiling = read.read().iter().map(|s| s.amount as f64 / s.ns as f64).fold(ceiling, f64::max);
    }
    let (moved, flops) = ((bytes * copies) as f64, 2.0 * (rows * n * k * copies) as f64);
    let (rate, speed) = (moved / best / 1e9, flops / best / 1e9);
    let percent = 100.0 * rate / ceiling;
    let format = format.to_string();
    println!("{format:10} {n:>6} {k:>6} {rows:>5} {rate:>9.2} {percent:>7.1} {speed:>9.1}  {kernel}");
}

/// Processor time of this thread.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn plan(
    backend: &mut CpuBackend,
    (format, rounding): (Format, Rounding),
    (n, k): (usize, usize),
    (rows, copies): (usize, usize),
    kernel: &str,
) -> (ForwardPlan, Batch) {
    let input: Vec<u8> = (0..k * rows).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) * 0.02).to_le_bytes()).collect();
    let table = Weight::blocks("x", Format::F32, rows, k, Blob::from_vec(input)).expect("a table");
    let mut weights = Vec::new();
    let mut hold = |backend: &mut CpuBackend, w: &Weight| {
        let id = backend.pack(w).expect("a weight");
        let (rows, cols) = (w.rows(), w.cols());
        weights.push(WeightInfo { id, name: w.name().into(), format: w.format(), rows, cols, bytes: w.bytes() });
        id
    };
    let table = hold(backend, &table);
    let buffer = |name: &str, width| Buffer { name: name.into(), width, rows: RowSpace::All };
    let embed = "embedding.f32.portable".to_string();
    let mut calls = vec![OpCall { op: Op::Embedding { table, out: BufId(0) }, kernel: embed, layer: None }];
    let first = weight(format, n, k, 1);
    for _ in 0..copies {
        let weight = hold(backend, &copy(&first));
        let (x, out) = (BufId(0), BufId(1));
        let op = Op::Linear { x, weight, bias: None, accumulate: false, rounding, out };
        calls.push(OpCall { op, kernel: kernel.into(), layer: None });
    }
    let plan = ForwardPlan {
        name: "rate".into(),
        class: "f32".into(),
        bucket: Bucket { rows, selected: 0 },
        buffers: vec![buffer("x", k), buffer("out", n)],
        weights,
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
        calls,
    };
    let row = |t| Row { token: TokenSource::Id(t), position: t, table: 0, slot: t, context: 1, wants: Wants::Nothing };
    (plan, Batch { rows: (0..rows as u32).map(row).collect(), ..Batch::default() })
}

/// The same numbers elsewhere in memory.
fn copy(w: &Weight) -> Weight {
    let of = |bytes: &[u8]| Blob::from_vec(bytes.to_vec());
    let (rows, cols) = (w.rows(), w.cols());
    match (w.data(), w.format()) {
        (WeightData::Affine(a), Format::Affine { bits, group }) => {
            let (words, scales, biases) = (of(&a.words), of(&a.scales), of(&a.biases));
            let data = Affine { words, scales, biases, scale_dtype: a.scale_dtype };
            Weight::affine(w.name(), bits, group, (rows, cols), data).expect("a weight")
        }
        (WeightData::Blocks(bytes), format) => {
            Weight::blocks(w.name(), format, rows, cols, of(bytes)).expect("a weight")
        }
        _ => unreachable!("affine weights are of an affine format"),
    }
}

/// Random quants; the halves that are scales become small numbers because their upper byte is set.
fn weight(format: Format, n: usize, k: usize, seed: u64) -> Weight {
    let mut state = seed * 2 + 1;
    let mut random = |bytes: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (0..bytes).map(next).collect()
    };
    let small = |bytes: &mut [u8], every: usize, at: &[usize], top: u8| {
        for block in bytes.chunks_exact_mut(every) {
            at.iter().for_each(|at| block[*at] = top);
        }
    };
    if let Format::Affine { bits, group } = format {
        let words = random(n * k * bits.bits() / 8);
        let mut scales = random(n * k / group as usize * 2);
        small(&mut scales, 2, &[1], 0x3c);
        let (scales, words) = (Blob::from_vec(scales), Blob::from_vec(words));
        let data = Affine { words, biases: scales.clone(), scales, scale_dtype: DType::BF16 };
        return Weight::affine("w", bits, group, (n, k), data).expect("a weight");
    }
    let mut bytes = random(format.row_bytes(k).expect("whole blocks") * n);
    let (every, at, top): (usize, &[usize], u8) = match format {
        Format::F32 => (4, &[3], 0x3c),
        Format::BF16 => (2, &[1], 0x3c),
        Format::F16 => (2, &[1], 0x20),
        Format::Q6K => (210, &[209], 0x20),
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 => (format.block_bytes(), &[1], 0x20),
        _ => (format.block_bytes(), &[1, 3], 0x20),
    };
    small(&mut bytes, every, at, top);
    Weight::blocks("w", format, n, k, Blob::from_vec(bytes)).expect("a weight")
}
