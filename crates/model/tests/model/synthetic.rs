//! Synthetic models: pinned bytes, lines that differ, entropy, and peakiness as a step sees it.

use crate::runner::Runner;
use std::collections::HashSet;
use tare_core::{Weight, WeightData};
use tare_model::synthetic::is_needle;
use tare_model::{Model, Part, Role};

/// Every format that is made, and the least entropy of the bytes of its matrices, in bits a byte. Packed levels are
/// uniform and only scales are predictable; of plain elements the sign and exponent are.
const FORMATS: [(&str, f64); 12] = [
    ("f32", 6.9),
    ("f16", 6.4),
    ("bf16", 5.9),
    ("q8_0", 7.9),
    ("q4_0", 7.8),
    ("q4_1", 7.7),
    ("w4g32", 7.7),
    ("w4g64", 7.8),
    ("w4g128", 7.9),
    ("w8g32", 7.9),
    ("w8g64", 7.9),
    ("w8g128", 7.9),
];

/// SHA-256 over the bytes of whole models. A change here is a change of [`tare_model::synthetic::GENERATOR`].
const PINNED: [(&str, &str); 14] = [
    ("synthetic:qwen3-tiny?format=f32&seed=7", "097369366d099e8134721b4a7b644d2e1b02dde7a0e445b604da18b97f8adb28"),
    ("synthetic:qwen3-tiny?format=f16&seed=7", "803f57814d3db9944b111bb5378699bdbbb0b9a8f7d99008b959cc03f488138c"),
    ("synthetic:qwen3-tiny?format=bf16&seed=7", "7a834b007022c574c2f0457ccedfc89a6d2e8671bac9d05a42d06fafc7cb1d8b"),
    ("synthetic:qwen3-tiny?format=q8_0&seed=7", "800bec4910db1a184bd337355a225875c5eba23179973422efdc298b0794a6b0"),
    ("synthetic:qwen3-tiny?format=q4_0&seed=7", "f7817167a4dd4d08ab6b6dd0b3b8a55b07a1bc232de2d0e823caa7014ebce3d3"),
    ("synthetic:qwen3-tiny?format=q4_1&seed=7", "a8fd348930544012d416b7c8325040fb8e8cfabd2cb71924fb7b113bcc227ff2"),
    ("synthetic:qwen3-tiny?format=w4g32&seed=7", "4f4963a95c1f6c6f980a2d5b42846f3e9977ec96aa284d89293659fb4950950a"),
    ("synthetic:qwen3-tiny?format=w4g64&seed=7", "d1aacd4bd21124fab3d5b5bcc6ef32815c2b53dcb60ba25db3a9de1bb88f0cdf"),
    ("synthetic:qwen3-tiny?format=w4g128&seed=7", "3f55ddd8b0a6b91f2732152bcc667d44e66ee8dfcc98f752da683dfb32ccfc7a"),
    ("synthetic:qwen3-tiny?format=w8g32&seed=7", "48b8afdf82a2d33953f4423315519e02bac9b10bcee2695f293a53fc9e7d8082"),
    ("synthetic:qwen3-tiny?format=w8g64&seed=7", "3d673659782a4cea393eda9381555e19ae2b3db1484c139e891a7903e5035910"),
    ("synthetic:qwen3-tiny?format=w8g128&seed=7", "5ba1de2420a325b12760c6e22abfadb9844a5da5478c36dabf4a034aee617e4d"),
    ("synthetic:llama-tiny?format=bf16&seed=7", "a8fd04b037449bc938c5d84cc64f8a81f33b36736ba2e4e441adbb7b5ca29ed9"),
    ("synthetic:llama-tiny?format=q4_0&seed=7", "59df4be743c238f2b7050c059c38b54adbe9732445ad646905a51d5925d5c1df"),
];

