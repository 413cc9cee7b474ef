//! Dequantized values against those of the gguf package, ggml and MLX: bit equality.

use serde_json::Value;
use tare_core::digest::sha256_hex;
use tare_core::{Blob, Format, Weight};
use tare_formats::codec::dequantize;
use tare_formats::{ModelFile, Role, open};
use tare_testkit::{Tensors, goldens, json};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn f32_digest(w: &Weight) -> String {
    let bytes: Vec<u8> = dequantize(w).iter().flat_map(|v| v.to_le_bytes()).collect();
    sha256_hex(&bytes)
}

#[test]
fn blocks_of_every_type_are_bit_equal() {
    let golden = Tensors::open(goldens().join("gguf/blocks.safetensors"));
    let formats =
        [Format::Q8_0, Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q4K, Format::Q5K, Format::Q6K];
    for format in formats {
        let name = format.to_string().to_uppercase();
        let (shape, raw) = golden.u8(&format!("{name}.blocks"));
        let (_, want) = golden.f32(&format!("{name}.f32"));
        assert_eq!(shape[1], format.block_bytes(), "{name}");
        let w = Weight::blocks(&name, format, shape[0], format.block_weights(), Blob::from_vec(raw)).unwrap();
        assert_eq!(bits(&dequantize(&w)), bits(&want), "{name}");
    }
}

/// Every matrix named in `tensors` has the digest that stands there, and every matrix of the model stands there.
fn assert_digests(model: &ModelFile, tensors: &Value, name: impl Fn(Role) -> String) {
    let tensors = tensors.as_object().unwrap();
    let matrices: Vec<Role> = Role::all(&model.config).into_iter().filter(|r| !r.is_vector()).collect();
    assert_eq!(matrices.len(), tensors.len(), "{}", model.path.display());
    for role in matrices {
        let name = name(role);
        let want = tensors[&name]["sha256_f32"].as_str().unwrap();
        assert_eq!(f32_digest(&model.weight(role).unwrap()), want, "{} {name}", model.path.display());
    }
}

#[test]
fn every_matrix_of_every_gguf_file_is_bit_equal() {
    let mut files = 0;
    for family in ["qwen3-b32-tiny", "qwen3-k-tiny", "llama-tiny"] {
        let golden = json(goldens().join(format!("gguf/{family}.golden.json")));
        for (file, facts) in golden["files"].as_object().unwrap() {
            let model = open(&goldens().join("gguf").join(file)).unwrap();
            assert_digests(&model, &facts["tensors"], Role::gguf);
            files += 1;
        }
    }
    assert_eq!(files, 14);
}

#[test]
fn every_matrix_of_every_mlx_folder_is_bit_equal() {
    for tail in ["4bit-g32", "4bit-g64", "4bit-g128", "8bit-g64"] {
        let folder = goldens().join(format!("mlx/qwen3-tiny-{tail}"));
        let model = open(&folder).unwrap();
        assert_digests(&model, &json(folder.join("golden.json"))["tensors"], Role::hugging_face);
    }
}
