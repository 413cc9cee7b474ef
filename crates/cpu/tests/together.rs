//! Calls that run together, and rows that are kept in tiles alone: the same bits as one by one.

mod units;

use half::bf16;
use tare_core::Format;
use tare_cpu::{CpuBackend, Dispatch, Dose, Split};
use tare_ops::{Backend, BufId, Executable, ForwardPlan, Isa, Launched, Op, OpName, RowSpace, StepOutput, Variant};
use units::{ROWS, VOCAB, backend, batch, buffer, linear, packed, planned, weight};

const HIDDEN: usize = 576;

/// What the plan of a test looks like.
#[derive(Clone, Copy, Debug)]
struct Layer {
    /// Of gate, up and down.
    formats: [Format; 3],
    /// Outputs of the unit.
    ffn: usize,
    /// Whether the unit writes over its gate.
    in_place: bool,
    /// A buffer that is read again at the end, so that it must be there.
    read: Option<u16>,
}

const HIDDEN_BUF: u16 = 0;
const NORMED: u16 = 1;
const GATE: u16 = 2;
const UP: u16 = 3;
const UNIT: u16 = 4;

/// Two feed-forward layers over the same weights; every linear of five rows and more in tiles of `level`.
fn compiled(backend: &mut CpuBackend, layer: Layer, level: Isa) -> (Executable, ForwardPlan) {
    let Layer { formats: [gate, up, down], ffn, .. } = layer;
    let all = [
        weight("table", Format::BF16, VOCAB, HIDDEN, 1),
        weight("norm", Format::F32, 1, HIDDEN, 2),
        weight("gate", gate, ffn, HIDDEN, 3),
        weight("up", up, ffn, HIDDEN, 4),
        weight("down", down, HIDDEN, ffn, 5),
    ];
    let weights = packed(backend, &all);
    let id = |weight: usize| weights[weight].id;
    let unit = if layer.in_place { GATE } else { UNIT };
    let block = [
        Op::RmsNorm { x: BufId(HIDDEN_BUF), weight: id(1), eps: 1e-6, out: BufId(NORMED) },
        linear(NORMED, id(2), false, GATE),
        linear(NORMED, id(3), false, UP),
        Op::SwiGlu { gate: BufId(GATE), up: BufId(UP), out: BufId(unit) },
        linear(unit, id(4), true, HIDDEN_BUF),
    ];
    let mut ops = vec![Op::Embedding { table: id(0), out: BufId(HIDDEN_BUF) }];
    ops.extend(block.clone());
    ops.extend(block);
    ops.extend([
        Op::SelectRows { x: BufId(HIDDEN_BUF), out: BufId(5) },
        linear(5, id(0), false, 6),
        Op::Sample { logits: BufId(6) },
    ]);
    if let Some(buffer) = layer.read {
        // Twice is enough: once after each layer would change nothing else.
        let wide = if buffer == NORMED { 7 } else { 8 };
        ops.insert(11, Op::SelectRows { x: BufId(buffer), out: BufId(wide) });
        ops.insert(6, Op::SelectRows { x: BufId(buffer), out: BufId(wide) });
    }
    let buffers = vec![
        buffer("hidden", HIDDEN, RowSpace::All),
        buffer("normed", HIDDEN, RowSpace::All),
        buffer("gate", ffn, RowSpace::All),
        buffer("up", ffn, RowSpace::All),
        buffer("unit", ffn, RowSpace::All),
        buffer("picked", HIDDEN, RowSpace::Selected),
        buffer("logits", VOCAB, RowSpace::Selected),
        buffer("normed again", HIDDEN, RowSpace::Selected),
        buffer("wide again", ffn, RowSpace::Selected),
    ];
    let tiles = |v: &Variant| v.op != OpName::Linear || (v.key.contains(".tiles.") && v.isa == level);
    let plan = planned(backend, buffers, weights, ops, tiles);
    (backend.compile(&plan).unwrap(), plan)
}

/// The bits of all logits of steps of two sizes, the second over what the first left.
fn bits(backend: &mut CpuBackend, exe: Executable) -> Vec<u32> {
    let mut out = StepOutput::default();
    let mut all = Vec::new();
    for rows in [ROWS, 5] {
        backend.run(exe, &batch(rows), &mut out).unwrap();
        all.extend(out.rows.iter().flat_map(|r| r.logits.iter().map(|x| x.to_bits())));
    }
    assert!(all.iter().all(|b| f32::from_bits(*b).is_finite()));
    all
}

