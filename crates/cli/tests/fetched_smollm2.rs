//! A real model through the binary: SmolLM2-135M in Q4_1 against the values that llama.cpp gave for the same weights.

mod home;

use home::Home;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use tare_lab::thresholds::{Text, Thresholds};
use tare_testkit::{Tensors, assert_close, assets, goldens};

/// Of the goldens' README: gaps below this may go either way.
const TIE: f64 = 2e-3;

/// How far a packed class may be from class f32, as `gates.toml` has it.
fn limits() -> Text {
    Thresholds::built_in().unwrap().text
}

fn model() -> String {
    assets().join("smollm2-135m.gguf").to_str().unwrap().to_string()
}

fn golden() -> Value {
    tare_testkit::json(goldens().join("smollm2/golden.json"))
}

fn numbers(v: &Value) -> Vec<u64> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// The teacher-forced ids as a file.
fn forced_ids(home: &Home) -> String {
    let path = home.path("ids.json");
    std::fs::write(&path, golden()["teacher_forced"]["ids"].to_string()).unwrap();
    path.to_str().unwrap().to_string()
}

/// Logits of the teacher-forced text, by position.
fn forced_logits(how: &[&str]) -> Vec<Vec<f32>> {
    let home = Home::new();
    let out = home.path("logits.safetensors");
    let (model, ids) = (model(), forced_ids(&home));
    let args = ["logits", "-m", &model, "--ids", &ids, "-o", out.to_str().unwrap(), "--threads", "2"];
    home.run(&[&args, how].concat()).success();
    let (shape, values) = Tensors::open(&out).f32("logits");
    assert_eq!(shape[0], 60);
    values.chunks(shape[1]).map(<[f32]>::to_vec).collect()
}

/// What `tare run` makes of a prompt of ids.
fn run_ids(home: &Home, prompt: &Value, how: &[&str]) -> Value {
    let path = home.path("prompt.json");
    std::fs::write(&path, prompt.to_string()).unwrap();
    let model = model();
    let args = ["run", "-m", &model, "--ids", path.to_str().unwrap(), "-n", "48", "--json", "--threads", "2"];
    home.json(&[&args, how].concat())
}

