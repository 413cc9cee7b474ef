//! Safetensors files and folders that lie: each gives an error that names the tensor or field, none panics.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tare_formats::{open, safetensors};
use tare_testkit::goldens;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(vec![0; data]);
    out
}

fn fault(header: &str, data: usize) -> String {
    safetensors::parse(&file(header, data)).unwrap_err().to_string()
}

#[test]
fn headers_that_lie_are_refused_with_the_tensor() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}}}"#)
    };
    assert!(safetensors::parse(&file(&one("F32", "[2]", "[0, 8]"), 8)).is_ok());
    for (header, data, want) in [
        (one("F32", "[2]", "[0, 8]"), 7, "truncated"),
        (one("F32", "[2]", "[0, 8]"), 9, "data: expected a file of"),
        (one("F32", "[2]", "[0, 12]"), 12, "w: expected 8 bytes"),
        (one("F32", "[2]", "[8, 0]"), 8, "w: expected 8 bytes"),
        (one("F32", "[2]", "[8, 16]"), 16, "after a hole"),
        (one("F32", "[2]", "[18446744073709551608, 18446744073709551615]"), 8, "w: expected 8 bytes"),
        (one("F32", "[4294967296, 4294967296, 4]", "[0, 8]"), 8, "fits in memory"),
        (one("F8_E4M3", "[8]", "[0, 8]"), 8, "found `F8_E4M3`"),
        (one("F32", "[-1]", "[0, 8]"), 8, "header"),
        (one("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), 4, "at most 8 dimensions"),
        (r#"{"w": {"dtype": "F32", "shape": [2]}}"#.into(), 8, "data_offsets"),
        (r#"{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "x": 1}}"#.into(), 8, "unknown field `x`"),
        ("[]".into(), 0, "header"),
        ("{".into(), 0, "header"),
        ("[".repeat(100_000), 0, "header"),
    ] {
        let text = fault(&header, data);
        assert!(text.contains(want), "{}: {text}", &header[..header.len().min(80)]);
    }
}

#[test]
fn duplicates_and_overlaps_are_refused() {
    let entry = |name: &str, from: usize| {
        format!(r#""{name}": {{"dtype": "U8", "shape": [4], "data_offsets": [{from}, {}]}}"#, from + 4)
    };
    let twice = format!("{{{}, {}}}", entry("a", 0), entry("a", 4));
    assert!(fault(&twice, 8).contains("the tensor `a` twice"));
    let overlap = format!("{{{}, {}}}", entry("a", 0), entry("b", 2));
    assert!(fault(&overlap, 6).contains("b: expected data at offset 4, found 2, overlapping"));
    let unsorted = format!("{{{}, {}}}", entry("b", 4), entry("a", 0));
    let names: Vec<_> = safetensors::parse(&file(&unsorted, 8)).unwrap().entries.into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["a", "b"], "the text may have any order; entries come in the order of the data");
}

#[test]
fn a_header_longer_than_the_file_allocates_nothing() {
    for length in [9u64, 1 << 40, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        assert!(safetensors::parse(&bytes).unwrap_err().to_string().starts_with("header length"));
    }
    assert!(safetensors::parse(b"1234567").is_err());
}

/// A copy of a golden folder, to be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(goldens().join(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    dir
}

fn read(dir: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

fn write(path: &Path, header: &Value, data: &[u8]) {
    let text = header.to_string();
    fs::write(path, [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat()).unwrap();
}

/// Renames a tensor of the golden folder `name`.
fn renamed(name: &str, from: &str, to: &str) -> String {
    let dir = copy(name);
    let (mut header, data) = read(dir.path());
    let entry = header.as_object_mut().unwrap().remove(from).unwrap();
    header[to] = entry;
    write(&dir.path().join("model.safetensors"), &header, &data);
    open(dir.path()).unwrap_err().to_string()
}

#[test]
fn tensors_that_are_missing_or_have_no_role_are_named() {
    let q = "model.layers.1.self_attn.q_proj.weight";
    let text = renamed("models/qwen3-tiny", q, "model.layers.9.self_attn.q_proj.weight");
    assert!(text.contains(&format!("{q}: expected a tensor [256, 128], found nothing")), "{text}");
    let norm = "model.layers.0.self_attn.q_norm.weight";
    let text = renamed("models/qwen3-tiny", norm, "model.layers.0.self_attn.rotary_emb.inv_freq");
    assert!(text.contains(norm), "{text}");
    let scales = "model.layers.0.mlp.up_proj.scales";
    let text = renamed("mlx/qwen3-tiny-4bit-g64", scales, "model.layers.0.mlp.up_proj.extra");
    assert!(text.contains("model.layers.0.mlp.up_proj.weight") && text.contains("u32"), "{text}");
}

#[test]
fn extra_tensors_are_refused_and_harmless_ones_reported() {
    let dir = copy("models/qwen3-tiny");
    let path = dir.path().join("model.safetensors");
    let (mut header, mut data) = read(dir.path());
    let end = data.len();
    data.extend([0; 4]);
    let entry = json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
    header["model.layers.0.self_attn.rotary_emb.inv_freq"] = entry.clone();
    write(&path, &header, &data);
    assert_eq!(open(dir.path()).unwrap().ignored(), ["model.layers.0.self_attn.rotary_emb.inv_freq"]);

    let entry = header.as_object_mut().unwrap().remove("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    header["model.layers.0.self_attn.o_proj.bias"] = entry;
    write(&path, &header, &data);
    let text = open(dir.path()).unwrap_err().to_string();
    assert!(text.contains("model.layers.0.self_attn.o_proj.bias"), "{text}");
}

#[test]
fn a_configuration_of_another_model_is_found_out() {
    let dir = copy("models/qwen3-tiny");
    let path = dir.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"intermediate_size\": 384", "\"intermediate_size\": 256");
    fs::write(&path, text).unwrap();
    let text = open(dir.path()).unwrap_err().to_string();
    let want = "model.layers.0.mlp.gate_proj.weight: expected [256, 128] by the configuration, found [384, 128]";
    assert!(text.contains(want), "{text}");

    fs::remove_file(&path).unwrap();
    assert!(open(dir.path()).unwrap_err().to_string().contains("config.json: expected a file beside the weights"));
}

#[test]
fn truncated_weights_are_found_out() {
    let dir = copy("models/qwen3-tiny");
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for n in [0, 4, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..n]).unwrap();
        assert!(open(dir.path()).is_err(), "{n} bytes");
    }
}

/// Splits the golden model into two shards with an index.
fn sharded() -> tempfile::TempDir {
    let dir = copy("models/qwen3-tiny");
    let (header, data) = read(dir.path());
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    let (mut map, mut shards) = (serde_json::Map::new(), [(json!({}), Vec::new()), (json!({}), Vec::new())]);
    for (i, (name, entry)) in header.as_object().unwrap().iter().filter(|(n, _)| *n != "__metadata__").enumerate() {
        let at = |k: usize| entry["data_offsets"][k].as_u64().unwrap() as usize;
        let (head, body) = &mut shards[i % 2];
        let start = body.len();
        body.extend(&data[at(0)..at(1)]);
        head[name] = json!({"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [start, body.len()]});
        map.insert(name.clone(), format!("model-{}.safetensors", i % 2).into());
    }
    for (i, (head, body)) in shards.iter().enumerate() {
        write(&dir.path().join(format!("model-{i}.safetensors")), head, body);
    }
    fs::write(dir.path().join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    dir
}

#[test]
fn shards_give_the_same_model() {
    let (dir, whole) = (sharded(), open(&goldens().join("models/qwen3-tiny")).unwrap());
    let model = open(dir.path()).unwrap();
    for role in tare_formats::Role::all(&whole.config) {
        let [a, b] = [&model, &whole].map(|m| tare_formats::codec::dequantize(&m.weight(role).unwrap()));
        assert_eq!(a, b, "{role}");
    }
}

#[test]
fn an_index_that_lies_is_found_out() {
    let edit = |change: &dyn Fn(&mut Value)| {
        let dir = sharded();
        let path = dir.path().join("model.safetensors.index.json");
        let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut index["weight_map"]);
        fs::write(&path, index.to_string()).unwrap();
        open(dir.path()).unwrap_err().to_string()
    };
    let text = edit(&|m| m["model.extra.weight"] = "model-0.safetensors".into());
    assert!(text.contains("model.extra.weight: expected data in model-0.safetensors"), "{text}");
    let text = edit(&|m| drop(m.as_object_mut().unwrap().remove("model.norm.weight")));
    assert!(text.contains("model.norm.weight: expected an entry in the index"), "{text}");
    let text = edit(&|m| m["model.norm.weight"] = "../model-0.safetensors".into());
    assert!(text.contains("without folders"), "{text}");
    let text = edit(&|m| m["model.norm.weight"] = "model-7.safetensors".into());
    assert!(text.contains("model-7.safetensors: cannot open"), "{text}");
}