/// Stages that are gated units together with their linears.
fn units(backend: &mut CpuBackend, exe: Executable) -> usize {
    let ran = backend.dispatches(exe, &batch(ROWS)).unwrap();
    let unit = |d: &&Dispatch| matches!(d.split, Split::Fixed { unit: "squares of 16 units by 32 rows", .. });
    ran.iter().filter(unit).count()
}

/// Stages that lay rows out in tiles and do nothing else.
fn copies(backend: &mut CpuBackend, exe: Executable) -> usize {
    backend.dispatches(exe, &batch(ROWS)).unwrap().iter().filter(|d| d.stage == "tiles").count()
}

const BF16: [Format; 3] = [Format::BF16; 3];
const CODED: [Format; 3] = [Format::Q8_0; 3];

fn layers() -> impl Iterator<Item = Layer> {
    // Widths that end a tile, half a tile and neither; an odd number of squares, and more than are multiplied together.
    let plain = [160, 176, 150, 31].into_iter().map(|ffn| (BF16, ffn));
    let coded = [32, 160].into_iter().map(|ffn| (CODED, ffn));
    plain.chain(coded).map(|(formats, ffn)| Layer { formats, ffn, in_place: ffn != 176, read: None })
}

fn together_is_one_by_one(level: Isa) {
    for layer in layers() {
        for threads in [1, 3] {
            let mut b = backend(threads);
            let (fused, _) = compiled(&mut b, layer, level);
            assert_eq!((units(&mut b, fused), copies(&mut b, fused)), (2, 1), "{layer:?}: the head has a copy");
            let got = bits(&mut b, fused);
            for read in [UP, NORMED] {
                let (apart, _) = compiled(&mut b, Layer { read: Some(read), ..layer }, level);
                let expected = if read == NORMED { (2, 3) } else { (0, 3) };
                assert_eq!((units(&mut b, apart), copies(&mut b, apart)), expected, "{layer:?}, {read} is read again");
                assert!(bits(&mut b, apart) == got, "{layer:?}, {threads} threads, {read} is read again");
            }
        }
    }
}

