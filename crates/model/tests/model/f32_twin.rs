//! The F32 weights that are not shipped with the goldens, by the recipe at the top of goldens/scripts/weights.py.

use serde_json::Value;
use std::path::Path;
use tare_core::digest::sha256_hex;
use tare_testkit::{goldens, json};

/// Writes config.json and model.safetensors of the F32 twin of `name` into `folder`.
///
/// # Panics
/// When the bytes are not those whose digest the goldens give.
pub(crate) fn write(name: &str, folder: &Path) {
    let models = json(goldens().join("scripts/models.json"));
    let recipe = models["models"].as_array().expect("models").iter().find(|m| m["name"] == name).expect("a recipe");
    let bytes = safetensors(recipe);
    let source = goldens().join("models").join(name);
    let want = &json(source.join("golden.json"))["files"]["f32/model.safetensors"]["sha256"];
    assert_eq!(Some(sha256_hex(&bytes).as_str()), want.as_str(), "{name}: digest of the F32 twin");
    std::fs::write(folder.join("model.safetensors"), bytes).expect("the folder can be written");
    std::fs::copy(source.join("f32/config.json"), folder.join("config.json")).expect("the configuration is there");
}

fn safetensors(recipe: &Value) -> Vec<u8> {
    let seed = u64::from_str_radix(recipe["seed"].as_str().expect("a seed"), 16).expect("hexadecimal");
    let (mut head, mut body) = (String::from(r#"{"__metadata__":{"format":"pt"}"#), Vec::new());
    for (name, shape) in shapes(&recipe["config"]) {
        let from = body.len();
        let amp = recipe["amp"][kind(&name)].as_f64().expect("an amplitude") as f32;
        for i in 0..shape.iter().product::<usize>() as u64 {
            let w = unit(seed, &name, i) * amp;
            body.extend((if name.contains("norm") { 1.0 + w } else { w }).to_le_bytes());
        }
        let to = body.len();
        let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        head += &format!(r#","{name}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{from},{to}]}}"#);
    }
    head.push('}');
    head += &" ".repeat(head.len().wrapping_neg() % 8);
    [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &body].concat()
}

/// In [-1, 1), exact in F32.
fn unit(seed: u64, name: &str, index: u64) -> f32 {
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    let z = (hash ^ seed).wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let z = z ^ (z >> 31);
    ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32
}

fn kind(name: &str) -> &str {
    match name {
        n if n.contains("q_norm") || n.contains("k_norm") => "norm_qk",
        n if n.contains("norm") => "norm",
        n if n.ends_with("bias") => "bias",
        "model.embed_tokens.weight" => "embed",
        "lm_head.weight" => "head",
        n => n.rsplit('.').nth(1).expect("a module"),
    }
}

/// Names and shapes in the order of the file.
fn shapes(config: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |field: &str| config[field].as_u64().map(|n| n as usize);
    let need = |field: &str| size(field).expect("a size");
    let (d, f, v) = (need("hidden_size"), need("intermediate_size"), need("vocab_size"));
    let (h, k) = (need("num_attention_heads"), need("num_key_value_heads"));
    let e = size("head_dim").unwrap_or(d / h);
    let mut out = vec![("model.embed_tokens.weight".to_owned(), vec![v, d])];
    for layer in 0..need("num_hidden_layers") {
        let mut put = |part: &str, shape: &[usize]| out.push((format!("model.layers.{layer}.{part}"), shape.to_vec()));
        put("input_layernorm.weight", &[d]);
        put("self_attn.q_proj.weight", &[h * e, d]);
        put("self_attn.k_proj.weight", &[k * e, d]);
        put("self_attn.v_proj.weight", &[k * e, d]);
        put("self_attn.o_proj.weight", &[d, h * e]);
        if config["model_type"] == "qwen3" {
            put("self_attn.q_norm.weight", &[e]);
            put("self_attn.k_norm.weight", &[e]);
        }
        if config["model_type"] == "qwen2" {
            put("self_attn.q_proj.bias", &[h * e]);
            put("self_attn.k_proj.bias", &[k * e]);
            put("self_attn.v_proj.bias", &[k * e]);
        }
        put("post_attention_layernorm.weight", &[d]);
        put("mlp.gate_proj.weight", &[f, d]);
        put("mlp.up_proj.weight", &[f, d]);
        put("mlp.down_proj.weight", &[d, f]);
    }
    out.push(("model.norm.weight".to_owned(), vec![d]));
    if config["tie_word_embeddings"] == false {
        out.push(("lm_head.weight".to_owned(), vec![v, d]));
    }
    out
}
