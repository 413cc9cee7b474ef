//! candle's quantized Qwen3 behind the shim protocol: token ids in, token ids out, one JSON object a line.
//!
//! Requests come on standard input, answers go to standard output. When standard input ends the process ends, in the
//! middle of a call too.

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_qwen3::ModelWeights;
use serde_json::{Value, json};
use std::error::Error;
use std::fs::File;
use std::io::BufRead;
use std::sync::mpsc::channel;
use std::time::Instant;

type Answer = Result<Value, Box<dyn Error>>;

#[derive(Default)]
struct Engine {
    model: Option<ModelWeights>,
    vocab: usize,
    context: usize,
    used: usize,
    last: u32,
}

fn ns(from: Instant) -> u64 {
    from.elapsed().as_nanos() as u64
}

/// Resident memory of this process; none where the system does not say.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

fn ids(value: &Value) -> Result<Vec<u32>, Box<dyn Error>> {
    Ok(serde_json::from_value(value.clone())?)
}

impl Engine {
    fn load(&mut self, ask: &Value) -> Answer {
        let path = ask["model"].as_str().ok_or("model: expected a path")?;
        if let Some(n) = ask["sequences"].as_u64().filter(|n| *n != 1) {
            return Err(format!("sequences: expected 1, whose keys and values the model keeps, found {n}").into());
        }
        if let Some(key) = ask["settings"].as_object().and_then(|s| s.keys().next()) {
            return Err(format!("settings.{key}: no such setting").into());
        }
        // Read by the pool when it is first used, which is below.
        std::env::set_var("RAYON_NUM_THREADS", ask["threads"].to_string());
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let tied = !content.tensor_infos.contains_key("output.weight");
        let head_name = if tied { "token_embd.weight" } else { "output.weight" };
        let (mut layer_bytes, mut layer_weights, mut head) = (0, 0, (0, 0));
        for (name, info) in &content.tensor_infos {
            let weights = info.shape.elem_count();
            let bytes = weights / info.ggml_dtype.block_size() * info.ggml_dtype.type_size();
            if info.shape.dims().len() < 2 {
                continue;
            }
            if name == head_name {
                head = (bytes, weights);
                self.vocab = info.shape.dims()[0];
            } else if name != "token_embd.weight" {
                layer_bytes += bytes;
                layer_weights += weights;
            }
        }
        let bits = |bytes: usize, weights: usize| 8.0 * bytes as f64 / weights as f64;
        self.model = Some(ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?);
        self.context = ask["context"].as_u64().ok_or("context: expected a number")? as usize;
        let weight_bits = bits(layer_bytes, layer_weights);
        Ok(json!({
            "name": "candle",
            "version": "0.11.1",
            "class": {
                "weight_bits": weight_bits,
                "head_bits": bits(head.0, head.1),
                "activation_bits": if weight_bits < 16.0 { 8 } else { weight_bits as u32 },
                "kv": "f32",
                "sums": "f32 over blocks",
            },
            "streamed_bytes": layer_bytes + head.0,
            "vocab": self.vocab,
            "logits": true,
            "proof": [format!(
                "avx2 {}, neon {}, simd128 {}, f16c {}",
                candle_core::utils::with_avx(),
                candle_core::utils::with_neon(),
                candle_core::utils::with_simd128(),
                candle_core::utils::with_f16c()
            )],
            "settings": { "threads": ask["threads"] },
        }))
    }

    /// The arg max after `ids`, kept in `last`, the lower id on a tie; its logit.
    fn run(&mut self, ids: &[u32]) -> Result<f32, Box<dyn Error>> {
        let model = self.model.as_mut().ok_or("no model is loaded")?;
        if self.used + ids.len() > self.context {
            return Err(format!("the context of {} tokens is full", self.context).into());
        }
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits: Vec<f32> = model.forward(&input, self.used)?.flatten_all()?.to_vec1()?;
        self.used += ids.len();
        let mut best = 0;
        for (i, l) in logits.iter().enumerate() {
            if *l > logits[best] {
                best = i;
            }
        }
        self.last = best as u32;
        Ok(logits[best])
    }

    fn prefill(&mut self, ask: &Value) -> Answer {
        let (prefix, prompt) = (ids(&ask["prefix"])?, ids(&ask["prompt"])?);
        if let Some(id) = prefix.iter().chain(&prompt).find(|id| **id as usize >= self.vocab) {
            return Err(format!("prompt: no token has id {id}").into());
        }
        if !prefix.is_empty() {
            self.run(&prefix)?;
        }
        let start = Instant::now();
        let logit = self.run(&prompt)?;
        Ok(json!({ "setup_ns": 0, "ns": ns(start), "id": self.last, "logit": logit }))
    }

    fn decode(&mut self, ask: &Value) -> Answer {
        let count = ask["tokens"].as_u64().ok_or("tokens: expected a number")?;
        let (mut ids, mut logits, mut times) = (vec![], vec![], vec![]);
        for _ in 0..count {
            let start = Instant::now();
            logits.push(self.run(&[self.last])?);
            ids.push(self.last);
            times.push(ns(start));
        }
        Ok(json!({ "ids": ids, "logits": logits, "ns": times }))
    }

    fn finish(&mut self) -> Answer {
        let resident = resident_bytes();
        let start = Instant::now();
        self.model.as_mut().ok_or("no model is loaded")?.clear_kv_cache();
        self.used = 0;
        Ok(json!({ "release_ns": ns(start), "cpu_ns": null, "rss_bytes": resident }))
    }

    fn answer(&mut self, line: &str) -> Answer {
        let ask: Value = serde_json::from_str(line)?;
        match ask["op"].as_str() {
            Some("load") => self.load(&ask),
            Some("prefill") => self.prefill(&ask),
            Some("decode") => self.decode(&ask),
            Some("finish") => self.finish(),
            // The threads of its pool sleep by themselves between two calls.
            Some("rest") => Ok(json!({})),
            Some("quit") => std::process::exit(0),
            other => Err(format!("op: no such operation: {other:?}").into()),
        }
    }
}

fn main() {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    let mut engine = Engine::default();
    for line in lines {
        let answer = match engine.answer(&line) {
            Ok(mut answer) => {
                answer["ok"] = true.into();
                answer
            }
            Err(e) => json!({ "ok": false, "why": e.to_string() }),
        };
        println!("{answer}");
    }
}