/// The first step at which `ids` and the golden series part, and the golden gap there.
fn departure(series: &Value, ids: &[u64]) -> Option<(usize, f64)> {
    let want = numbers(&series["generated_ids"]);
    let at = (0..want.len()).find(|&i| ids.get(i) != Some(&want[i]))?;
    Some((at, series["steps"][at]["gap"].as_f64().unwrap()))
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_f32_logits_are_those_of_the_witness() {
    let golden = golden();
    let top5 = golden["teacher_forced"]["f32_dequant"]["top5"].as_array().unwrap();
    for (position, (row, expected)) in forced_logits(&["--class", "f32"]).iter().zip(top5).enumerate() {
        let pairs = expected.as_array().unwrap();
        let found: Vec<f32> = pairs.iter().map(|p| row[p[0].as_u64().unwrap() as usize]).collect();
        let want: Vec<f32> = pairs.iter().map(|p| p[1].as_f64().unwrap() as f32).collect();
        assert_close(&found, &want, 1e-3, 0.0, &format!("position {position}"));
        let above = row.iter().filter(|l| f64::from(**l) > f64::from(want[4]) + 1e-3).count();
        assert!(above <= 4, "position {position}: {above} logits above the fifth of the witness");
    }
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_f32_ids_are_those_of_the_witness() {
    let home = Home::new();
    for series in golden()["f32_dequant"].as_array().unwrap() {
        let done = run_ids(&home, &series["prompt_ids"], &["--class", "f32"]);
        if let Some((step, gap)) = departure(series, &numbers(&done["ids"])) {
            assert!(gap < TIE, "step {step}: another id at a gap of {gap}");
        }
    }
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_the_packed_class_stays_close_to_f32() {
    let exact = forced_logits(&["--class", "f32"]);
    let divergence = |p: &[f32], q: &[f32]| {
        let (p, q) = (log_softmax(p), log_softmax(q));
        p.iter().zip(&q).map(|(a, b)| a.exp() * (a - b)).sum::<f64>()
    };
    // The class that the file runs in when nobody asks, and the one with activations in F32.
    for class in [None, Some("w4a16")] {
        let how: Vec<&str> = class.into_iter().flat_map(|class| ["--class", class]).collect();
        let packed = forced_logits(&how);
        let mean = exact.iter().zip(&packed).map(|(p, q)| divergence(p, q)).sum::<f64>() / exact.len() as f64;
        assert!(mean > 0.0, "{class:?}: another class computes otherwise");
        assert!(mean <= limits().mean_kl, "{class:?}: mean KL to f32 is {mean}");
        let home = Home::new();
        for series in golden()["f32_dequant"].as_array().unwrap() {
            let done = run_ids(&home, &series["prompt_ids"], &how);
            if let Some((step, gap)) = departure(series, &numbers(&done["ids"])) {
                assert!(gap <= limits().departure_gap, "{class:?}, step {step}: another id at a gap of {gap}");
            }
        }
        eprintln!("mean KL to f32, {class:?}: {mean:.3e}");
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &l| m.max(f64::from(l)));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    logits.iter().map(|&l| f64::from(l) - max - sum.ln()).collect()
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_perplexity_is_that_of_the_witness() {
    let (home, golden) = (Home::new(), golden());
    let forced = &golden["teacher_forced"];
    let perplexity =
        |more: &[&str]| home.json(&[&["perplexity", "-m", &model(), "--class", "f32", "--json"], more].concat());
    let by_ids = perplexity(&["--ids", &forced_ids(&home)]);
    let (found, want) = (&by_ids["mean_nll"], &forced["f32_dequant"]["mean_nll"]);
    assert_eq!(by_ids["tokens"], 59);
    assert!((found.as_f64().unwrap() - want.as_f64().unwrap()).abs() <= 1e-5, "{found} of {want}");
    // The whole text is longer than the ids that were scored; where they overlap nothing differs.
    let file = home.path("text.txt");
    std::fs::write(&file, forced["text"].as_str().unwrap()).unwrap();
    let by_text = perplexity(&[file.to_str().unwrap()]);
    let nll = |v: &Value| v["nll"].as_array().unwrap().clone();
    assert_eq!(nll(&by_text)[..59], nll(&by_ids)[..]);
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_prompts_become_sentences() {
    let (home, golden, model) = (Home::new(), golden(), model());
    let series = &golden["f32_dequant"];
    let common = ["run", "-m", &model, "-n", "48", "--class", "f32", "--json"];
    let raw = home.json(&[&common[..], &["--raw", series[0]["prompt"].as_str().unwrap()]].concat());
    assert_eq!(raw["text"], series[0]["text"]);
    let chat = home.json(&[&common[..], &["Why is the sky blue?"]].concat());
    assert_eq!(chat["text"], series[1]["text"], "the template of the file was applied");
    assert_eq!((&chat["finish_reason"], &chat["usage"]["prompt_tokens"]), (&"length".into(), &36.into()));
    let stopped = home.json(&[&common[..], &["--stop", "intricate", "Why is the sky blue?"]].concat());
    assert_eq!(
        (&stopped["finish_reason"], &stopped["text"]),
        (&"stop".into(), &"The answer to this question lies in the ".into())
    );
    let said = home.refused(&["run", "-m", &model, "--context", "8", "--raw", series[0]["prompt"].as_str().unwrap()]);
    assert!(said.contains("the prompt has 15 tokens") && said.contains("the context is 8"), "{said}");
    // Without --json the text itself comes, and the counts go to standard error.
    let shown = home.run(&["run", "-m", &model, "-n", "200", "Say hello."]).success();
    let text = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(text.split_whitespace().count() >= 3 && text.contains(['.', '!', '?']), "{text}");
    assert!(text.is_ascii() && !text.contains("<|"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_memory_in_use_stays_near_the_file() {
    let (home, golden) = (Home::new(), golden());
    // A cache of 256 tokens: builds with debug assertions write all of it at the start, whatever is used, and their
    // larger binary counts as well.
    let v = run_ids(&home, &golden["f32_dequant"][0]["prompt_ids"], &["--context", "256"]);
    let file = std::fs::metadata(model()).unwrap().len();
    let of = |part: &str| v["memory"][part].as_u64().unwrap();
    let parts = ["anonymous_bytes", "file_bytes", "peak_bytes"].map(of);
    eprintln!("file {file}; anonymous, of files, peak: {parts:?}");
    // The first is packed weights, cache and step memory: a second copy of the weights would be in it. The second is pages of the
    // program and its libraries, of which the kernel reads ahead what it likes: a model that stays mapped would be in it.
    for (name, bytes, most) in
        [("anonymous", parts[0], 1.4), ("file pages", parts[1], 0.5), ("at the peak", parts[2], 1.7)]
    {
        assert!(bytes as f64 <= most * file as f64, "{name}: {bytes} bytes, expected {most} times {file} at most");
    }
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_text_goes_to_ids_and_back() {
    let (home, model) = (Home::new(), model());
    let text = "The sky <|im_end|> costs 42 caf\u{e9}s";
    let plain = numbers(&home.json(&["tokenize", "-m", &model, "--json", text]));
    let parsed = numbers(&home.json(&["tokenize", "-m", &model, "--json", "--parse-special", text]));
    assert!(!plain.contains(&2) && parsed.contains(&2), "{plain:?} {parsed:?}");
    for ids in [plain, parsed] {
        let words: Vec<String> = ids.iter().map(u64::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(home.json(&[&["detokenize", "-m", &model, "--json"], &words[..]].concat()), text);
    }
    let case = &tare_testkit::json(goldens().join("chat/smollm2.json"))["cases"][0];
    let file = home.path("messages.json");
    std::fs::write(&file, case["messages"].to_string()).unwrap();
    let rendered = home.json(&["template", "-m", &model, file.to_str().unwrap(), "--json"]);
    assert_eq!(rendered["rendered"], case["rendered"]);
    assert!(rendered["ids"].as_array().unwrap().len() > 10);
}

/// One request over a connection of its own: the whole answer.
fn post(address: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[cfg(unix)]
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_serve_answers_streams_and_ends() {
    let (home, golden, model) = (Home::new(), golden(), model());
    let args = ["serve", "-m", &model, "--port", "0", "--class", "f32", "--served-name", "smollm2", "--context", "512"];
    let mut child = home.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit("http://").next().unwrap().trim_end_matches("/v1").to_string();
    assert!(line.starts_with("serving") && address.starts_with("127.0.0.1:"), "{line}");

    let ask = |stream: bool| {
        let body = serde_json::json!({
            "model": "smollm2", "messages": [{ "role": "user", "content": "Why is the sky blue?" }],
            "max_tokens": 12, "temperature": 0, "stream": stream,
        });
        post(&address, "/v1/chat/completions", &body.to_string())
    };
    let want = "The answer to this question lies in the intricate dance of light";
    assert!(golden["f32_dequant"][1]["text"].as_str().unwrap().starts_with(want));
    let whole = ask(false);
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
    let start = whole.find('{').unwrap();
    let v: Value = serde_json::from_str(&whole[start..=whole.rfind('}').unwrap()]).unwrap();
    assert_eq!(v["choices"][0]["message"]["content"], want);
    assert_eq!((&v["choices"][0]["finish_reason"], &v["usage"]["completion_tokens"]), (&"length".into(), &12.into()));

    let streamed = ask(true);
    let events: Vec<&str> = streamed.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"), "{streamed}");
    let chunks = events.iter().filter_map(|e| serde_json::from_str::<Value>(e).ok());
    let pieces: Vec<String> =
        chunks.filter_map(|c| c["choices"][0]["delta"]["content"].as_str().map(str::to_string)).collect();
    assert_eq!(pieces.concat(), want);
    assert!(pieces.len() > 3, "the answer comes in pieces: {pieces:?}");
    let refused = post(&address, "/v1/chat/completions", "{\"model\": \"smollm2\"}");
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("messages"), "{refused}");

    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -TERM {}", child.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Groups that run alone work on what the one before left: with real weights numbers would grow from layer to layer until they are
/// none, were the input of a product written over by what is made of its copy.
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_steps_are_taken_apart_whatever_copies_their_products_read() {
    let home = Home::new();
    for class in ["w4a15", "w4a8", "w4a16-free", "w4a16"] {
        for phase in ["decode", "prefill"] {
            let asked = ["replay", "-m", &model(), "--class", class, "--phase", phase, "-p", "16", "-i", "2", "--json"];
            let replay = home.json(&asked);
            assert_eq!(replay["coverage"]["complete"], true, "{class} {phase}: {}", replay["coverage"]);
        }
    }
}
