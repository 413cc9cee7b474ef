//! Cases of the operators that work on rows alone: norms, RoPE, SwiGLU and the selection of rows.

use tare_core::Format;

use super::case::{Case, Draft};
use super::values::{KINDS, Kind, Noise, WIDE_KINDS, plain, table};
use crate::batch::Wants;
use crate::op::Op;
use crate::plan::{RopeStyle, RopeTable, RowSpace};

pub(super) fn cases() -> Vec<Case> {
    [rms_norms(), head_norms(), ropes(), swiglus(), selections()].into_iter().flatten().collect()
}

/// Formats in which files keep the vectors of norms.
const VECTORS: [Format; 3] = [Format::F32, Format::BF16, Format::F16];

fn rms_norms() -> Vec<Case> {
    let shapes =
        [(1, 1), (3, 7), (2, 15), (5, 16), (3, 17), (8, 64), (6, 100), (2, 576), (33, 48), (17, 1024)].into_iter();
    let mut cases: Vec<Case> = shapes.enumerate().map(|(n, (rows, d))| rms_norm(n, rows, d, RowSpace::All)).collect();
    cases.push(rms_norm(10, 5, 64, RowSpace::Selected));
    cases
}

fn rms_norm(n: usize, rows: usize, width: usize, space: RowSpace) -> Case {
    let mut noise = Noise::new(n as u64);
    let of = if space == RowSpace::Selected { "_selected" } else { "" };
    let mut d = Draft::new(format!("rms_norm.t{rows}_d{width}{of}"), rows);
    let mut x = d.input("x", &table(&mut noise, &KINDS, rows, width));
    if space == RowSpace::Selected {
        d.batch().rows[1].wants = Wants::Nothing;
        let picked = d.buffer("picked", width, space);
        d.call(Op::SelectRows { x, out: picked });
        x = picked;
    }
    let weight = d.weight(plain("weight", VECTORS[n % 3], width, &noise.row(width)));
    let out = if space == RowSpace::All { d.poisoned("out", width) } else { d.buffer("out", width, space) };
    d.test(Op::RmsNorm { x, weight, eps: [1e-6, 1e-5][n % 2], out });
    d.finish(out)
}

fn head_norms() -> Vec<Case> {
    let shapes = [(1, 1, 64), (3, 4, 64), (8, 5, 128), (5, 3, 80), (17, 2, 96), (2, 9, 64), (6, 2, 17)].into_iter();
    let case = |(n, (rows, heads, e)): (usize, (usize, usize, usize))| {
        let mut noise = Noise::new(100 + n as u64);
        let mut d = Draft::new(format!("head_norm.t{rows}_h{heads}_e{e}"), rows);
        // Heads take the kinds in turn, so that neighbours in one row are of very different sizes.
        let x = d.input("x", &table(&mut noise, &KINDS, rows * heads, e));
        let weight = d.weight(plain("weight", VECTORS[n % 3], e, &noise.row(e)));
        d.test(Op::HeadNorm { x, weight, heads: heads as u32, eps: 1e-6 });
        d.finish(x)
    };
    shapes.enumerate().map(case).collect()
}

fn ropes() -> Vec<Case> {
    let shapes = [(1, 1, 64), (8, 3, 80), (5, 9, 96), (7, 2, 128), (33, 1, 64), (3, 5, 2)].into_iter().enumerate();
    let styles = [RopeStyle::HalfSplit, RopeStyle::Interleaved];
    shapes.flat_map(|(n, shape)| styles.map(|style| rope(n, shape, style))).collect()
}

fn rope(n: usize, (rows, heads, e): (usize, usize, usize), style: RopeStyle) -> Case {
    let mut noise = Noise::new(200 + n as u64);
    let word = if style == RopeStyle::HalfSplit { "half_split" } else { "interleaved" };
    let mut d = Draft::new(format!("rope.{word}.t{rows}_h{heads}_e{e}"), rows);
    let inv_freq = (0..e / 2).map(|i| 1e6f64.powf(-((2 * i) as f64) / e as f64)).collect();
    d.plan().rope = RopeTable { inv_freq, factor: [1.0, 1.138_629_4][n % 2], style };
    for (t, row) in d.batch().rows.iter_mut().enumerate() {
        row.position = [0, 1, 5, 100, 4095, 40_959, 131_071][(t + n) % 7];
    }
    let x = d.input("x", &table(&mut noise, &WIDE_KINDS, rows, heads * e));
    d.test(Op::Rope { x, heads: heads as u32 });
    d.finish(x)
}

fn swiglus() -> Vec<Case> {
    let shapes = [(1, 1), (2, 7), (3, 16), (5, 17), (8, 96), (33, 131), (2, 1536)];
    let both = shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]);
    let case = |(n, ((rows, width), in_place)): (usize, ((usize, usize), bool))| {
        let mut noise = Noise::new(300 + n as u64);
        let place = if in_place { "_in_place" } else { "" };
        let mut d = Draft::new(format!("swiglu.t{rows}_f{width}{place}"), rows);
        let kinds = [Kind::Far, Kind::Plain, Kind::Zeros, Kind::Denormals, Kind::Cancelling];
        let gate = d.input("gate", &table(&mut noise, &kinds, rows, width));
        let up = d.input("up", &table(&mut noise, &WIDE_KINDS[..5], rows, width));
        let out = if in_place { gate } else { d.poisoned("out", width) };
        d.test(Op::SwiGlu { gate, up, out });
        d.finish(out)
    };
    both.enumerate().map(case).collect()
}

fn selections() -> Vec<Case> {
    // Every `step`-th row from `first` on wants its logits.
    let shapes = [(1, 1, 0, 1), (5, 17, 0, 2), (8, 64, 7, 1), (33, 100, 3, 7), (17, 1, 1, 3)];
    let case = |(n, (rows, width, first, step)): (usize, (usize, usize, usize, usize))| {
        let mut noise = Noise::new(400 + n as u64);
        let mut d = Draft::new(format!("select_rows.t{rows}_d{width}_from{first}_by{step}"), rows);
        for (t, row) in d.batch().rows.iter_mut().enumerate() {
            let picked = t >= first && (t - first).is_multiple_of(step);
            row.wants = if picked { Wants::Logits } else { Wants::Nothing };
        }
        let selected = d.batch().selected();
        d.plan().bucket.selected = selected;
        let x = d.input("x", &table(&mut noise, &WIDE_KINDS, rows, width));
        let out = d.buffer("out", width, RowSpace::Selected);
        d.test(Op::SelectRows { x, out });
        d.finish(out)
    };
    shapes.into_iter().enumerate().map(case).collect()
}
