//! How fast the linears of a decoder layer run in tiles: TFLOP/s, and percent of what the same threads reach in the same minute
//! with tiles of random numbers out of L2. Feedback for who writes kernels, never evidence.
//!
//! `cargo run --release --workspace --example tiles_rate [threads, comma separated] [rows] [formats] [emulated]`
//!
//! A step is eight layers of Qwen3-0.6B, attention and norms left out, whose weights are in no cache. Formats are BF16 and those
//! that MLX packs.

use std::time::Instant;

use tare_core::{Affine, Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, ForwardPlan, Isa, KvShape, Op, OpCall, RopeStyle, RopeTable, Rounding, Row,
    RowSpace, StepOutput, TokenSource, Wants, WeightInfo,
};
use tare_probe::Host;
use tare_probe::ceilings::{Sampled, Sampler};

/// Layers of a step.
const LAYERS: usize = 8;
/// Widths of the buffers: hidden rows, heads, keys, the gated unit.
const WIDTHS: [usize; 4] = [1024, 2048, 1024, 3072];
/// What a layer multiplies: from buffer, to buffer.
const LINEARS: [(u16, u16); 7] = [(0, 1), (0, 2), (0, 2), (1, 0), (0, 3), (0, 3), (3, 0)];

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().unwrap_or_else(|| "1,2,4,8,16".into());
    let rows = args.next().unwrap_or_else(|| "8,32,128,512".into());
    let formats = args.next().unwrap_or_else(|| "bf16,w4g128,w8g64".into());
    let emulated = args.next().is_some_and(|a| a == "emulated");
    let numbers = |list: &str| list.split(',').filter_map(|n| n.parse().ok()).collect::<Vec<usize>>();
    println!("AMX         {:?}", tare_probe::amx::usable());
    println!("{:>7} {:8} {:>5} {:>9} {:>9} {:>9} {:>7}", "threads", "format", "rows", "ms", "TFLOP/s", "from L2", "%");
    for threads in numbers(&threads) {
        let sampler = Sampler::new(&Host::read(), threads, 64 << 20, 20_000_000).expect("a sampler");
        for format in formats.split(',').filter_map(|f| f.parse::<Format>().ok()) {
            for rows in numbers(&rows) {
                measure(threads, format, rows, emulated, &sampler);
            }
        }
    }
}

fn measure(threads: usize, format: Format, rows: usize, emulated: bool, sampler: &Sampler) {
    let config = CpuConfig { threads, isa: detect_isa(), pin: true, keep_workers: false };
    let (backend, level) = match emulated {
        true => (tare_emulated::backend(config), Isa::Portable),
        false => (CpuBackend::new(config), Isa::Amx),
    };
    let mut backend = backend.expect("a backend");
    let plan = plan(&mut backend, format, rows, &format!("linear.{format}.tiles.{level}"));
    let exe = match backend.compile(&plan) {
        Ok(exe) => exe,
        Err(why) => {
            return println!("{threads:>7} {format:8} {rows:>5} unavailable: {why}", format = format.to_string());
        }
    };
    let row = |t| Row { token: TokenSource::Id(t), position: t, table: 0, slot: t, context: 1, wants: Wants::Nothing };
    let batch = Batch { rows: (0..rows as u32).map(row).collect(), ..Batch::default() };
    let mut out = StepOutput::default();
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let start = Instant::now();
        backend.run(exe, &batch, &mut out).expect("a step");
        times.push(start.elapsed().as_secs_f64());
        let rate = |s: &Sampled| s.amount as f64 / s.ns as f64 / 1e3;
        rates.extend(sampler.multiply_tiles().available().iter().flat_map(|all| all.iter().map(rate)));
    }
    let middle = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let per_layer: usize = LINEARS.iter().map(|(x, out)| WIDTHS[usize::from(*x)] * WIDTHS[usize::from(*out)]).sum();
    let (time, ceiling) = (middle(&mut times), middle(&mut rates));
    let rate = (2 * rows * per_layer * LAYERS) as f64 / time / 1e12;
    let (ms, percent, format) = (time * 1e3, 100.0 * rate / ceiling, format.to_string());
    println!("{threads:>7} {format:8} {rows:>5} {ms:>9.2} {rate:>9.3} {ceiling:>9.3} {percent:>7.1}");
}

fn plan(backend: &mut CpuBackend, format: Format, rows: usize, kernel: &str) -> ForwardPlan {
    let mut state = 1u64;
    let mut random = move |bytes: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (0..bytes).map(next).collect()
    };
    let mut weights = Vec::new();
    let mut hold = |w: &Weight| {
        let (id, name) = (backend.pack(w).expect("a weight"), w.name().to_string());
        weights.push(WeightInfo { id, name, format: w.format(), rows: w.rows(), cols: w.cols(), bytes: w.bytes() });
        id
    };
    let mut calls = Vec::new();
    for (i, width) in WIDTHS.into_iter().enumerate() {
        let input: Vec<u8> =
            random(width * rows).iter().flat_map(|b| (f32::from(*b) / 128.0 - 1.0).to_le_bytes()).collect();
        let table = hold(&Weight::blocks("x", Format::F32, rows, width, Blob::from_vec(input)).expect("a table"));
        let op = Op::Embedding { table, out: BufId(i as u16) };
        calls.push(OpCall { op, kernel: "embedding.f32.portable".into(), layer: None });
    }
    for (x, out) in [LINEARS; LAYERS].as_flattened() {
        let (n, k) = (WIDTHS[usize::from(*out)], WIDTHS[usize::from(*x)]);
        let small = |mut bytes: Vec<u8>| {
            // Numbers around 2^-7.
            bytes.chunks_exact_mut(2).for_each(|b| b[1] = b[1] & 0x80 | 0x3c);
            Blob::from_vec(bytes)
        };
        let weight = match format {
            Format::Affine { bits, group } => {
                let groups = n * k / group as usize;
                let (words, scales, biases) = (random(n * k * bits.bits() / 8), random(2 * groups), random(2 * groups));
                let (words, scales, biases) = (Blob::from_vec(words), small(scales), small(biases));
                let data = Affine { words, scales, biases, scale_dtype: DType::BF16 };
                Weight::affine("w", bits, group, (n, k), data).expect("a weight")
            }
            _ => Weight::blocks("w", Format::BF16, n, k, small(random(2 * n * k))).expect("a weight"),
        };
        let (weight, rounding) = (hold(&weight), Rounding::Bf16);
        let op = Op::Linear { x: BufId(*x), weight, bias: None, accumulate: false, rounding, out: BufId(*out) };
        calls.push(OpCall { op, kernel: kernel.into(), layer: None });
    }
    let buffer = |width: &usize| Buffer { name: format!("of {width}"), width: *width, rows: RowSpace::All };
    ForwardPlan {
        name: "rate".into(),
        class: "w4a16-free".into(),
        bucket: Bucket { rows, selected: 0 },
        buffers: WIDTHS.iter().map(buffer).collect(),
        weights,
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv: KvShape { layers: 1, kv_heads: 1, head_size: 1, dtype: DType::F32 },
        calls,
    }
}
