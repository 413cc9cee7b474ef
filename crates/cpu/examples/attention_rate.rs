//! How fast one row attends to a long context on this host: GB/s of keys and values, and percent of what the same threads
//! read in the same minute. Feedback for who writes kernels, never evidence.
//!
//! `cargo run --release --workspace --example attention_rate [threads] [depths] [page sizes] [kv heads] [heads]`

use std::time::Instant;

use tare_core::{Blob, DType, Format, Weight};
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Executable, ForwardPlan, Isa, KvShape, KvSpan, Op, OpCall, RopeStyle,
    RopeTable, Row, RowSpace, StepOutput, Table, TokenSource, Wants, WeightInfo,
};
use tare_probe::Host;
use tare_probe::ceilings::Sampler;

const HEAD_SIZE: usize = 128;
/// Bytes of a pool at least: more than the last-level cache of most hosts holds.
const COLD: usize = 256 << 20;
const ROUNDS: usize = 9;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut numbers = |default: &str| -> Vec<usize> {
        let text = args.next().unwrap_or_else(|| default.to_string());
        text.split(',').filter_map(|n| n.parse().ok()).collect()
    };
    let threads = numbers("2")[0];
    let (depths, pages) = (numbers("128,1024,8192"), numbers("16,0"));
    let (kv_heads, heads) = (numbers("8")[0], numbers("16")[0]);
    println!("{:>6} {:>6} {:>9} {:>8}  kernel", "depth", "page", "GB/s", "% read");
    for depth in depths {
        for page in &pages {
            // 0 stands for one page that holds the whole context.
            measure(threads, depth, if *page == 0 { depth } else { *page }, (heads, kv_heads));
        }
    }
}

fn measure(threads: usize, depth: usize, page_tokens: usize, (heads, kv_heads): (usize, usize)) {
    let layer_bytes = 2 * kv_heads * HEAD_SIZE * 2 * depth;
    let layers = COLD.div_ceil(layer_bytes).clamp(4, 400);
    let mut backend = CpuBackend::new(CpuConfig { threads, isa: detect_isa(), pin: true }).expect("a backend");
    let kv = KvShape { layers, kv_heads, head_size: HEAD_SIZE, dtype: DType::BF16 };
    let (exe, kernel) = compile(&mut backend, kv, heads);
    let pages = depth.div_ceil(page_tokens);
    let pool = backend.alloc_kv(kv, pages, page_tokens).expect("a pool");
    // Pages out of order, as they are in a pool that has been in use.
    let order: Vec<u32> = (0..pages as u32).map(|p| (p * 7919 + 13) % pages as u32).collect();
    for page in 0..pages as u32 {
        let tokens = page_tokens;
        let bytes =
            (0..tokens * kv.token_bytes()).map(|i| if i % 2 == 1 { 0x3c } else { (i * 37 + page as usize) as u8 });
        let span = KvSpan { kv: pool, page, start: 0, tokens };
        backend.write_kv(span, &bytes.collect::<Vec<_>>()).expect("a span");
    }
    let row = Row {
        token: TokenSource::Id(0),
        position: 0,
        table: 0,
        slot: depth as u32 - 1,
        context: depth as u32,
        wants: Wants::Nothing,
    };
    let batch = Batch { rows: vec![row], tables: vec![Table { kv: pool, pages: order }], ..Batch::default() };
    let sampler = Sampler::new(&Host::read(), threads, COLD as u64, 20_000_000).expect("a sampler");
    let mut out = StepOutput::default();
    let mut best = f64::INFINITY;
    let mut read: f64 = 0.0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        backend.run(exe, &batch, &mut out).expect("a step");
        best = best.min(start.elapsed().as_secs_f64());
        for s in sampler.read() {
            read = read.max(s.amount as f64 / s.ns as f64);
        }
    }
    let rate = (layers * layer_bytes) as f64 / best / 1e9;
    println!("{depth:>6} {page_tokens:>6} {rate:>9.2} {:>8.1}  {kernel}", 100.0 * rate / read);
}

fn compile(backend: &mut CpuBackend, kv: KvShape, heads: usize) -> (Executable, String) {
    let width = heads * HEAD_SIZE;
    let input: Vec<u8> = (0..width).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) * 0.02).to_le_bytes()).collect();
    let table = Weight::blocks("q", Format::F32, 1, width, Blob::from_vec(input)).expect("a table");
    let id = backend.pack(&table).expect("a weight");
    let info = WeightInfo { id, name: "q".into(), format: Format::F32, rows: 1, cols: width, bytes: table.bytes() };
    let host = detect_isa();
    let fits = |v: &&tare_ops::Variant| v.key.starts_with("attention.") && host.has(v.isa) && v.isa != Isa::Portable;
    let kernel = backend.variants().iter().find(fits).expect("a kernel").key.clone();
    let embed = "embedding.f32.portable".to_string();
    let mut calls = vec![OpCall { op: Op::Embedding { table: id, out: BufId(0) }, kernel: embed, layer: None }];
    for layer in 0..kv.layers as u32 {
        let kv_of_head = (0..heads).map(|h| (h * kv.kv_heads / heads) as u16).collect();
        let op = Op::Attention { layer, q: BufId(0), kv_of_head, scale: 0.088, out: BufId(1) };
        calls.push(OpCall { op, kernel: kernel.clone(), layer: None });
    }
    let buffer = |name: &str| Buffer { name: name.into(), width, rows: RowSpace::All };
    let plan = ForwardPlan {
        name: "rate".into(),
        class: "bf16".into(),
        bucket: Bucket { rows: 1, selected: 0 },
        buffers: vec![buffer("q"), buffer("out")],
        weights: vec![info],
        rope: RopeTable { inv_freq: Vec::new(), factor: 1.0, style: RopeStyle::HalfSplit },
        kv,
        calls,
    };
    (backend.compile(&plan).expect("a plan"), kernel)
}
