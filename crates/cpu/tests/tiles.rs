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

/// Formats of codes: all but F32, F16 and BF16.
const CODED: usize = Format::ALL.len() - 3;

/// What the kernels over tiles do, BF16 by BF16 and codes by integers of 15 bits, and how many cases each takes at the
/// least: in every format five of five rows and more with activations in BF16, three of five to eight rows, and three of
/// these with activations in integers.
const WORDS: [(&str, usize); 3] = [("tiles", 5 * (CODED + 1)), ("i16.tiles", 3 * CODED), ("a15.tiles", 3 * CODED)];

/// Holds the kernels of each word over tiles of `level` against the table.
fn conforms(threads: usize, level: Isa) {
    let (mut backend, cases) = (backend(threads), cases());
    for (word, least) in WORDS {
        let wanted = |v: &Variant| v.format.is_some_and(|f| v.key == format!("linear.{f}.{word}.{level}"));
        let report = check_kernels(&mut backend, &cases, Closeness::Bitwise, wanted);
        assert!(report.differences.is_empty(), "{report}");
        enough(word, report.compared, least);
    }
}

/// That as many cases were compared as there are.
fn enough(word: &str, compared: usize, least: usize) {
    assert!(compared >= least, "{word}: {compared} cases and not {least}; AMX is {:?}", tare_probe::amx::usable());
}

#[test]
fn emulated_tiles_answer_the_table() {
    for threads in [1, 3] {
        conforms(threads, Isa::Portable);
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_linears_answer_the_table() {
    for threads in [1, 2, 3, 16] {
        conforms(threads, Isa::Amx);
    }
}

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

/// Every case on two backends: the same bits.
fn agree(a: (usize, Isa), b: (usize, Isa)) {
    let (mut one, mut other, cases) = (backend(a.0), backend(b.0), cases());
    for (word, least) in WORDS {
        let mut compared = 0;
        for case in cases.iter().filter(|c| c.op() == OpName::Linear) {
            let (Some(x), Some(y)) = (bits_of(&mut one, case, word, a.1), bits_of(&mut other, case, word, b.1)) else {
                continue;
            };
            assert!(x == y, "{}, {word}: {} and {} do not agree on {a:?} and {b:?}", case.name, x.len(), y.len());
            compared += 1;
        }
        enough(word, compared, least);
    }
}

#[test]
fn shares_cannot_be_seen_in_the_sums() {
    agree((1, Isa::Portable), (5, Isa::Portable));
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_gives_the_bits_of_emulated_tiles() {
    agree((2, Isa::Amx), (1, Isa::Portable));
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
