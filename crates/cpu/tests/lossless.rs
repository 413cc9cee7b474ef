//! BF16 in 12 bits: linears answer the conformance table, over emulated pairs and tiles and over those of the processor where it has
//! them, and exceptions count like every other number.

mod units;

use half::bf16;
use tare_core::{Blob, Format, Weight, WeightData};
use tare_cpu::CpuBackend;
use tare_ops::conformance::{Closeness, cases, check_kernels};
use tare_ops::{
    Backend, Bucket, BufId, Fit, Isa, IsaSet, Op, OpName, OpShape, Order, Rounding, RowSpace, StepOutput, Variant,
};
use units::{ROWS, VOCAB, backend, batch, buffer, linear, packed, planned, weight};

/// Holds the kernels `word` of some levels against the table; how many cases there were.
fn conforms(threads: usize, word: &str, level: impl Fn(Isa) -> bool) -> usize {
    let wanted = |v: &Variant| v.key.contains(&format!(".lossless.{word}.")) && level(v.isa);
    let report = check_kernels(&mut backend(threads), &cases(), Closeness::Bitwise, wanted);
    assert!(report.differences.is_empty(), "{report}");
    report.compared
}

/// Cases of BF16 in any order, of few rows and of many, at the least.
const CASES: usize = 3;

