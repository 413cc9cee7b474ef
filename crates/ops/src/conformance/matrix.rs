//! Cases of the operators that read a matrix: `linear` and `embedding`, in every format.

use tare_core::{AffineBits, Format};
use tare_formats::codec::quants::Coding;

use super::case::{Case, Draft};
use super::values::{KINDS, Noise, WIDE_KINDS, f32_weight, table, weight};
use crate::batch::TokenSource;
use crate::class::Rounding;
use crate::op::Op;
use crate::plan::RowSpace;

pub(super) fn cases() -> Vec<Case> {
    let formats = Format::ALL.into_iter().enumerate();
    formats.flat_map(|(n, f)| linears(f, 1000 * n as u64).into_iter().chain(embeddings(f, n as u64))).collect()
}

/// One `linear`: T rows, n outputs, k columns counted in blocks of the format.
#[derive(Clone, Copy, Debug)]
struct Linear {
    rows: usize,
    n: usize,
    blocks: usize,
    bias: bool,
    accumulate: bool,
    rounding: Rounding,
}

/// Rows 1 to 33, outputs on both sides of a vector register, each flag on and off, beside each other.
const BLOCKED: [Linear; 10] = [
    linear(1, 1, 1),
    Linear { bias: true, ..linear(1, 17, 2) },
    Linear { accumulate: true, ..linear(2, 16, 3) },
    Linear { bias: true, accumulate: true, ..linear(3, 7, 1) },
    Linear { rounding: Rounding::Bf16, ..linear(5, 15, 2) },
    linear(8, 48, 1),
    Linear { rounding: Rounding::Bf16, accumulate: true, ..linear(1, 33, 2) },
    Linear { bias: true, ..linear(17, 3, 2) },
    Linear { bias: true, accumulate: true, rounding: Rounding::Bf16, ..linear(33, 17, 1) },
    linear(4, 576, 1),
];

/// Rows of one and of several, and columns of more than one stretch, with activations in BF16: what kernels for few rows
/// go through in pieces.
const WIDE: [(usize, usize, usize); 6] =
    [(1, 70, 1280), (2, 9, 3072), (7, 20, 2304), (16, 17, 1280), (8, 33, 768), (4, 18, 512)];

/// With activations in integers: rows and outputs beyond what a kernel takes together, an odd number of blocks, and columns
/// of many groups.
const INTEGERS: [Linear; 5] =
    [linear(9, 40, 5), linear(70, 18, 1), linear(2, 33, 7), linear(6, 21, 9), linear(139, 33, 1)];

/// Plain formats have any number of columns: on both sides of 16 and 32.
const PLAIN_COLUMNS: [usize; 10] = [1, 15, 16, 17, 31, 33, 48, 100, 64, 576];

/// Several tiles of rows and of outputs, none of them full, for kernels that work in tiles.
const TILED: [Linear; 8] = [
    Linear { rounding: Rounding::Bf16, ..linear(130, 70, 2) },
    Linear { rounding: Rounding::Bf16, bias: true, accumulate: true, ..linear(500, 159, 1) },
    Linear { rounding: Rounding::Bf16, bias: true, ..linear(500, 127, 1) },
    Linear { rounding: Rounding::Bf16, accumulate: true, ..linear(120, 500, 1) },
    Linear { rounding: Rounding::Bf16, ..linear(250, 120, 3) },
    Linear { rounding: Rounding::Bf16, ..linear(100, 120, 1) },
    // More columns, outputs and rows than a kernel in tiles takes at a time, each with others.
    Linear { rounding: Rounding::Bf16, ..linear(70, 300, 18) },
    Linear { rounding: Rounding::Bf16, accumulate: true, ..linear(530, 40, 18) },
];

/// Columns of those in plain formats.
const TILED_COLUMNS: [usize; 8] = [200, 64, 33, 129, 300, 31, 1060, 576];

const fn linear(rows: usize, n: usize, blocks: usize) -> Linear {
    Linear { rows, n, blocks, bias: false, accumulate: false, rounding: Rounding::F32 }
}