#[test]
fn units_and_norms_in_emulated_tiles_give_the_bits_of_their_calls() {
    together_is_one_by_one(Isa::Portable);
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_units_and_norms_give_the_bits_of_their_calls() {
    together_is_one_by_one(Isa::Amx);
}

#[test]
fn what_does_not_belong_together_stays_apart() {
    let layer = Layer { formats: CODED, ffn: 160, in_place: true, read: None };
    let mixed = |gate, up, down| Layer { formats: [gate, up, down], ..layer };
    for (layer, why) in [
        (Layer { read: Some(GATE), in_place: false, ..layer }, "the gate is read again"),
        (Layer { read: Some(UNIT), in_place: false, ..layer }, "what the unit gives is read as it is"),
        (mixed(Format::Q8_0, Format::BF16, Format::Q8_0), "two layouts"),
        (mixed(Format::BF16, Format::BF16, Format::Q8_0), "the linear that follows wants the other side"),
    ] {
        let mut b = backend(2);
        let (exe, _) = compiled(&mut b, layer, Isa::Portable);
        assert_eq!(units(&mut b, exe), 0, "{why}");
    }
}

/// A step call by call.
fn apart(backend: &mut CpuBackend, exe: Executable, rows: &[usize]) -> Vec<Launched> {
    let (mut launched, mut out) = (Vec::new(), StepOutput::default());
    backend.run_apart(exe, &batch(ROWS), rows, &mut out, &mut launched).unwrap();
    launched
}

#[test]
fn calls_that_run_together_leave_what_the_last_one_gives_rounded() {
    let rows = [0, 16, 30, ROWS - 1];
    for formats in [BF16, CODED] {
        let layer = Layer { formats, ffn: 160, in_place: true, read: None };
        let mut b = backend(2);
        let (fused, _) = compiled(&mut b, layer, Isa::Portable);
        // A buffer that is read again is left by a call of its own, in F32.
        let (one_by_one, _) = compiled(&mut b, Layer { read: Some(UP), ..layer }, Isa::Portable);
        let (normed, _) = compiled(&mut b, Layer { read: Some(NORMED), ..layer }, Isa::Portable);
        let launched = apart(&mut b, fused, &rows);
        let calls: Vec<_> = launched.iter().map(|l| l.calls.clone()).collect();
        assert_eq!(calls, [0..1, 1..2, 2..5, 5..6, 6..7, 7..10, 10..11, 11..12, 12..13, 13..14]);
        let (unit, norm) = (&launched[2].left, &launched[1].left);
        assert!(unit.len() == 1 && unit[0].bf16 && norm[0].bf16);
        let rounded = |values: &[f32]| values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect::<Vec<_>>();
        let alone = apart(&mut b, one_by_one, &rows);
        let of = |launched: &[Launched], call: usize| {
            let l = launched.iter().find(|l| l.calls == (call..call + 1)).unwrap();
            assert!(!l.left[0].bf16, "call {call}");
            (l.left[0].buffer, rounded(&l.left[0].values))
        };
        assert_eq!((unit[0].buffer, unit[0].values.clone()), of(&alone, 4), "{formats:?}");
        assert_eq!((norm[0].buffer, norm[0].values.clone()), of(&apart(&mut b, normed, &rows), 1), "{formats:?}");
    }
}

#[test]
fn a_part_runs_what_is_carried_with_its_last_call_and_a_delay_stands_behind_it() {
    let layer = Layer { formats: CODED, ffn: 160, in_place: true, read: None };
    let mut b = backend(2);
    let (exe, plan) = compiled(&mut b, layer, Isa::Portable);
    assert_eq!(b.carried(exe).unwrap()[2], 2..5);
    let stages = |b: &mut CpuBackend, calls: &[usize]| {
        let part = b.part(exe, calls).unwrap();
        b.dispatches(part, &batch(ROWS)).unwrap().len()
    };
    assert_eq!((stages(&mut b, &[2, 3]), stages(&mut b, &[4])), (0, 1));
    let all: Vec<usize> = (0..plan.calls.len()).collect();
    let delayed = b.part(exe, &all).unwrap();
    b.plant(delayed, &[3], Dose::Nanoseconds(1)).unwrap();
    let ran = b.dispatches(delayed, &batch(ROWS)).unwrap();
    let spins: Vec<usize> = ran.iter().filter(|d| d.stage == "planted delay").map(|d| d.call).collect();
    assert_eq!(spins, [4], "once, behind the stage that carries call 3");
}

/// Two gated units in place, of two widths: in a part that runs alone they write to one memory.
#[test]
fn units_that_run_alone_have_room_for_the_widest() {
    const WIDTHS: [usize; 2] = [40, 1600];
    for widths in [WIDTHS, [WIDTHS[1], WIDTHS[0]]] {
        let mut b = backend(2);
        let all =
            [weight("first", Format::BF16, VOCAB, widths[0], 1), weight("second", Format::BF16, VOCAB, widths[1], 2)];
        let weights = packed(&mut b, &all);
        let gather = |table: usize, out| Op::Embedding { table: weights[table].id, out: BufId(out) };
        let unit = |gate, up| Op::SwiGlu { gate: BufId(gate), up: BufId(up), out: BufId(gate) };
        let ops = [
            gather(0, 0),
            gather(0, 1),
            gather(1, 2),
            gather(1, 3),
            unit(0, 1),
            unit(2, 3),
            Op::SelectRows { x: BufId(2), out: BufId(4) },
            linear(4, weights[1].id, false, 5),
            Op::Sample { logits: BufId(5) },
        ];
        let buffers = vec![
            buffer("gate", widths[0], RowSpace::All),
            buffer("up", widths[0], RowSpace::All),
            buffer("gate again", widths[1], RowSpace::All),
            buffer("up again", widths[1], RowSpace::All),
            buffer("picked", widths[1], RowSpace::Selected),
            buffer("logits", VOCAB, RowSpace::Selected),
        ];
        let plan = planned(&b, buffers, weights.clone(), ops, |_| true);
        let whole = b.compile(&plan).unwrap();
        let run = |b: &mut CpuBackend, exe| {
            let mut out = StepOutput::default();
            b.run(exe, &batch(ROWS), &mut out).unwrap();
            out.rows
        };
        let want = run(&mut b, whole);
        let before = b.part(whole, &[0, 1, 2, 3]).unwrap();
        let buffers = |b: &CpuBackend| b.pages().available().unwrap()["buffers"].bytes;
        let shared = buffers(&b);
        let units = b.part_alone(whole, &[4, 5]).unwrap();
        assert_eq!(buffers(&b) - shared, (ROWS * WIDTHS[1] * size_of::<f32>()) as u64, "{widths:?}");
        let after = b.part(whole, &[4, 5, 6, 7, 8]).unwrap();
        run(&mut b, before);
        run(&mut b, units);
        run(&mut b, units);
        assert_eq!(run(&mut b, after), want, "{widths:?}: the gates are as they were");
    }
}
