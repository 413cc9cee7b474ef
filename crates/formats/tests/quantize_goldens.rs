//! Packed values against `mx.quantize` and llama-quantize: equality of every byte.

mod recipe;

use half::{bf16, f16};
use proptest::prelude::*;
use recipe::Recipe;
use tare_core::{AffineBits, DType, Format, Weight, WeightData};
use tare_formats::codec::dequantize;
use tare_formats::quantize::{most, quantize};
use tare_formats::{Role, open};
use tare_testkit::{Tensors, goldens, json};

/// A golden source matrix in F32 and the type it was stored in.
fn source(golden: &Tensors, name: &str) -> (Vec<usize>, Vec<f32>, DType) {
    let half = |f: fn(u16) -> f32| {
        let (shape, bits) = golden.bits16(name);
        (shape, bits.into_iter().map(f).collect())
    };
    let (dtype, (shape, values)) = match name.split('.').nth(1).unwrap() {
        "bf16" => (DType::BF16, half(|b| bf16::from_bits(b).to_f32())),
        "f16" => (DType::F16, half(|b| f16::from_bits(b).to_f32())),
        _ => (DType::F32, golden.f32(name)),
    };
    (shape, values, dtype)
}

#[test]
fn words_scales_and_biases_are_those_of_mlx() {
    let golden = Tensors::open(goldens().join("mlx/quantize.safetensors"));
    let cases = json(goldens().join("mlx/quantize.json"))["cases"].as_array().unwrap().clone();
    assert_eq!(cases.len(), 30);
    for case in cases {
        let case = case.as_str().unwrap();
        let (name, packing) = case.rsplit_once('.').unwrap();
        let (bits, group) = packing[1..].split_once('g').unwrap();
        let bits = if bits == "4" { AffineBits::Four } else { AffineBits::Eight };
        let (shape, values, dtype) = source(&golden, name);
        let format = Format::Affine { bits, group: group.parse().unwrap() };
        let w = quantize(case, shape[0], shape[1], &values, format, dtype).unwrap();
        let WeightData::Affine(a) = w.data() else { panic!("{case} is not affine") };
        for (part, got) in [("words", &a.words), ("scales", &a.scales), ("biases", &a.biases)] {
            assert_eq!(**got, *golden.raw(&format!("{case}.{part}")).2, "{case}.{part}");
        }
    }
}

fn block_bytes(w: &Weight) -> &[u8] {
    let WeightData::Blocks(b) = w.data() else { panic!("{} is affine", w.name()) };
    b
}

#[test]
fn plain_and_block_bytes_are_those_of_the_gguf_files() {
    let files = [
        ("qwen3-b32-tiny", "F16", Format::F16),
        ("qwen3-b32-tiny", "BF16", Format::BF16),
        ("qwen3-b32-tiny", "Q8_0", Format::Q8_0),
        ("qwen3-b32-tiny", "Q4_0", Format::Q4_0),
        ("llama-tiny", "BF16", Format::BF16),
        ("llama-tiny", "Q8_0", Format::Q8_0),
        ("llama-tiny", "Q4_0", Format::Q4_0),
    ];
    for (family, file, format) in files {
        let model = open(&goldens().join(format!("gguf/{family}-{file}.gguf"))).unwrap();
        let recipe = Recipe::of(family);
        for role in Role::all(&model.config) {
            let w = model.weight(role).unwrap();
            let values = recipe.gguf_rows(role, &model.config);
            let format = if role.is_vector() { Format::F32 } else { format };
            let got = quantize(w.name(), w.rows(), w.cols(), &values, format, DType::F32).unwrap();
            assert!(block_bytes(&got) == block_bytes(&w), "{family}-{file}: {}", w.name());
        }
    }
}