fn linears(format: Format, seed: u64) -> Vec<Case> {
    let columns = |plain: &usize, l: &Linear| match format.block_weights() {
        1 => *plain,
        block => block * l.blocks,
    };
    let blocked = BLOCKED.iter().zip(&PLAIN_COLUMNS).enumerate();
    let blocked = blocked.map(|(i, (l, plain))| linear_case(format, columns(plain, l), l, seed + i as u64));
    let wide = WIDE.iter().zip(seed + 100..).map(|((rows, n, k), seed)| {
        let l = Linear { rounding: Rounding::Bf16, bias: rows % 2 == 1, accumulate: *rows > 2, ..linear(*rows, *n, 1) };
        linear_case(format, *k, &l, seed)
    });
    // One plain format, one with and one without a bias: tiles of the others differ in nothing but how they are unpacked.
    let tiled = matches!(format, Format::BF16 | Format::Q8_0 | Format::Affine { bits: AffineBits::Four, group: 64 });
    let tiled = TILED.iter().zip(&TILED_COLUMNS).zip(seed + 200..).filter(|_| tiled);
    let tiled = tiled.map(|((l, plain), seed)| linear_case(format, columns(plain, l), l, seed));
    let integers = Rounding::ALL.iter().copied().filter(|r| r.is_integer() && Coding::of(format).is_some());
    let integers = integers.enumerate().flat_map(|(i, rounding)| {
        BLOCKED.iter().chain(&INTEGERS).zip(seed + 300 + 20 * i as u64..).map(move |(l, seed)| {
            let l = Linear { rounding, ..*l };
            linear_case(format, format.block_weights() * l.blocks, &l, seed)
        })
    });
    blocked.chain(wide).chain(tiled).chain(integers).collect()
}

fn linear_case(format: Format, k: usize, l: &Linear, seed: u64) -> Case {
    let mut noise = Noise::new(seed);
    let mut name = format!("linear.{format}.t{}_n{}_k{k}", l.rows, l.n);
    for (on, word) in [(l.bias, "_bias"), (l.accumulate, "_accumulate"), (l.rounding != Rounding::F32, "_")] {
        name.push_str(if on { word } else { "" });
    }
    if l.rounding != Rounding::F32 {
        name += &l.rounding.to_string();
    }
    let mut d = Draft::new(name, l.rows);
    let x = d.input("x", &table(&mut noise, &WIDE_KINDS, l.rows, k));
    let out =
        if l.accumulate { d.input("out", &table(&mut noise, &KINDS, l.rows, l.n)) } else { d.poisoned("out", l.n) };
    let matrix = weight(&mut noise, "weight", format, (l.n, k));
    let matrix = d.weight(matrix);
    let bias = l.bias.then(|| d.weight(f32_weight("bias", l.n, &noise.row(l.n))));
    d.test(Op::Linear { x, weight: matrix, bias, accumulate: l.accumulate, rounding: l.rounding, out });
    d.finish(out)
}

/// Tokens out of order and repeated, the first and the last row of the table among them.
fn embeddings(format: Format, seed: u64) -> Vec<Case> {
    // The table may also be the head: of a linear with activations in integers or in a class in any order, whose layout it
    // then has.
    let case = |rows: usize, vocab: usize, cols: usize, head: Option<Rounding>| {
        let mut noise = Noise::new(seed + rows as u64);
        let word = head.map_or_else(String::new, |rounding| format!("_head_{rounding}"));
        let mut d = Draft::new(format!("embedding.{format}.t{rows}_v{vocab}_d{cols}{word}"), rows);
        if head == Some(Rounding::Bf16) {
            d.plan().class = "w8a16-free".into();
        }
        let out = d.buffer("out", cols, RowSpace::All);
        let matrix = weight(&mut noise, "table", format, (vocab, cols));
        let matrix = d.weight(matrix);
        d.test(Op::Embedding { table: matrix, out });
        if let Some(rounding) = head {
            let logits = d.buffer("logits", vocab, RowSpace::All);
            d.call(Op::Linear { x: out, weight: matrix, bias: None, accumulate: false, rounding, out: logits });
        }
        for (t, row) in d.batch().rows.iter_mut().enumerate() {
            row.token = TokenSource::Id(((t * 5 + vocab - 1) % vocab) as u32);
        }
        d.finish(out)
    };
    match format.block_weights() {
        1 => vec![case(1, 1, 1, None), case(3, 5, 17, None), case(8, 7, 100, None)],
        block => vec![
            case(1, 1, block, None),
            case(8, 7, 2 * block, None),
            case(1, 1, block, Some(Rounding::Int8)),
            case(9, 37, 3 * block, Some(Rounding::Int8)),
            case(5, 19, 3 * block, Some(Rounding::Int15)),
            case(7, 21, 2 * block, Some(Rounding::Bf16)),
        ],
    }
}
