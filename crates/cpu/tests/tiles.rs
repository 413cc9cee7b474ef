//! Linears in tiles: the conformance table and whole steps over emulated tiles, and over those of the processor where it
//! has them.

mod units;

use tare_core::Format;
use tare_cpu::CpuBackend;
use tare_ops::conformance::{Case, Closeness, cases, check_kernels, run_kernel};
use tare_ops::{Backend, BufId, Fit, Isa, Op, OpName, Order, ReferenceBackend, RowSpace, StepOutput, Variant};
use units::{ROWS, VOCAB, backend, batch, buffer, linear, packed, planned, weight};

fn in_tiles(v: &Variant) -> bool {
    v.op == OpName::Linear && v.key.contains(".tiles.")
}

/// Holds the kernels of tiles of some levels against the table; how many pairs of case and kernel there were.
fn conforms(threads: usize, wanted: impl Fn(Isa) -> bool) -> usize {
    let wanted = |v: &Variant| in_tiles(v) && wanted(v.isa);
    let report = check_kernels(&mut backend(threads), &cases(), Closeness::Bitwise, wanted);
    assert!(report.differences.is_empty(), "{report}");
    report.compared
}

/// Cases of five rows and more, at the least: four in each format that has kernels of tiles.
const CASES: usize = 4 * (Format::ALL.len() - 2);

#[test]
fn emulated_tiles_answer_the_table() {
    for threads in [1, 3] {
        assert!(conforms(threads, |isa| isa != Isa::Amx) >= CASES);
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_linears_answer_the_table() {
    for threads in [1, 2, 3, 16] {
        assert!(conforms(threads, |isa| isa == Isa::Amx) >= CASES, "AMX is {:?}", tare_probe::amx::usable());
    }
}

/// What the kernels over tiles do: BF16 by BF16, and codes by integers of 15 bits.
const WORDS: [&str; 3] = ["tiles", "i16.tiles", "a15.tiles"];

/// What a case gives on the kernel `word` of its format over tiles of `level`, if that takes it.
fn bits_of(backend: &mut CpuBackend, case: &Case, word: &str, level: Isa) -> Option<Vec<u32>> {
    let key = format!("linear.{}.{word}.{level}", case.format()?);
    let (shape, isa) = (case.shape(case.call), backend.describe().isa);
    let v = backend.variants().iter().find(|v| v.key == key)?;
    if matches!(v.fit(&shape, &isa), Fit::No { .. }) {
        return None;
    }
    let got = run_kernel(backend, case, &key).unwrap();
    Some(got.iter().map(|x| x.to_bits()).collect())
}

/// Every case on two backends: the same bits. How many there were.
fn agree(a: (usize, Isa), b: (usize, Isa)) -> usize {
    let (mut one, mut other) = (backend(a.0), backend(b.0));
    let mut compared = 0;
    let cases = cases();
    let linears = cases.iter().filter(|c| c.op() == OpName::Linear);
    for (case, word) in linears.flat_map(|case| WORDS.map(|word| (case, word))) {
        let (Some(x), Some(y)) = (bits_of(&mut one, case, word, a.1), bits_of(&mut other, case, word, b.1)) else {
            continue;
        };
        assert!(x == y, "{}, {word}: {} and {} do not agree on {a:?} and {b:?}", case.name, x.len(), y.len());
        compared += 1;
    }
    compared
}

#[test]
fn shares_cannot_be_seen_in_the_sums() {
    assert!(agree((1, Isa::Portable), (5, Isa::Portable)) >= CASES);
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_gives_the_bits_of_emulated_tiles() {
    assert!(agree((2, Isa::Amx), (1, Isa::Portable)) >= CASES, "AMX is {:?}", tare_probe::amx::usable());
}

const HIDDEN: usize = 96;
const FFN: usize = 160;

/// A gated unit twice. The weights of one are as the file has them and those of the other in panels, so that both sides of a
/// product are asked of the same rows; what they add to is what they read again, so that no copy of it stays fresh.
fn logits(backend: &mut dyn Backend, wanted: impl Fn(&Variant) -> bool) -> Vec<f32> {
    let all = [
        weight("table", Format::BF16, VOCAB, HIDDEN, 1),
        weight("gate", Format::BF16, FFN, HIDDEN, 2),
        weight("up", Format::Q8_0, FFN, HIDDEN, 3),
        weight("down", Format::BF16, HIDDEN, FFN, 4),
        weight("down again", Format::Q8_0, HIDDEN, FFN, 5),
    ];
    let weights = packed(backend, &all);
    let id = |weight: usize| weights[weight].id;
    let unit = |down| {
        let swiglu = Op::SwiGlu { gate: BufId(1), up: BufId(2), out: BufId(1) };
        [linear(0, id(1), false, 1), linear(0, id(2), false, 2), swiglu, linear(1, id(down), true, 0)]
    };
    let ops = [Op::Embedding { table: id(0), out: BufId(0) }].into_iter().chain(unit(3)).chain(unit(4));
    let ops = ops.chain([
        Op::SelectRows { x: BufId(0), out: BufId(3) },
        linear(3, id(0), false, 4),
        Op::Sample { logits: BufId(4) },
    ]);
    let ops: Vec<Op> = ops.collect();
    let buffers = vec![
        buffer("hidden", HIDDEN, RowSpace::All),
        buffer("gate", FFN, RowSpace::All),
        buffer("up", FFN, RowSpace::All),
        buffer("picked", HIDDEN, RowSpace::Selected),
        buffer("logits", VOCAB, RowSpace::Selected),
    ];
    let plan = planned(backend, buffers, weights, ops, |v| v.op != OpName::Linear || wanted(v));
    let exe = backend.compile(&plan).unwrap();
    let mut out = StepOutput::default();
    // Twice, so that what the first step left is in the way of the second.
    for rows in [ROWS, ROWS - 8] {
        backend.run(exe, &batch(rows), &mut out).unwrap();
    }
    out.rows.iter().flat_map(|r| r.logits.clone()).collect()
}

fn a_step_is_close_to_the_reference(level: Isa) {
    let want = logits(&mut ReferenceBackend::new(), |v| v.order == Order::Reference);
    let size = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    for threads in [1, 2, 5] {
        let got = logits(&mut backend(threads), |v| in_tiles(v) && v.isa == level);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= 0.01 * size, "{threads} threads, logit {i}: {got} and not {want} of {size}");
        }
    }
}

#[test]
fn a_step_over_emulated_tiles_is_close_to_the_reference() {
    a_step_is_close_to_the_reference(Isa::Portable);
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_steps_are_close_to_the_reference() {
    a_step_is_close_to_the_reference(Isa::Amx);
}