/// Our encoder is not ggml's: the bytes are others, the squared error may not be larger.
#[test]
fn q6_k_is_no_worse_than_that_of_the_gguf_file() {
    let model = open(&goldens().join("gguf/qwen3-k-tiny-Q6_K.gguf")).unwrap();
    let recipe = Recipe::of("qwen3-k-tiny");
    for role in Role::all(&model.config).into_iter().filter(|r| !r.is_vector()) {
        let theirs = model.weight(role).unwrap();
        assert_eq!(theirs.format(), Format::Q6K);
        let values = recipe.gguf_rows(role, &model.config);
        let ours = quantize("w", theirs.rows(), theirs.cols(), &values, Format::Q6K, DType::F32).unwrap();
        let again = quantize("w", theirs.rows(), theirs.cols(), &values, Format::Q6K, DType::F32).unwrap();
        assert!(block_bytes(&ours) == block_bytes(&again), "the same values give the same bytes");
        let [ours, theirs] = [&ours, &theirs].map(|w| {
            let squares = dequantize(w).into_iter().zip(&values).map(|(a, b)| f64::from(a - b).powi(2));
            squares.sum::<f64>()
        });
        assert!(ours <= theirs, "{role}: squared error {ours:e}, llama-quantize's {theirs:e}");
    }
}

/// A matrix that several threads pack has the bytes of its rows, each packed alone.
#[test]
fn many_rows_are_packed_as_each_alone() {
    let (rows, cols) = (1025, 512);
    let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 4099) as f32 / 2048.0 - 1.0).collect();
    for format in [Format::Q4_0, Format::Q6K] {
        let whole = quantize("w", rows, cols, &values, format, DType::F32).unwrap();
        let row_bytes = block_bytes(&whole).len() / rows;
        for (row, values) in values.chunks(cols).enumerate().step_by(61) {
            let alone = quantize("w", 1, cols, values, format, DType::F32).unwrap();
            assert!(block_bytes(&alone) == &block_bytes(&whole)[row * row_bytes..][..row_bytes], "{format} row {row}");
        }
    }
}

#[test]
fn what_cannot_be_packed_is_refused_by_name() {
    let q = |cols, values: &[f32], format| quantize("w", 1, cols, values, format, DType::F32).unwrap_err().to_string();
    assert!(q(31, &[0.0; 31], Format::Q8_0).contains("multiples of 32"));
    assert!(q(32, &[0.0; 31], Format::Q8_0).contains("1 x 32 values"));
    assert!(q(256, &[0.0; 256], Format::Q4K).contains("q4_k"));
    assert!(q(128, &[0.0; 128], Format::Q6K).contains("multiples of 256 (q6_k)"));
    let mut values = [0.0; 32];
    values[7] = f32::NAN;
    assert!(q(32, &values, Format::Q4_0).contains("NaN at [0, 7]"));
    let (mut wide, affine) = ([-3e38; 32], Format::Affine { bits: AffineBits::Four, group: 32 });
    wide[0] = 3e38;
    assert!(q(32, &wide, affine).contains("a wider group from [0, 0] on, block 0"));
}

/// Every format and type of scales that there is an encoder for.
fn encoders() -> Vec<(Format, DType)> {
    let plain = [Format::F32, Format::F16, Format::BF16, Format::Q8_0, Format::Q4_0, Format::Q6K];
    let affine = |bits| [32, 64, 128].map(|group| Format::Affine { bits, group });
    let affine = [AffineBits::Four, AffineBits::Eight].into_iter().flat_map(affine);
    let scaled = affine.flat_map(|f| [DType::F32, DType::BF16, DType::F16].map(|dtype| (f, dtype)));
    plain.map(|f| (f, DType::F32)).into_iter().chain(scaled).collect()
}

