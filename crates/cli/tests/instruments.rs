//! The instruments with which a stranger checks tare, through the binary: logits and greedy ids against the goldens,
//! plans and instruction sets against each other, and what is said when something is wrong.

mod home;

use home::Home;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use tare_testkit::{Tensors, assert_close, goldens};

const MODELS: [&str; 6] =
    ["qwen3-tiny", "qwen3-tiny-untied", "qwen2-tiny", "llama-tiny", "qwen3-yarn-tiny", "mistral-tiny"];
/// Of the goldens' README: F32 arithmetic against the witness.
const EXACT: f64 = 2e-4;
/// Of the goldens' README: ids of packed models are compared up to the first gap below this.
const TIE: f64 = 1e-3;
/// Classes with rounded activations or KV, on the tiny models.
const ROUNDED: f64 = 0.3;

impl Home {
    /// A file of token ids.
    fn ids(&self, name: &str, ids: &Value) -> String {
        let path = self.path(name);
        std::fs::write(&path, ids.to_string()).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// Logits of `ids`, [T, V], as `tare logits` writes them.
    fn logits(&self, model: &Path, ids: &str, how: &[&str]) -> Vec<f32> {
        let out = self.path("logits.safetensors");
        let mut args = vec!["logits", "-m", model.to_str().unwrap(), "--ids", ids, "-o", out.to_str().unwrap()];
        args.extend(["--threads", "2"]);
        args.extend(how);
        self.run(&args).success();
        Tensors::open(&out).f32("logits").1
    }

    /// Logits of `ids` in the class that a model runs in when nobody asks, and in the plain one of its weights: how, and what.
    fn in_own_classes(&self, model: &Path, ids: &str) -> [(String, Vec<f32>); 2] {
        let inspected = self.json(&["inspect", model.to_str().unwrap(), "--json"]);
        let plain = inspected["class"].as_str().unwrap().replace("a15", "a16");
        let named = self.logits(model, ids, &["--class", &plain]);
        [("in its own class".to_string(), self.logits(model, ids, &[])), (format!("in {plain}"), named)]
    }

    /// Ids that `tare run` draws greedily.
    fn greedy(&self, model: &Path, ids: &str, how: &[&str]) -> Vec<u64> {
        let mut args = vec!["run", "-m", model.to_str().unwrap(), "--ids", ids, "-n", "24", "--ignore-eos", "--json"];
        args.extend(["--threads", "2"]);
        args.extend(how);
        let done = self.json(&args);
        assert_eq!(done["finish_reason"], "length");
        numbers(&done["ids"])
    }
}

fn numbers(v: &Value) -> Vec<u64> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// How many of the golden ids are beyond doubt: those before the first gap below [`TIE`].
fn certain(greedy: &Value) -> usize {
    let gaps = greedy["gap"].as_array().unwrap();
    gaps.iter().position(|g| g.as_f64().unwrap() < TIE).unwrap_or(gaps.len())
}

#[test]
fn safetensors_models_give_the_golden_logits_and_ids() {
    for name in MODELS {
        let (home, folder) = (Home::new(), goldens().join("models").join(name));
        let (golden, values) =
            (tare_testkit::json(folder.join("golden.json")), Tensors::open(folder.join("golden.safetensors")));
        for p in 0..3 {
            let ids = home.ids("ids.json", &golden["prompts"][p]);
            let want = values.f32(&format!("bf16.logits.p{p}")).1;
            let f32 = home.logits(&folder, &ids, &["--class", "f32"]);
            assert_close(&f32, &want, EXACT, 0.0, &format!("{name} p{p} in f32"));
            let greedy = home.greedy(&folder, &ids, &["--class", "f32"]);
            assert_eq!(greedy, numbers(&golden["greedy"]["bf16"][p]["ids"]), "{name} p{p}");
        }
        let ids = home.ids("ids.json", &golden["prompts"][2]);
        let bf16 = home.logits(&folder, &ids, &[]);
        assert_close(&bf16, &values.f32("bf16.logits.p2").1, ROUNDED, 0.0, &format!("{name} in its own class"));
    }
}

#[test]
fn gguf_files_of_every_type_give_the_golden_logits_and_ids() {
    for family in ["qwen3-b32-tiny", "qwen3-k-tiny", "llama-tiny"] {
        let (home, folder) = (Home::new(), goldens().join("gguf"));
        let golden = tare_testkit::json(folder.join(format!("{family}.golden.json")));
        let values = Tensors::open(folder.join(format!("{family}.golden.safetensors")));
        let ids = home.ids("ids.json", &golden["prompts"][2]);
        for (file, about) in golden["files"].as_object().unwrap() {
            let path = folder.join(file);
            let tag = file.trim_start_matches(&format!("{family}-")).trim_end_matches(".gguf");
            let want = values.f32(&format!("{tag}.logits.p2")).1;
            assert_close(&home.logits(&path, &ids, &["--class", "f32"]), &want, EXACT, 0.0, file);
            for (how, logits) in home.in_own_classes(&path, &ids) {
                assert_close(&logits, &want, ROUNDED, 0.0, &format!("{file} {how}"));
            }
            let greedy = &about["greedy"][2];
            let sure = certain(greedy);
            assert!(sure > 0, "{file}: no step without a tie");
            let found = home.greedy(&path, &ids, &["--class", "f32"]);
            assert_eq!(found[..sure], numbers(&greedy["ids"])[..sure], "{file}");
        }
    }
}

#[test]
fn mlx_folders_give_the_golden_logits_and_ids() {
    for name in ["4bit-g32", "4bit-g64", "4bit-g128", "8bit-g64"] {
        let (home, folder) = (Home::new(), goldens().join(format!("mlx/qwen3-tiny-{name}")));
        let (golden, values) =
            (tare_testkit::json(folder.join("golden.json")), Tensors::open(folder.join("golden.safetensors")));
        let ids = home.ids("ids.json", &golden["prompts"][2]);
        let want = values.f32("logits.p2").1;
        assert_close(&home.logits(&folder, &ids, &["--class", "f32"]), &want, EXACT, 0.0, name);
        for (how, logits) in home.in_own_classes(&folder, &ids) {
            assert_close(&logits, &want, ROUNDED, 0.0, &format!("{name} {how}"));
        }
        let sure = certain(&golden["greedy"][2]);
        let found = home.greedy(&folder, &ids, &["--class", "f32"]);
        assert_eq!(found[..sure], numbers(&golden["greedy"][2]["ids"])[..sure], "{name}");
    }
}

#[test]
fn plans_levels_and_threads_change_no_bit() {
    let home = Home::new();
    let folder = goldens().join("models/qwen3-tiny");
    let golden = tare_testkit::json(folder.join("golden.json"));
    let ids = home.ids("ids.json", &golden["prompts"][2]);
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for class in ["f32", "bf16"] {
        let class = ["--class", class];
        let logits = |more: [&str; 2]| bits(home.logits(&folder, &ids, &[class, more].concat()));
        let (first, drawn) = (logits(["--plan", "paged"]), home.greedy(&folder, &ids, &class));
        for plan in ["recompute", "kv-cache", "capacity-cache"] {
            assert!(logits(["--plan", plan]) == first, "{class:?}: logits of {plan} differ from those of paged");
            assert_eq!(home.greedy(&folder, &ids, &[class, ["--plan", plan]].concat()), drawn, "{class:?} {plan}");
        }
        for level in levels(&home, &ids) {
            assert!(logits(["--isa", &level]) == first, "{class:?}: logits at level {level} differ");
        }
        let one = home.path("one.safetensors");
        home.run(
            &[
                &["logits", "-m", folder.to_str().unwrap(), "--ids", &ids, "-t", "1", "-o", one.to_str().unwrap()][..],
                &class,
            ]
            .concat(),
        )
        .success();
        assert!(bits(Tensors::open(&one).f32("logits").1) == first, "{class:?}: one thread differs from two");
    }
}

/// Levels of this host, as the refusal of an unknown one lists them.
fn levels(home: &Home, ids: &str) -> Vec<String> {
    let said = home.refused(&["logits", "-m", "synthetic:qwen3-tiny", "--ids", ids, "-o", "x", "--isa", "none"]);
    let list = said.split("one of ").nth(1).and_then(|s| s.split(" (this host)").next());
    let levels: Vec<String> = list.expect("a list of levels").split(", ").map(str::to_string).collect();
    assert!(levels.contains(&"portable".to_string()), "{said}");
    levels
}

#[test]
fn quantized_models_are_models_again() {
    let home = Home::new();
    let source = goldens().join("models/qwen3-tiny");
    let ids = home.ids("ids.json", &json!([142, 3, 17, 255]));
    for (format, name) in [("w4g64", "folder"), ("q8_0", "file.gguf")] {
        let out = home.path(name);
        let args = ["quantize", "-m", source.to_str().unwrap(), "--format", format, "-o", out.to_str().unwrap()];
        let done = home.json(&[&args[..], &["--json"]].concat());
        assert!(done["bytes"].as_u64().unwrap() > 0 && done["tensors"].as_u64().unwrap() > 30, "{done}");
        let inspected = home.json(&["inspect", out.to_str().unwrap(), "--json"]);
        assert_eq!(inspected["formats"][0]["format"], format);
        let logits = home.logits(&out, &ids, &["--class", "f32"]);
        assert_eq!(logits.len(), 4 * 512);
        assert!(logits.iter().all(|l| l.is_finite()));
        let changed = || std::fs::metadata(&out).unwrap().modified().unwrap();
        let before = changed();
        let refused = home.refused(&args);
        assert!(refused.contains(out.to_str().unwrap()) && refused.contains("expected"), "{refused}");
        assert_eq!(before, changed(), "what was there is left alone");
    }
    // Eight bits are close to sixteen; the MLX folder of the goldens was made from the same model by MLX itself.
    let exact = home.logits(&source, &ids, &["--class", "f32"]);
    let q8 = home.logits(&home.path("file.gguf"), &ids, &["--class", "f32"]);
    assert_close(&q8, &exact, 0.5, 0.0, "q8_0 against bf16");
    let ours = home.logits(&home.path("folder"), &ids, &["--class", "f32"]);
    let theirs = home.logits(&goldens().join("mlx/qwen3-tiny-4bit-g64"), &ids, &["--class", "f32"]);
    assert!(ours == theirs, "the folder that tare wrote and the one that MLX wrote give the same logits");
}

#[test]
fn inspect_counts_what_a_token_costs() {
    let home = Home::new();
    let v = home.json(&["inspect", "synthetic:qwen3-4b?format=w4g128", "--json"]);
    assert_eq!(v["token"]["streamed_weights"], 4_022_272_000u64);
    assert_eq!(v["token"]["flops"], 8_044_544_000u64);
    assert_eq!(v["token"]["streamed_bytes_bf16"], 8_044_544_000u64);
    assert_eq!(v["token"]["bits_per_weight"], 4.25);
    assert_eq!(v["token"]["kv_bytes"], 147_456);
    assert_eq!(home.json(&["inspect", "-m", "synthetic:qwen3-4b?format=w4g128", "--json"])["token"], v["token"]);
    let said = home.run(&["inspect", "synthetic:qwen3-4b"]).success();
    let said = String::from_utf8_lossy(&said.get_output().stdout).into_owned();
    for figure in ["4,022,272,000", "8.045 GFLOP", "8.045 GB in BF16", "147,456"] {
        assert!(said.contains(figure), "{figure}: {said}");
    }
}

#[test]
fn refusals_name_what_was_expected_and_found() {
    let home = Home::new();
    let tiny = goldens().join("models/qwen3-tiny");
    let tiny = tiny.to_str().unwrap();
    let good = home.ids("good.json", &json!([1, 2]));
    let logits = |model: &str, ids: &str, how: &[&str]| {
        let out = home.path("refused.safetensors");
        let args = ["logits", "-m", model, "--ids", ids, "-o", out.to_str().unwrap()];
        let said = home.refused(&[&args, how].concat());
        assert!(!out.exists(), "nothing is written by a refused command: {said}");
        said
    };
    let says = |said: String, parts: &[&str]| {
        for part in parts {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    };
    says(logits("no-such-model", &good, &[]), &["expected", "found `no-such-model`", "tare pull"]);
    says(logits("synthetic:gpt-9", &good, &[]), &["expected one of", "qwen3-tiny", "`gpt-9`"]);
    says(logits(tiny, &good, &["--class", "f64"]), &["class: expected one of f32, bf16", "found `f64`"]);
    says(logits(tiny, &good, &["--class", "w4a16"]), &["class: expected", "leave the class out"]);
    says(logits(tiny, &good, &["--plan", "fast"]), &["plan: expected one of recompute", "found `fast`"]);
    says(logits(tiny, &good, &["--threads", "0"]), &["threads: expected at least 1, found 0"]);
    says(logits(tiny, &good, &["--threads", "100000"]), &["threads: expected at most 1024, found 100000"]);
    says(logits(tiny, &good, &["--context", "99999999"]), &["context: expected at most", "found 99999999"]);
    let words = home.ids("words.json", &json!({ "ids": [1] }));
    says(logits(tiny, &words, &[]), &["words.json: expected a JSON array of token ids", "found"]);
    let negative = home.ids("negative.json", &json!([1, -1]));
    says(logits(tiny, &negative, &[]), &["negative.json: expected a JSON array of token ids", "-1"]);
    let missing = home.path("missing.json");
    says(logits(tiny, missing.to_str().unwrap(), &[]), &["missing.json"]);
    let far = home.ids("far.json", &json!([1, 512]));
    says(logits(tiny, &far, &[]), &["prompt[1]", "512", "vocabulary"]);
    says(logits(tiny, &home.ids("empty.json", &json!([])), &[]), &["prompt is empty", "at least one token"]);
    says(home.refused(&["run", "-m", tiny, "hello"]), &["tokenizer: expected", "found none", "--ids"]);
    says(home.refused(&["tokenize", "-m", tiny, "hello"]), &["tokenizer: expected", "found none"]);
    says(home.refused(&["quantize", "-m", tiny, "--format", "q9", "-o", "x"]), &["--format: expected", "found `q9`"]);
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    let mut child = Home::new()
        .command(&["inspect", "synthetic:qwen3-4b", "--tensors"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert!(done.status.success());
}

#[test]
fn penalties_below_zero_are_penalties() {
    let home = Home::new();
    let tiny = goldens().join("models/qwen3-tiny");
    let ids = home.ids("ids.json", &json!([1, 2]));
    let flags = ["--presence-penalty", "-0.5", "--frequency-penalty", "-0.5"];
    let base = ["run", "-m", tiny.to_str().unwrap(), "--ids", &ids, "-n", "2", "--json"];
    assert_eq!(numbers(&home.json(&[&base[..], &flags].concat())["ids"]).len(), 2);
    let said = home.refused(&[&base[..], &["--temperature", "-1"]].concat());
    assert!(said.contains("temperature: expected 0 (greedy) or more, found -1"), "{said}");
}

#[test]
fn a_device_answers_as_the_processor_or_says_why_there_is_none() {
    let home = Home::new();
    let tiny = goldens().join("models/qwen3-tiny");
    let ids = home.ids("ids.json", &json!([1, 2, 3]));
    let base = ["run", "-m", tiny.to_str().unwrap(), "--ids", &ids, "-n", "4", "--json"];
    let out = home.command(&[&base[..], &["--backend", "cuda"]].concat()).output().unwrap();
    if out.status.success() {
        let found: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(found["ids"], home.json(&base)["ids"]);
    } else {
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("cuda: expected a device that can be used, found"), "{said}");
        assert!(said.contains("tare doctor") && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn completions_know_the_commands() {
    let done = Home::new().run(&["completions", "bash"]).success();
    let script = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    for word in ["_tare()", "clock", "perplexity", "--prefill-logits", "complete -F"] {
        assert!(script.contains(word), "{word} is missing");
    }
}

/// Bytes are counted, not times: those of the whole process, by the account of the system. A model that is packed anew
/// reads one that is mapped, or made, piece by piece.
#[test]
#[cfg(target_os = "linux")]
fn packing_takes_little_more_than_the_packed_model() {
    // What the matrices take in panels is what they take in the file.
    const PACKED: u64 = 596_049_920 / 32 * 18;
    let home = Home::new();
    let (file, ids) = (home.path("model.gguf"), home.path("ids.json"));
    std::fs::write(&ids, "[17, 4711]").unwrap();
    let (file, ids) = (file.to_str().unwrap(), ids.to_str().unwrap());
    let made = "synthetic:qwen3-0.6b?format=q4_0";
    home.run(&["quantize", "-m", made, "--format", "q4_0", "-o", file]).success();
    for model in [made, file] {
        // A class that reads panels.
        let run = ["run", "-m", model, "--class", "w4a16-free", "--ids", ids, "-n", "1", "-c", "16", "--json"];
        let memory = &home.json(&run)["memory"];
        let [peak, mapped] = ["peak_bytes", "file_bytes"].map(|k| memory[k].as_u64().unwrap());
        assert!(peak > PACKED, "{model}: {peak} bytes");
        assert!(peak * 100 <= PACKED * 115, "{model}: {peak} bytes at the peak, {PACKED} packed");
        assert!(mapped < PACKED / 4, "{model}: {mapped} bytes of files, the program among them");
    }
}
