//! Logits, hidden states and greedy ids against the golden values of Hugging Face transformers: see goldens/README.md.

use crate::f32_twin;
use crate::runner::Runner;
use serde_json::Value;
use std::path::Path;
use tare_model::Model;
use tare_testkit::{Tensors, assert_close, goldens, json};

const LOGITS: f64 = 2e-4;

fn open(path: &Path) -> Model {
    Model::open(path.to_str().expect("a path in UTF-8")).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().expect("a list of ids").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
}

fn prompts(golden: &Value) -> Vec<Vec<u32>> {
    golden["prompts"].as_array().expect("a list of prompts").iter().map(ids).collect()
}

/// Greedy ids must agree up to the first step whose golden gap is below `gap`.
fn check_greedy(runner: &mut Runner, prompt: &[u32], golden: &Value, gap: f64, what: &str) {
    let want = ids(&golden["ids"]);
    let gaps = golden["gap"].as_array().expect("gaps");
    let sure = gaps.iter().position(|g| g.as_f64().expect("a gap") < gap).unwrap_or(want.len());
    assert_eq!(runner.greedy(prompt, want.len())[..sure], want[..sure], "{what}: greedy ids");
}

/// One family: `tag` says which weights, `model` holds them.
fn check_family(name: &str, tag: &str, model: &Model) {
    let folder = goldens().join("models").join(name);
    let golden = json(folder.join("golden.json"));
    let tensors = Tensors::open(folder.join("golden.safetensors"));
    let mut runner = Runner::new(model, "f32");
    for (p, prompt) in prompts(&golden).iter().enumerate() {
        let what = format!("{name} {tag} p{p}");
        let (_, want) = tensors.f32(&format!("{tag}.logits.p{p}"));
        assert_close(&runner.logits(prompt), &want, LOGITS, 0.0, &what);
        check_greedy(&mut runner, prompt, &golden["greedy"][tag][p], 0.0, &what);
    }
    check_hidden(&mut runner, name, tag, (&prompts(&golden)[1], &tensors));
}

/// The residual stream after the embedding, each layer and the final norm, within 1e-4 of the row's largest value.
fn check_hidden(runner: &mut Runner, name: &str, tag: &str, (prompt, tensors): (&[u32], &Tensors)) {
    let prefix = format!("{tag}.hidden.p1.");
    let stages: Vec<String> =
        tensors.names().into_iter().filter_map(|n| n.strip_prefix(&prefix).map(str::to_owned)).collect();
    assert!(stages.len() >= 3, "{name}: golden hidden states of {tag}");
    for stage in stages {
        let got = match stage.as_str() {
            "embed" => runner.buffer(prompt, "hidden", 1),
            "final_norm" => runner.buffer(prompt, "final_norm", usize::MAX),
            layer => {
                let n = layer.strip_prefix("layer").expect("layerN").parse().expect("a layer");
                let calls = runner.end_of_layer(n);
                runner.buffer(prompt, "hidden", calls)
            }
        };
        let (shape, want) = tensors.f32(&format!("{prefix}{stage}"));
        for (row, (got, want)) in got.chunks_exact(shape[1]).zip(want.chunks_exact(shape[1])).enumerate() {
            let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert_close(got, want, 1e-4 * f64::from(largest), 0.0, &format!("{name} {tag} {stage} row {row}"));
        }
    }
}

const FAMILIES: [&str; 6] =
    ["qwen3-tiny", "qwen3-tiny-untied", "qwen2-tiny", "llama-tiny", "qwen3-yarn-tiny", "mistral-tiny"];

#[test]
fn bf16_folders_upcast_to_f32() {
    for name in FAMILIES {
        check_family(name, "bf16", &open(&goldens().join("models").join(name)));
    }
}

#[test]
fn f32_twins_made_by_the_recipe() {
    for name in FAMILIES {
        let folder = tempfile::tempdir().expect("a temporary folder");
        f32_twin::write(name, folder.path());
        check_family(name, "f32", &open(folder.path()));
    }
}