#[test]
fn emulated_linears_answer_the_table() {
    for threads in [1, 3] {
        for word in ["pairs", "tiles"] {
            let compared = conforms(threads, word, |isa| isa == Isa::Portable);
            assert!(compared >= CASES, "{word}: {compared} cases");
        }
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_linears_answer_the_table() {
    for threads in [1, 2, 3, 16] {
        for word in ["pairs", "tiles"] {
            let compared = conforms(threads, word, |isa| isa != Isa::Portable);
            assert!(compared >= CASES, "{word}: {compared} cases; AMX is {:?}", tare_probe::amx::usable());
        }
    }
}

/// A weight of mostly tiny numbers of very many sizes, so that those that matter are exceptions.
fn uneven(cols: usize) -> Weight {
    let number = |i: usize| {
        let hash = (i as u32 ^ 0x51ed).wrapping_mul(2_654_435_761) ^ (i as u32 >> 5).wrapping_mul(0x9e37_79b9);
        let fraction = (hash >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let size = if hash.is_multiple_of(12) { 1.0 } else { 0.5f32.powi(20 + (hash >> 4) as i32 % 20) };
        bf16::from_f32(fraction * size)
    };
    let bytes = (0..VOCAB * cols).flat_map(|i| number(i).to_le_bytes()).collect();
    Weight::blocks("w", Format::BF16, VOCAB, cols, Blob::from_vec(bytes)).unwrap()
}

/// The logits of `rows` rows of noise times `w` by the kernel `key`.
fn logits(backend: &mut CpuBackend, key: &str, w: &Weight, rows: usize) -> Vec<f32> {
    let cols = w.cols();
    let weights = packed(backend, &[weight("table", Format::F32, VOCAB, cols, 1), w.clone()]);
    let ops = [
        Op::Embedding { table: weights[0].id, out: BufId(0) },
        Op::SelectRows { x: BufId(0), out: BufId(1) },
        linear(1, weights[1].id, false, 2),
        Op::Sample { logits: BufId(2) },
    ];
    let buffers = vec![
        buffer("x", cols, RowSpace::All),
        buffer("picked", cols, RowSpace::Selected),
        buffer("logits", VOCAB, RowSpace::Selected),
    ];
    let mut plan = planned(backend, buffers, weights, ops, |_| true);
    plan.bucket = Bucket { rows, selected: rows };
    plan.calls[2].kernel = key.to_string();
    let exe = backend.compile(&plan).unwrap();
    let mut out = StepOutput::default();
    backend.run(exe, &batch(rows), &mut out).unwrap();
    out.rows.iter().flat_map(|r| r.logits.clone()).collect()
}

const WIDTHS: [usize; 3] = [32, 96, 4128];

/// Tiles of panels have the bits of tiles of weights as the file has them.
fn tiles_have_the_bits(level: Isa) {
    for (cols, threads) in WIDTHS.into_iter().flat_map(|cols| [(cols, 1), (cols, 3)]) {
        let (w, mut backend) = (uneven(cols), backend(threads));
        for rows in [7, ROWS] {
            let [packed, plain] = ["linear.bf16.lossless.tiles", "linear.bf16.tiles"]
                .map(|key| logits(&mut backend, &format!("{key}.{level}"), &w, rows));
            let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&packed), bits(&plain), "{cols} columns, {rows} rows, {threads} threads");
        }
    }
}

/// Pairs of panels are close to the exact sums.
fn pairs_are_close(level: Isa) {
    for (cols, threads) in WIDTHS.into_iter().flat_map(|cols| [(cols, 1), (cols, 3)]) {
        let (w, table, mut backend) = (uneven(cols), weight("table", Format::F32, VOCAB, cols, 1), backend(threads));
        let (WeightData::Blocks(w_bytes), WeightData::Blocks(x_bytes)) = (w.data(), table.data()) else { panic!() };
        let ws: Vec<f64> = w_bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect();
        let xs: Vec<f64> =
            x_bytes.as_chunks().0.iter().map(|b| bf16::from_f32(f32::from_le_bytes(*b)).to_f64()).collect();
        for rows in 1..=4 {
            let got = logits(&mut backend, &format!("linear.bf16.lossless.pairs.{level}"), &w, rows);
            for (i, got) in got.iter().enumerate() {
                let (row, n) = (i / VOCAB * 5 % VOCAB, i % VOCAB);
                let products = (0..cols).map(|k| xs[row * cols + k] * ws[n * cols + k]);
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let off = (f64::from(*got) - sum).abs();
                assert!(off <= size * 2f64.powi(-18), "{cols} columns, {rows} rows, logit {i}: {got} and not {sum}");
            }
        }
    }
}

#[test]
fn exceptions_count_in_emulated_products() {
    tiles_have_the_bits(Isa::Portable);
    pairs_are_close(Isa::Portable);
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_products_count_exceptions() {
    tiles_have_the_bits(Isa::Amx);
    pairs_are_close(Isa::Avx512Bf16);
}

/// The shape of a linear or an embedding of BF16 in any order.
fn shape(rows: usize, n: usize, k: usize) -> OpShape {
    OpShape {
        rows,
        n,
        k,
        format: Some(Format::BF16),
        heads: 0,
        kv_heads: 0,
        head_size: 0,
        kv_element_bytes: 0,
        context: 0,
        rounding: Some(Rounding::Bf16),
        order: Order::Free,
    }
}

#[test]
fn other_plans_never_take_it() {
    let backend = backend(1);
    for isa in [IsaSet::new([]), backend.describe().isa] {
        for (op, rows) in [(OpName::Embedding, 1), (OpName::Linear, 1), (OpName::Linear, 64)] {
            let of_op = || backend.variants().iter().filter(|v| v.op == op);
            let fit = |v: &&Variant| v.fit(&shape(rows, 1024, 1024), &isa);
            let best = of_op().find(|v| fit(v) == Fit::Best);
            let taken = best.or_else(|| of_op().find(|v| matches!(fit(v), Fit::Fallback { .. })));
            assert!(taken.is_some_and(|v| !v.key.contains(".lossless.")), "{op}, {rows} rows: {taken:?}");
        }
    }
}

#[test]
fn few_rows_of_wide_layers_have_room() {
    let backend = backend(1);
    let pairs = backend.variants().iter().find(|v| v.key == "linear.bf16.lossless.pairs.portable").unwrap();
    for (rows, k) in [(1, 28_672), (4, 18_944), (4, 28_672)] {
        let fit = pairs.fit(&shape(rows, 4096, k), &IsaSet::new([]));
        assert!(matches!(fit, Fit::Fallback { .. }), "{rows} rows of {k}: {fit:?}");
    }
}
