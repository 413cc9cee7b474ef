//! How fast this host attends, each kernel in turn: for one row GB/s of keys and values, and percent of what the same
//! threads read in the same minute; for a prompt's rows GFLOP/s, and percent of their F32 multiply-adds. Feedback for who
//! writes kernels, never evidence.
//!
//! `cargo run --release --workspace --example attention_rate [threads] [depths] [rows] [page sizes] [kv heads] [heads]`

use std::time::Instant;

use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Executable, ForwardPlan, Isa, KvShape, KvSpan, Op, OpCall, RopeStyle,
    RopeTable, Row, RowSpace, StepOutput, Table, TokenSource, Wants, WeightInfo,
};
use tare_probe::Host;
use tare_probe::ceilings::{Sampled, Sampler};

const HEAD_SIZE: usize = 128;
/// Bytes of a pool at least where one row is measured: more than the last-level cache of most hosts holds.
const COLD: usize = 256 << 20;
const ROUNDS: usize = 9;

/// What is attended.
#[derive(Clone, Copy)]
struct Scene {
    threads: usize,
    depth: usize,
    /// The last ones of the context.
    rows: usize,
    page_tokens: usize,
    heads: usize,
    kv_heads: usize,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut numbers = |default: &str| -> Vec<usize> {
        let text = args.next().unwrap_or_else(|| default.to_string());
        text.split(',').filter_map(|n| n.parse().ok()).collect()
    };
    let threads = numbers("2")[0];
    let (depths, rows, pages) = (numbers("128,512,2048,8192"), numbers("1,512"), numbers("16,0"));
    let (kv_heads, heads) = (numbers("8")[0], numbers("16")[0]);
    println!(
        "{:>6} {:>5} {:>6} {:>9} {:>7} {:>8} {:>7}  kernel",
        "depth", "rows", "page", "GB/s", "% read", "GFLOP/s", "% FMA"
    );
    for depth in depths {
        for rows in rows.iter().filter(|rows| **rows <= depth) {
            for page in &pages {
                // 0 stands for one page that holds the whole context.
                let page_tokens = if *page == 0 { depth } else { *page };
                measure(Scene { threads, depth, rows: *rows, page_tokens, heads, kv_heads });
            }
        }
    }
}

fn measure(s: Scene) {
    let layer_bytes = 2 * s.kv_heads * HEAD_SIZE * 2 * s.depth;
    let layers = if s.rows == 1 { COLD.div_ceil(layer_bytes).clamp(4, 400) } else { 1 };
    let mut backend =
        CpuBackend::new(CpuConfig { threads: s.threads, isa: detect_isa(), pin: true, keep_workers: false })
            .expect("a backend");
    let kv = KvShape { layers, kv_heads: s.kv_heads, head_size: HEAD_SIZE, dtype: DType::BF16 };
    let kernels = kernels(&backend, s.rows);
    let exes: Vec<Executable> = kernels.iter().map(|kernel| compile(&mut backend, kv, s, kernel)).collect();
    let pages = s.depth.div_ceil(s.page_tokens);
    let pool = backend.alloc_kv(kv, pages, s.page_tokens).expect("a pool");
    // Pages out of order, as they are in a pool that has been in use.
    let order: Vec<u32> = (0..pages as u32).map(|p| (p * 7919 + 13) % pages as u32).collect();
    for page in 0..pages as u32 {
        let tokens = s.page_tokens;
        let bytes =
            (0..tokens * kv.token_bytes()).map(|i| if i % 2 == 1 { 0x3c } else { (i * 37 + page as usize) as u8 });
        let span = KvSpan { kv: pool, page, start: 0, tokens };
        backend.write_kv(span, &bytes.collect::<Vec<_>>()).expect("a span");
    }
    let row = |slot: usize| Row {
        token: TokenSource::Id(0),
        position: 0,
        table: 0,
        slot: slot as u32,
        context: slot as u32 + 1,
        wants: Wants::Nothing,
    };
    let rows = (s.depth - s.rows..s.depth).map(row).collect();
    let batch = Batch { rows, tables: vec![Table { kv: pool, pages: order }], ..Batch::default() };
    let seen: usize = batch.rows.iter().map(|row| row.context as usize).sum();
    let sampler = Sampler::new(&Host::read(), s.threads, COLD as u64, 20_000_000).expect("a sampler");
    let mut out = StepOutput::default();
    let (mut best, mut read, mut fma) = (vec![f64::INFINITY; exes.len()], 0.0, 0.0);
    for _ in 0..ROUNDS {
        for (exe, best) in exes.iter().zip(&mut best) {
            let start = Instant::now();
            backend.run(*exe, &batch, &mut out).expect("a step");
            *best = best.min(start.elapsed().as_secs_f64());
        }
        (read, fma) = (fastest(read, sampler.read()), fastest(fma, sampler.multiply_add()));
    }
    for (kernel, best) in kernels.iter().zip(best) {
        let rate = (layers * layer_bytes) as f64 / best / 1e9;
        let flops = (4 * layers * s.heads * HEAD_SIZE * seen) as f64 / best / 1e9;
        let Scene { depth, rows, page_tokens, .. } = s;
        let (of_read, of_fma) = (100.0 * rate / read, 100.0 * flops / fma);
        println!(
            "{depth:>6} {rows:>5} {page_tokens:>6} {rate:>9.2} {of_read:>7.1} {flops:>8.1} {of_fma:>7.1}  {kernel}"
        );
    }
}

