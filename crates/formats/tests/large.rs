//! A file as large as Qwen3-4B in BF16 (8 GB, without blocks on the disk): opening it reads its header alone.

use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use tare_formats::{Role, config::hf, open};
use tare_testkit::goldens;

/// config.json of the published 4B shapes, on top of the golden one.
fn config() -> Value {
    let mut config = tare_testkit::json(goldens().join("models/qwen3-tiny/config.json"));
    let shapes = json!({"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "vocab_size": 151_936,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128});
    for (field, value) in shapes.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

/// Resident bytes of this process, where the system tells.
fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    text.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

#[test]
fn opening_reads_no_tensor_data() {
    let dir = tempfile::tempdir().unwrap();
    let text = config().to_string();
    fs::write(dir.path().join("config.json"), &text).unwrap();
    let config = hf::parse(text.as_bytes()).unwrap().model;
    let (mut header, mut at) = (json!({}), 0u64);
    for role in Role::all(&config) {
        let (rows, cols) = role.shape(&config);
        let shape = if role.is_vector() { json!([cols]) } else { json!([rows, cols]) };
        let end = at + (rows * cols * 2) as u64;
        header[role.hugging_face()] = json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]});
        at = end;
    }
    let text = header.to_string();
    let mut file = File::create(dir.path().join("model.safetensors")).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_len(8 + text.len() as u64 + at).unwrap();

    let before = resident();
    let model = open(dir.path()).unwrap();
    assert_eq!(at, 8_044_936_192, "the bytes of the published model");
    assert_eq!(model.weight(Role::Head).unwrap().rows(), 151_936);
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after.saturating_sub(before) < 32 << 20, "opening touched {} bytes", after - before);
    }
}