#[test]
fn mlx_folders() {
    for name in ["4bit-g32", "4bit-g64", "4bit-g128", "8bit-g64"] {
        let folder = goldens().join("mlx").join(format!("qwen3-tiny-{name}"));
        let golden = json(folder.join("golden.json"));
        let tensors = Tensors::open(folder.join("golden.safetensors"));
        let mut runner = Runner::new(&open(&folder), "f32");
        for (p, prompt) in prompts(&golden).iter().enumerate() {
            let (_, want) = tensors.f32(&format!("logits.p{p}"));
            assert_close(&runner.logits(prompt), &want, LOGITS, 0.0, &format!("mlx {name} p{p}"));
            check_greedy(&mut runner, prompt, &golden["greedy"][p], 1e-3, &format!("mlx {name} p{p}"));
        }
    }
}

#[test]
fn gguf_files() {
    for family in ["qwen3-b32-tiny", "qwen3-k-tiny", "llama-tiny"] {
        let folder = goldens().join("gguf");
        let golden = json(folder.join(format!("{family}.golden.json")));
        let tensors = Tensors::open(folder.join(format!("{family}.golden.safetensors")));
        for (file, about) in golden["files"].as_object().expect("files") {
            let format = file.trim_end_matches(".gguf").rsplit('-').next().expect("a type");
            let mut runner = Runner::new(&open(&folder.join(file)), "f32");
            for (p, prompt) in prompts(&golden).iter().enumerate() {
                let (_, want) = tensors.f32(&format!("{format}.logits.p{p}"));
                assert_close(&runner.logits(prompt), &want, LOGITS, 0.0, &format!("{file} p{p}"));
                check_greedy(&mut runner, prompt, &about["greedy"][p], 1e-3, &format!("{file} p{p}"));
            }
        }
    }
}

/// Classes that round stay within 0.3 of the F32 logits of the same file, those that round activations to 8 bits within 0.6.
#[test]
fn rounding_classes_stay_close_to_f32() {
    let models = goldens().join("models");
    let cases = [
        (models.join("qwen3-tiny"), "bf16"),
        (models.join("qwen3-tiny-untied"), "bf16"),
        (models.join("qwen2-tiny"), "bf16"),
        (models.join("llama-tiny"), "bf16"),
        (models.join("mistral-tiny"), "bf16"),
        (goldens().join("mlx/qwen3-tiny-4bit-g32"), "w4a16"),
        (goldens().join("mlx/qwen3-tiny-8bit-g64"), "w8a16"),
        (goldens().join("gguf/qwen3-b32-tiny-Q4_1.gguf"), "w4a16"),
        (goldens().join("gguf/qwen3-k-tiny-Q4_K.gguf"), "w4a16"),
        (goldens().join("gguf/llama-tiny-Q8_0.gguf"), "w8a16"),
        (goldens().join("mlx/qwen3-tiny-4bit-g32"), "w4a8"),
        (goldens().join("mlx/qwen3-tiny-8bit-g64"), "w8a8"),
        (goldens().join("gguf/qwen3-b32-tiny-Q4_1.gguf"), "w4a8"),
        (goldens().join("gguf/qwen3-k-tiny-Q4_K.gguf"), "w4a8"),
        (goldens().join("gguf/llama-tiny-Q8_0.gguf"), "w8a8"),
        (goldens().join("mlx/qwen3-tiny-4bit-g32"), "w4a15"),
        (goldens().join("gguf/qwen3-k-tiny-Q4_K.gguf"), "w4a15"),
        (goldens().join("gguf/llama-tiny-Q8_0.gguf"), "w8a15"),
    ];
    for (path, class) in cases {
        let model = open(&path);
        let prompt: Vec<u32> = (0..33).map(|i| (i * 37 + 5) % 112).collect();
        let exact = Runner::new(&model, "f32").logits(&prompt);
        let rounded = Runner::new(&model, class).logits(&prompt);
        assert!(exact != rounded, "{}: {class} must round something", path.display());
        let limit = if class.ends_with("a8") { 0.6 } else { 0.3 };
        assert_close(&rounded, &exact, limit, 0.0, &format!("{} in {class}", path.display()));
    }
}