/// The fastest of these samples and what was the fastest before, in a nanosecond.
fn fastest(before: f64, samples: Vec<Sampled>) -> f64 {
    samples.iter().fold(before, |most, s| most.max(s.amount as f64 / s.ns as f64))
}

/// The kernels to compare: those of the best level that take so many rows, in whatever order they add.
fn kernels(backend: &CpuBackend, rows: usize) -> Vec<String> {
    let host = detect_isa();
    let all = backend.variants().iter().filter(|v| v.key.starts_with("attention.") && host.has(v.isa));
    let few = |key: &str| rows > 1 || !key.contains("columns") && !key.contains("tiles");
    let best = all.clone().map(|v| v.isa).find(|isa| *isa != Isa::Amx).unwrap_or(Isa::Portable);
    all.filter(|v| (v.isa == best || v.isa == Isa::Amx) && few(&v.key)).map(|v| v.key.clone()).collect()
}

fn compile(backend: &mut CpuBackend, kv: KvShape, s: Scene, kernel: &str) -> Executable {
    let width = s.heads * HEAD_SIZE;
    let input: Vec<u8> = (0..width).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) * 0.02).to_le_bytes()).collect();
    let table = Weight::blocks("q", Format::F32, 1, width, Blob::from_vec(input)).expect("a table");
    let id = backend.pack(&table).expect("a weight");
    let info = WeightInfo { id, name: "q".into(), format: Format::F32, rows: 1, cols: width, bytes: table.bytes() };
    let embed = "embedding.f32.portable".to_string();
    let mut calls = vec![OpCall { op: Op::Embedding { table: id, out: BufId(0) }, kernel: embed, layer: None }];
    for layer in 0..kv.layers as u32 {
        let kv_of_head = (0..s.heads).map(|h| (h * kv.kv_heads / s.heads) as u16).collect();
        let op = Op::Attention { layer, q: BufId(0), kv_of_head, scale: 0.088, out: BufId(1) };
        calls.push(OpCall { op, kernel: kernel.to_string(), layer: None });
    }
    let buffer = |name: &str| Buffer { name: name.into(), width, rows: RowSpace::All };
    let plan = ForwardPlan {
        name: "rate".into(),
        class: "bf16-free".into(),
        bucket: Bucket { rows: s.rows, selected: 0 },
        buffers: vec![buffer("q"), buffer("out")],
        weights: vec![info],
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv,
        calls,
    };
    backend.compile(&plan).expect("a plan")
}