fn open(spec: &str) -> Model {
    Model::open(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

fn parts(w: &Weight) -> Vec<&[u8]> {
    match w.data() {
        WeightData::Blocks(b) => vec![b],
        WeightData::Affine(a) => vec![&a.words, &a.scales, &a.biases],
    }
}

#[test]
fn bytes_are_those_of_every_host() {
    let wrong: Vec<_> = PINNED
        .iter()
        .map(|(spec, want)| (spec, want, open(spec).bytes_digest().expect("every weight can be made")))
        .filter(|(_, want, got)| *want != got)
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_ne!(
        open("synthetic:qwen3-tiny?seed=1").bytes_digest().unwrap(),
        open("synthetic:qwen3-tiny?seed=2").bytes_digest().unwrap()
    );
}

/// A matrix that several threads write: its bytes must not depend on how many there are.
#[test]
fn large_matrices_are_the_same_on_any_number_of_threads() {
    let model = open("synthetic:qwen3-0.6b?format=w4g128&seed=7");
    let w = model.weight(Role::Layer { layer: 27, part: Part::Down }).unwrap();
    assert!(w.bytes() > 1 << 20, "large enough to be shared out");
    let digest = tare_core::digest::sha256_hex(&parts(&w).concat());
    assert_eq!(digest, "52b9d972633f5ea70149519075fe55dc7896d9077b09a2f8ad03d54118112c3a");
}

#[test]
fn specs_are_written_out_and_refused_with_reasons() {
    assert_eq!(open("synthetic:qwen3-4b").describe().unwrap().spec, "synthetic:qwen3-4b?format=w4g128&seed=0");
    assert_eq!(open("synthetic:qwen3-tiny").describe().unwrap().spec, "synthetic:qwen3-tiny?format=bf16&seed=0");
    let digest = |spec| open(spec).values_digest().unwrap();
    assert_eq!(digest("synthetic:qwen3-0.6b"), digest("synthetic:qwen3-0.6b?seed=0&format=w4g128"));
    assert_ne!(digest("synthetic:qwen3-0.6b"), digest("synthetic:qwen3-0.6b?seed=1"));
    for (spec, says) in [
        ("synthetic:qwen3-7b", "qwen3-0.6b"),
        ("synthetic:qwen3-4b?format=q4_k", "only read from files"),
        ("synthetic:qwen3-4b?format=int4", "one of f32"),
        ("synthetic:qwen3-4b?seed=-1", "whole number"),
        ("synthetic:qwen3-4b?sed=1", "format or seed"),
        ("synthetic:qwen3-4b?seed=1&seed=1", "one value"),
    ] {
        let error = Model::open(spec).unwrap_err().to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
    assert!(open("synthetic:llama-tiny").weight(Role::Layer { layer: 0, part: Part::QNorm }).is_err());
    assert!(open("synthetic:llama-tiny").weight(Role::Layer { layer: 3, part: Part::Q }).is_err());
}

/// Panics when two 64-byte lines of one part of `w` are equal.
fn check_lines(w: &Weight, what: &str) {
    for part in parts(w) {
        let mut seen = HashSet::new();
        let equal = part.chunks_exact(64).enumerate().find(|(_, line)| !seen.insert(*line));
        assert_eq!(equal.map(|(at, _)| at), None, "{what}: {} has a line that came before", w.name());
    }
}

/// Bits a byte.
fn entropy<'a>(bytes: impl Iterator<Item = &'a [u8]>) -> f64 {
    let mut counts = [0u64; 256];
    bytes.flatten().for_each(|b| counts[*b as usize] += 1);
    let total: u64 = counts.iter().sum();
    let shares = counts.iter().filter(|n| **n > 0).map(|n| *n as f64 / total as f64);
    shares.map(|p| -p * p.log2()).sum()
}

#[test]
fn no_line_comes_twice_and_bytes_are_hard_to_compress() {
    for (format, floor) in FORMATS {
        for name in ["qwen3-tiny", "llama-tiny"] {
            let spec = format!("synthetic:{name}?format={format}");
            let model = open(&spec);
            let weights: Vec<Weight> = Role::all(model.config()).iter().map(|r| model.weight(*r).unwrap()).collect();
            weights.iter().for_each(|w| check_lines(w, &spec));
            let got = entropy(weights.iter().filter(|w| w.rows() > 1).flat_map(parts));
            assert!(got >= floor, "{spec}: {got:.3} bits a byte, floor {floor}");
        }
    }
}

#[test]
fn samples_of_a_published_size_hold_to_the_same() {
    for (format, floor) in [("w4g128", 7.9), ("q4_0", 7.8), ("bf16", 5.9)] {
        let spec = format!("synthetic:qwen3-0.6b?format={format}");
        let model = open(&spec);
        for part in [Part::Q, Part::K, Part::O, Part::Down, Part::AttnNorm, Part::QNorm] {
            let w = model.weight(Role::Layer { layer: 13, part }).unwrap();
            check_lines(&w, &spec);
            assert!(w.rows() == 1 || entropy(parts(&w).into_iter()) >= floor, "{spec}: {part:?}");
        }
    }
}

/// Standard deviation and mean.
fn spread(x: &[f32]) -> (f64, f64) {
    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
    let var = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
    (var.sqrt(), mean)
}

fn prompt(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 389 + 17) % 1024).collect()
}