#[test]
fn what_a_format_can_hold_is_finite_and_what_is_beyond_is_refused_by_place() {
    const COLS: usize = 512;
    let all = encoders();
    for format in Format::ALL {
        let writes = quantize("w", 1, COLS, &[0.0; COLS], format, DType::F32).is_ok();
        assert_eq!(writes, all.iter().any(|(f, _)| *f == format), "{format} is among those that are tried");
    }
    for (format, dtype) in all {
        let (most, block) = (most(format, dtype), format.block_weights());
        for at in [0, COLS + 300, 2 * COLS - 1] {
            for sign in [1.0, -1.0] {
                let mut values = [0.25f32; 2 * COLS];
                let mut with = |value: f32| {
                    values[at] = value;
                    quantize("w", 2, COLS, &values, format, dtype)
                };
                let back = dequantize(&with(sign * most).unwrap());
                assert!(back.iter().all(|b| b.is_finite()), "{format}: the largest value");
                let off = (back[at] - sign * most).abs() / most;
                assert!(off <= 0.07, "{format}: {most:e} became {:e}", back[at]);
                let beyond = sign * most.next_up();
                for odd in [beyond, sign * f32::MAX, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    if odd.abs() <= most {
                        continue;
                    }
                    let e = with(odd).unwrap_err().to_string();
                    let place = format!("{odd:e} at [{}, {}], in block {}", at / COLS, at % COLS, at % COLS / block);
                    assert!(e.starts_with("w: ") && e.contains(&format!("{most:e}")) && e.contains(&place), "{e}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Least squares bound the sum of the squares, not each error: it may not exceed that of the plain grid, 32 steps to
    /// the larger value, whose errors are half a step, or a whole one where a value clips; and what 8-bit scales lose.
    #[test]
    fn six_bits_stay_within_the_plain_grid(
        values in prop::collection::vec(-8.0f32..8.0, 512),
        gains in prop::collection::vec(-12i32..3, 32),
    ) {
        let values: Vec<f32> = values.iter().enumerate().map(|(i, v)| v * 2f32.powi(gains[i / 16])).collect();
        let back = dequantize(&quantize("w", 2, 256, &values, Format::Q6K, DType::F32).unwrap());
        for (v, b) in values.chunks(256).zip(back.chunks(256)) {
            let edge = |v: &[f32]| v.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let scale = edge(v) / 32.0 / 128.0;
            for (v, b) in v.chunks(16).zip(b.chunks(16)) {
                let bound = 16.0 * (edge(v) / 32.0 + 32.0 * scale).powi(2);
                let squares: f32 = v.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
                prop_assert!(squares <= bound, "{squares:e} over {bound:e}: {v:?} became {b:?}");
            }
        }
    }

    /// Half a step of the grid, plus what F16 or F32 lose of the scale, bounds the error of every value.
    #[test]
    fn round_trips_stay_within_half_a_step(values in prop::collection::vec(-8.0f32..8.0, 256)) {
        let spread = |v: &[f32]| {
            let (lo, hi) = v.iter().fold((f32::MAX, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
            (hi - lo, lo.abs().max(hi.abs()))
        };
        for format in [
            Format::Q8_0,
            Format::Q4_0,
            Format::Affine { bits: AffineBits::Four, group: 64 },
            Format::Affine { bits: AffineBits::Eight, group: 128 },
        ] {
            let w = quantize("w", 2, 128, &values, format, DType::F32).unwrap();
            let back = dequantize(&w);
            let group = format.block_weights();
            for (v, b) in values.chunks(group).zip(back.chunks(group)) {
                let (range, edge) = spread(v);
                // Q4_0's grid has 8 steps below zero but 7 above: the far end may be off by a whole step. The affine
                // grid is moved to hold zero, which may cost a step at the end that lies nearer to it.
                let step = match format {
                    Format::Q8_0 => edge / 127.0,
                    Format::Q4_0 => 2.0 * edge / 8.0,
                    Format::Affine { bits: AffineBits::Four, .. } => 2.0 * range / 15.0,
                    _ => 2.0 * range / 255.0,
                };
                for (x, y) in v.iter().zip(b) {
                    prop_assert!((x - y).abs() <= 0.501 * step + edge * 1e-3, "{format}: {x} became {y}, step {step}");
                }
            }
        }
    }
}
