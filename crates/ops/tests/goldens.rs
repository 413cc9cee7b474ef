//! The reference functions against `goldens/ops`: every Expect line of the README's `ops` section.

use serde_json::Value;
use tare_formats::config::RopeScaling;
use tare_ops::reference::{attention, rms_norm, rope, swiglu};
use tare_ops::{RopeStyle, RopeTable};
use tare_testkit::{Tensors, assert_close, goldens, json};

struct Case {
    values: Value,
    tensors: Tensors,
}

impl Case {
    /// `float32(gain * sin(0.017 * i + phase) + offset)`, the recipe in the golden file's head.
    fn input(&self, name: &str) -> Vec<f32> {
        let recipe = &self.values[name];
        let number = |field: &str| recipe[field].as_f64().unwrap_or_else(|| panic!("{name}.{field}"));
        let shape = recipe["shape"].as_array().expect("a shape");
        let n: u64 = shape.iter().map(|d| d.as_u64().expect("a dimension")).product();
        let (gain, phase, offset) = (number("gain"), number("phase"), number("offset"));
        (0..n).map(|i| (gain * (0.017 * i as f64 + phase).sin() + offset) as f32).collect()
    }

    fn dim(&self, name: &str) -> usize {
        self.values[name].as_u64().unwrap_or_else(|| panic!("{name}")) as usize
    }

    fn number(&self, name: &str) -> f64 {
        self.values[name].as_f64().unwrap_or_else(|| panic!("{name}"))
    }

    fn tensor(&self, output: &str) -> Option<&str> {
        self.values["outputs"][output].as_str()
    }

    fn want(&self, output: &str) -> Vec<f32> {
        self.tensors.f32(self.tensor(output).expect("an output")).1
    }

    fn want64(&self, output: &str) -> Vec<f64> {
        self.tensors.f64(self.tensor(output).expect("an output")).1
    }

    fn name(&self) -> String {
        format!("{}.{}", self.values["op"].as_str().unwrap_or("?"), self.values["name"].as_str().unwrap_or("?"))
    }
}

fn cases(op: &str) -> Vec<Case> {
    let folder = goldens().join("ops");
    let all = json(folder.join("golden.json"));
    let of_op = all["cases"].as_array().expect("cases").iter().filter(|c| c["op"] == op);
    of_op.map(|c| Case { values: c.clone(), tensors: Tensors::open(folder.join("golden.safetensors")) }).collect()
}

#[test]
fn rms_norm_within_2e6_relative() {
    let cases = cases("rmsnorm");
    assert_eq!(cases.len(), 12);
    for c in cases {
        let (x, w, d) = (c.input("x"), c.input("w"), c.dim("D"));
        let mut got = vec![f32::NAN; x.len()];
        for (x, o) in x.chunks(d).zip(got.chunks_mut(d)) {
            rms_norm::rms_norm(x, &w, c.number("eps") as f32, o);
        }
        assert_close(&got, &c.want("y"), 0.0, 2e-6, &c.name());
    }
}

#[test]
fn swiglu_within_2e6() {
    let cases = cases("swiglu");
    assert_eq!(cases.len(), 6);
    for c in cases {
        let mut got = c.input("gate");
        swiglu::swiglu(&mut got, &c.input("up"));
        assert_close(&got, &c.want("y"), 1e-6, 2e-6, &c.name());
    }
}

fn scaling(c: &Value) -> RopeScaling {
    let number = |name: &str| c[name].as_f64();
    let need = |name: &str| number(name).unwrap_or_else(|| panic!("{name}"));
    let original = || need("original_max_position_embeddings") as usize;
    match c["rope_type"].as_str() {
        None => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: need("factor") },
        Some("llama3") => RopeScaling::Llama3 {
            factor: need("factor"),
            low_freq_factor: need("low_freq_factor"),
            high_freq_factor: need("high_freq_factor"),
            original_positions: original(),
        },
        Some("yarn") => RopeScaling::Yarn {
            factor: need("factor"),
            original_positions: original(),
            attention_factor: None,
            beta_fast: number("beta_fast").unwrap_or(32.0),
            beta_slow: number("beta_slow").unwrap_or(1.0),
        },
        Some(other) => panic!("an unknown scaling, {other}"),
    }
}

#[test]
fn rope_frequencies_in_f64() {
    let mut kinds = std::collections::BTreeSet::new();
    for c in cases("rope") {
        let scaling = scaling(&c.values["scaling"]);
        kinds.insert(format!("{scaling:?}").split_whitespace().next().map(str::to_string));
        let (got, factor) = rope::frequencies(c.dim("E"), c.number("theta"), &scaling);
        let want = c.want64("inv_freq");
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() <= 1e-14 * w.abs(), "{} pair {i}: {g} against {w}", c.name());
        }
        assert!((f64::from(factor) - c.number("factor_on_cos_sin")).abs() < 1e-7, "{}", c.name());
    }
    assert_eq!(kinds.len(), 4, "none, linear, llama3 and yarn are all there: {kinds:?}");
}

#[test]
fn rope_within_1e6_at_every_position() {
    let (mut half, mut interleaved) = (0, 0);
    for c in cases("rope") {
        let (inv_freq, factor) = rope::frequencies(c.dim("E"), c.number("theta"), &scaling(&c.values["scaling"]));
        for (output, style) in [("half_split", RopeStyle::HalfSplit), ("interleaved", RopeStyle::Interleaved)] {
            if c.tensor(output).is_none() {
                continue;
            }
            *(if output == "half_split" { &mut half } else { &mut interleaved }) += 1;
            let table = RopeTable { inv_freq: inv_freq.clone(), factor, style };
            let (mut cos, mut sin) = (vec![0.0; inv_freq.len()], vec![0.0; inv_freq.len()]);
            let mut got = c.input("x");
            for (l, x) in got.chunks_mut(c.dim("H") * c.dim("E")).enumerate() {
                rope::angles(&table, (c.dim("start") + l) as u32, &mut cos, &mut sin);
                rope::rotate(x, style, &cos, &sin);
            }
            assert_close(&got, &c.want(output), 1e-6, 0.0, &format!("{} {output}", c.name()));
        }
    }
    assert_eq!((half, interleaved), (12, 3));
}

#[test]
fn attention_and_its_log_sum() {
    let cases = cases("attention");
    assert_eq!(cases.len(), 16);
    for c in cases {
        let [l, s, h, k, e] = ["L", "S", "H", "K", "E"].map(|d| c.dim(d));
        let (q, keys, values) = (c.input("q"), c.input("k"), c.input("v"));
        let (mut got, mut lse) = (vec![f32::NAN; q.len()], Vec::new());
        let mut scores = Vec::new();
        let scale = (1.0 / (e as f64).sqrt()) as f32;
        for (i, (q, o)) in q.chunks(e).zip(got.chunks_mut(e)).enumerate() {
            let (row, kv_head) = (i / h, i % h / (h / k));
            let head = |j: usize| (j * k + kv_head) * e..(j * k + kv_head + 1) * e;
            let seen = (0..=s - l + row).map(|j| (&keys[head(j)], &values[head(j)]));
            lse.push(attention::attend(q, scale, seen, &mut scores, o));
        }
        let gain = c.values["gain_q"].as_f64().unwrap_or(1.0);
        assert_close(&got, &c.want("y"), if gain > 4.0 { 2.2e-5 } else { 2e-6 }, 0.0, &c.name());
        for (i, (g, w)) in lse.iter().zip(c.want64("lse")).enumerate() {
            assert!((g - w).abs() <= 2e-5, "{} lse {i}: {g} against {w}", c.name());
        }
    }
}