const TINY: [&str; 4] = [
    "synthetic:qwen3-tiny",
    "synthetic:qwen3-tiny?format=w4g128",
    "synthetic:llama-tiny",
    "synthetic:llama-tiny?format=q8_0",
];

#[test]
fn one_token_in_sixteen_is_a_needle() {
    let rate = (0..160_000).filter(|t| is_needle(0, *t)).count();
    assert!((9_500..10_500).contains(&rate), "{rate} of 160,000");
}

/// Scores of the first layer before the softmax: a spread that makes heads choose, and needles above the rest.
#[test]
fn attention_scores_are_peaky() {
    for spec in TINY {
        let model = open(spec);
        let c = model.config();
        let (heads, kv, e) = (c.heads, c.kv_heads, c.head_size);
        let mut runner = Runner::new(&model, "f32");
        let ids = prompt(120);
        let calls = runner.first_attention();
        let q = runner.buffer(&ids, "q", calls);
        let k = runner.first_keys(ids.len());
        let (mut needles, mut others) = (Vec::new(), Vec::new());
        for t in 0..ids.len() {
            for h in 0..heads {
                let q = &q[(t * heads + h) * e..][..e];
                for (s, id) in ids.iter().enumerate().take(t + 1) {
                    let k = &k[(s * kv + h * kv / heads) * e..][..e];
                    let score = q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>() / (e as f32).sqrt();
                    if is_needle(0, *id) { needles.push(score) } else { others.push(score) }
                }
            }
        }
        let (std, mean) = spread(&others);
        let (_, needle) = spread(&needles);
        assert!((1.8..3.4).contains(&std), "{spec}: score deviation {std:.2}");
        assert!((2.5..5.5).contains(&(needle - mean)), "{spec}: needles are {:.2} above", needle - mean);
    }
}

/// A page of sixteen tokens that vanishes moves some logit by far more than any class rounds.
#[test]
fn a_lost_page_is_seen_wherever_it_was() {
    for spec in TINY {
        let mut runner = Runner::new(&open(spec), "f32");
        let ids = prompt(113);
        let logits = runner.logits(&ids);
        let whole = &logits[logits.len() - 1024..];
        for page in 0..7 {
            let holed = runner.last_logits_without(&ids, page * 16..(page + 1) * 16);
            let moved = whole.iter().zip(&holed).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(moved > 0.5, "{spec}: page {page} moves logits by {moved:.3} at the most");
        }
    }
}

/// The residual stream grows to about three times the embedding, and no further.
#[test]
fn the_residual_stream_does_not_blow_up() {
    for spec in TINY {
        let model = open(spec);
        let last = model.config().layers as u32 - 1;
        let mut runner = Runner::new(&model, "f32");
        let ids = prompt(60);
        let rms = |x: &[f32]| (x.iter().map(|v| f64::from(v * v)).sum::<f64>() / x.len() as f64).sqrt();
        let first = rms(&runner.buffer(&ids, "hidden", 1));
        let calls = runner.end_of_layer(last);
        let growth = rms(&runner.buffer(&ids, "hidden", calls)) / first;
        assert!((0.8..1.3).contains(&first), "{spec}: embedding {first:.2}");
        assert!((2.0..4.5).contains(&growth), "{spec}: growth {growth:.2}");
    }
}

#[test]
fn logits_have_a_spread_and_greedy_has_gaps() {
    for spec in TINY {
        let model = open(spec);
        let mut runner = Runner::new(&model, "f32");
        let logits = runner.logits(&prompt(60));
        let (std, _) = spread(&logits);
        assert!((2.0..4.0).contains(&std), "{spec}: logit deviation {std:.2}");
        let mut gaps: Vec<f32> = logits
            .chunks_exact(model.config().vocab)
            .map(|row| {
                let mut row = row.to_vec();
                row.sort_by(|a, b| b.total_cmp(a));
                row[0] - row[1]
            })
            .collect();
        gaps.sort_by(f32::total_cmp);
        let median = gaps[gaps.len() / 2];
        assert!(median > 0.2, "{spec}: median gap {median:.3}");
        let tokens: HashSet<u32> = runner.greedy(&prompt(40), 24).into_iter().collect();
        assert!(tokens.len() >= 12, "{spec}: {} different tokens in 24", tokens.len());
    }
}
