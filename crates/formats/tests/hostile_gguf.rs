//! GGUF files that lie, and GGUF files that are written and read back.

use proptest::prelude::*;
use std::fs;
use tare_core::{Blob, Format};
use tare_formats::gguf::{Array, Header, Kind, TensorPlan, Value, parse, write};
use tare_formats::{FormatError, RopeScaling, config, open};
use tare_testkit::goldens;

/// A head with `version`, the counts given and `rest` behind them.
fn head(version: u32, tensors: u64, values: u64, rest: &[u8]) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), values.to_le_bytes()].concat();
    [b"GGUF", &version.to_le_bytes()[..], &counts, rest].concat()
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), bytes].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

fn fault(bytes: Vec<u8>) -> String {
    parse(&Blob::from_vec(bytes)).unwrap_err().to_string()
}

#[test]
fn heads_that_lie_are_refused() {
    let u64s = |n: u64| n.to_le_bytes();
    for (bytes, want) in [
        (b"GGU".to_vec(), "magic"),
        (b"GGML\x03\0\0\0".to_vec(), "magic: expected GGUF"),
        (head(1, 0, 0, &[]), "version: expected 2 or 3"),
        (head(3u32.swap_bytes(), 0, 0, &[]), "big-endian"),
        (head(3, u64::MAX, 0, &[]), "tensor count"),
        (head(3, 0, u64::MAX, &[]), "metadata count"),
        (head(3, 0, 1 << 40, &[0; 64]), "metadata count"),
        (head(3, 0, 1, &value("k", 13, &[0; 8])), "k: expected a value type"),
        (head(3, 0, 1, &value("k", 7, &[2])), "k: expected 0 or 1"),
        (head(3, 0, 1, &value("k", 8, &u64s(u64::MAX))), "k: expected"),
        (head(3, 0, 1, &value("k", 8, &[&u64s(2)[..], &[0xC3, 0x28]].concat())), "k: expected UTF-8"),
        (head(3, 0, 1, &value("k", 4, &[0; 3])), "k: expected 4 more bytes, found 3"),
        (head(3, 0, 2, &[value("k", 4, &[0; 4]), value("k", 4, &[0; 4])].concat()), "k: expected distinct"),
        (head(3, 0, 1, &[&u64s(1 << 50)[..], &[0; 32]].concat()), "metadata key 0"),
    ] {
        let got = fault(bytes);
        assert!(got.contains(want), "wanted {want}: {got}");
    }
}

#[test]
fn arrays_that_lie_are_refused() {
    let array = |kind: u32, count: u64, bytes: &[u8]| {
        let body = [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat();
        head(3, 0, 1, &value("k", 9, &body))
    };
    assert!(parse(&Blob::from_vec(array(4, 2, &[0; 8]))).is_ok());
    for (bytes, want) in [
        (array(9, 1, &[0; 12]), "an array of arrays"),
        (array(4, u64::MAX, &[0; 8]), "k: expected at most 2"),
        (array(8, u64::MAX / 8, &[0; 8]), "k: expected at most 1"),
        (array(8, 1, &u64::MAX.to_le_bytes()), "k: expected"),
        (array(99, 1, &[0; 8]), "k: expected a value type"),
    ] {
        let got = fault(bytes);
        assert!(got.contains(want), "wanted {want}: {got}");
    }
}

#[test]
fn tensors_that_lie_are_refused_by_name() {
    let one = |t: Vec<u8>, data: usize| {
        let mut out = head(3, 1, 0, &t);
        out.resize(out.len().next_multiple_of(32) + data, 0);
        out
    };
    let ok = parse(&Blob::from_vec(one(tensor("w", &[64, 2], 2, 0), 72))).unwrap();
    assert_eq!((ok.tensors[0].shape.as_slice(), ok.tensors[0].format), ([2, 64].as_slice(), Format::Q4_0));
    for (bytes, want) in [
        (one(tensor("w", &[64, 2], 2, 0), 71), "w: expected data within"),
        (one(tensor("w", &[64, 2], 2, 32), 72), "w: expected data within"),
        (one(tensor("w", &[64, 2], 2, u64::MAX), 72), "w: expected data within"),
        (one(tensor("w", &[64, 2], 2, 1), 80), "multiples of 32"),
        (one(tensor("w", &[33, 2], 2, 0), 72), "columns in multiples of 32"),
        (one(tensor("w", &[1 << 62, 1 << 62], 0, 0), 72), "fits in memory"),
        (one(tensor("w", &[0, 2], 0, 0), 72), "dimensions above 0"),
        (one(tensor("w", &[], 0, 0), 72), "1 to 4 dimensions"),
        (one(tensor("w", &[1; 5], 0, 0), 72), "1 to 4 dimensions"),
        (one(tensor("w", &[32], 11, 0), 72), "found Q3_K (type 11)"),
        (one(tensor("w", &[32], 77, 0), 72), "the unknown type 77"),
        (one(tensor(&"n".repeat(65), &[32], 0, 0), 72), "tensor name: expected at most 64"),
    ] {
        let got = fault(bytes);
        assert!(got.contains(want), "wanted {want}: {got}");
    }
}

#[test]
fn overlaps_disorder_and_duplicates_are_refused() {
    let two = |a: Vec<u8>, b: Vec<u8>| {
        let mut out = head(3, 2, 0, &[a, b].concat());
        out.resize(out.len().next_multiple_of(32) + 256, 0);
        fault(out)
    };
    let t = |name, offset| tensor(name, &[16], 0, offset);
    assert!(two(t("a", 0), t("b", 32)).contains("b: expected an offset of at least 64"));
    assert!(two(t("a", 64), t("b", 0)).contains("b: expected an offset of at least 128"));
    assert!(two(t("a", 0), t("a", 64)).contains("a: expected distinct tensor names"));
}

#[test]
fn alignments_must_be_powers_of_two() {
    for (n, ok) in [(0u32, false), (1, true), (3, false), (64, true), (1 << 30, false)] {
        let bytes = head(3, 0, 1, &value("general.alignment", 4, &n.to_le_bytes()));
        assert_eq!(parse(&Blob::from_vec(bytes)).is_ok(), ok, "{n}");
    }
}

/// The golden file with one metadata value replaced, added or (None) removed.
fn with(file: &str, key: &str, new: Option<Value>) -> Result<config::ModelConfig, FormatError> {
    let bytes = Blob::from_vec(fs::read(goldens().join("gguf").join(file)).unwrap());
    let mut header: Header = parse(&bytes).unwrap();
    header.metadata.retain(|(k, _)| k != key);
    header.metadata.extend(new.map(|v| (key.to_owned(), v)));
    config::gguf::parse(&header, &bytes)
}

#[test]
fn metadata_that_changes_the_arithmetic_is_refused_by_key() {
    let llama = "llama-tiny-BF16.gguf";
    for (key, new) in [
        ("general.architecture", Value::text("gemma2")),
        ("llama.attention.sliding_window", Value::u32(4096)),
        ("llama.expert_count", Value::u32(8)),
        ("llama.logit_scale", Value::f32(0.5)),
        ("llama.rope.scaling.type", Value::text("longrope")),
        ("llama.rope.dimension_count", Value::u32(32)),
        ("llama.rope.scaling.attn_factor", Value::f32(1.5)),
        ("split.count", Value::u32(2)),
    ] {
        match with(llama, key, Some(new)) {
            Err(FormatError::Unsupported(f)) => assert_eq!(f.at, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    for (key, new) in [
        ("llama.block_count", None),
        ("llama.embedding_length", Some(Value::text("128"))),
        ("llama.vocab_size", Some(Value::u32(9))),
        ("llama.attention.layer_norm_rms_epsilon", None),
        ("tokenizer.ggml.eos_token_id", Some(Value::u32(144))),
    ] {
        let text = with(llama, key, new).unwrap_err().to_string();
        assert!(text.starts_with(key), "{text}");
    }
    assert!(with(llama, "llama.attention.sliding_window", Some(Value::u32(0))).is_ok());
    assert!(with(llama, "tokenizer.ggml.something", Some(Value::u32(1))).is_ok());
}

/// `file` with every rope key of `keys` (below the architecture's name) laid over its own, which are removed.
fn with_rope(file: &str, arch: &str, keys: &[(&str, Value)]) -> Result<RopeScaling, FormatError> {
    let bytes = Blob::from_vec(fs::read(goldens().join("gguf").join(file)).unwrap());
    let mut header: Header = parse(&bytes).unwrap();
    header.metadata.retain(|(k, _)| !k.contains(".rope.scal"));
    header.metadata.extend(keys.iter().map(|(k, v)| (format!("{arch}.rope.{k}"), v.clone())));
    config::gguf::parse(&header, &bytes).map(|c| c.rope.scaling)
}

#[test]
fn a_rope_key_is_applied_or_refused_and_never_passed_over() {
    let read = |keys: &[(&str, Value)]| with_rope("qwen3-b32-tiny-F32.gguf", "qwen3", keys);
    let (factor, old) = (|v| ("scaling.factor", Value::f32(v)), |v| ("scale_linear", Value::f32(v)));
    let kind = |name: &str| ("scaling.type", Value::text(name));
    for (keys, want) in [
        (vec![], None),
        (vec![factor(1.0)], None),
        (vec![old(1.0)], None),
        (vec![kind("none")], None),
        (vec![kind("none"), factor(1.0)], None),
        (vec![factor(4.0)], Some(4.0)),
        (vec![old(4.0)], Some(4.0)),
        (vec![factor(4.0), old(4.0)], Some(4.0)),
        (vec![kind("linear"), factor(4.0)], Some(4.0)),
        (vec![kind("linear"), old(2.0)], Some(2.0)),
    ] {
        let want = want.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor });
        assert_eq!(read(&keys).unwrap(), want, "{keys:?}");
    }
    let original = || ("scaling.original_context_length", Value::u32(32));
    for (keys, at) in [
        (vec![kind("none"), factor(4.0)], "scaling.factor"),
        (vec![kind("none"), old(4.0)], "scale_linear"),
        (vec![factor(4.0), old(2.0)], "scale_linear"),
        (vec![kind("linear"), factor(4.0), old(2.0)], "scale_linear"),
        (vec![factor(4.0), original()], "scaling.original_context_length"),
        (vec![original()], "scaling.original_context_length"),
        (vec![kind("linear"), factor(4.0), ("scaling.yarn_beta_fast", Value::f32(16.0))], "scaling.yarn_beta_fast"),
        (vec![("scaling.yarn_beta_slow", Value::f32(2.0))], "scaling.yarn_beta_slow"),
        (vec![kind("yarn"), factor(4.0), old(2.0)], "scale_linear"),
    ] {
        let Err(FormatError::Unsupported(f)) = read(&keys) else { panic!("{keys:?}") };
        assert_eq!(f.at, format!("qwen3.rope.{at}"), "{f}");
        assert!(!f.remedy.is_empty(), "{f}");
    }
    let yarn = read(&[kind("yarn"), factor(4.0), original()]).unwrap();
    assert!(matches!(yarn, RopeScaling::Yarn { original_positions: 32, .. }), "{yarn:?}");
}

#[test]
fn frequency_factors_belong_to_llama() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        fs::write(&path, with_factors(arch)).unwrap();
        match (arch, open(&path)) {
            ("llama", Ok(model)) => assert_eq!(model.config.rope.scaling, RopeScaling::Factors(vec![2.0; 4])),
            ("qwen2" | "qwen3", Err(FormatError::Unsupported(f))) => {
                assert!(f.at.ends_with("rope_freqs.weight") && f.expected.contains(arch), "{f}");
            }
            (_, other) => panic!("{arch}: {other:?}"),
        }
    }
}

/// A whole model of `arch`, two heads of eight, that carries frequency factors.
fn with_factors(arch: &str) -> Vec<u8> {
    let sizes = [
        ("embedding_length", 16),
        ("block_count", 1),
        ("attention.head_count", 2),
        ("feed_forward_length", 16),
        ("context_length", 64),
    ];
    let mut metadata = vec![("general.architecture".to_owned(), Value::text(arch))];
    metadata.extend(sizes.map(|(name, n)| (format!("{arch}.{name}"), Value::u32(n))));
    metadata.push((format!("{arch}.attention.layer_norm_rms_epsilon"), Value::f32(1e-6)));
    let vectors: &[(&str, usize)] = match arch {
        "qwen2" => &[("attn_q.bias", 16), ("attn_k.bias", 16), ("attn_v.bias", 16)],
        "qwen3" => &[("attn_q_norm.weight", 8), ("attn_k_norm.weight", 8)],
        _ => &[],
    };
    let block = |name: &str| format!("blk.0.{name}");
    let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("token_embd.weight".into(), vec![16, 16]), ("output_norm.weight".into(), vec![16])];
    shapes.extend(matrices.map(|m| (block(&format!("{m}.weight")), vec![16, 16])));
    shapes.extend(["attn_norm.weight", "ffn_norm.weight"].map(|n| (block(n), vec![16])));
    shapes.extend(vectors.iter().map(|(n, len)| (block(n), vec![*len])));
    shapes.push(("rope_freqs.weight".into(), vec![4]));
    let tensors: Vec<TensorPlan> =
        shapes.into_iter().map(|(name, shape)| TensorPlan { name, format: Format::F32, shape }).collect();
    let mut file = write(Vec::new(), &metadata, &tensors).unwrap();
    for t in &tensors {
        file.write(&2f32.to_le_bytes().repeat(t.shape.iter().product())).unwrap();
    }
    file.finish().unwrap()
}

#[test]
fn a_truncated_file_never_opens() {
    let bytes = fs::read(goldens().join("gguf/qwen3-b32-tiny-Q4_0.gguf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let cuts = (0..bytes.len()).step_by(997).chain(0..64).chain([bytes.len() - 32]);
    for n in cuts {
        fs::write(&path, &bytes[..n]).unwrap();
        assert!(open(&path).is_err(), "{n} bytes of {}", bytes.len());
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u32>().prop_map(Value::u32),
        any::<u64>().prop_map(|v| Value::Unsigned(Kind::U64, v)),
        any::<i8>().prop_map(|v| Value::Signed(Kind::I8, v.into())),
        (-1e30f32..1e30).prop_map(Value::f32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        prop::collection::vec(".{0,8}", 0..5).prop_map(|v| Value::Array(Array::strings(&v))),
        prop::collection::vec(any::<i32>(), 0..5).prop_map(|v| Value::Array(Array::i32s(&v))),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        values in prop::collection::btree_map("[a-z.]{1,20}", any_value(), 0..8),
        shapes in prop::collection::vec((0usize..11, 1usize..5, 1usize..4), 0..5),
    ) {
        let values: Vec<(String, Value)> = values.into_iter().filter(|(k, _)| k != "general.alignment").collect();
        let tensors: Vec<TensorPlan> = shapes.into_iter().enumerate().map(|(i, (format, rows, blocks))| {
            let format = Format::ALL[format];
            TensorPlan { name: format!("#{i}"), format, shape: vec![rows, blocks * format.block_weights()] }
        }).collect();
        let mut w = write(Vec::new(), &values, &tensors).unwrap();
        for (i, t) in tensors.iter().enumerate() {
            w.write(&vec![i as u8 + 1; t.bytes().unwrap() as usize]).unwrap();
        }
        let file = Blob::from_vec(w.finish().unwrap());
        let header = parse(&file).unwrap();
        prop_assert_eq!(format!("{:?}", header.metadata), format!("{:?}", values));
        for (i, (got, want)) in header.tensors.iter().zip(&tensors).enumerate() {
            prop_assert_eq!((&got.name, got.format, &got.shape), (&want.name, want.format, &want.shape));
            prop_assert!(file[got.range.clone()].iter().all(|&b| b == i as u8 + 1));
        }
        prop_assert_eq!(header.tensors.len(), tensors.len());
    }

    /// Any flipped byte of a real head gives a file that opens or an error, never a panic.
    #[test]
    fn flipped_bytes_do_no_harm(at in 0usize..6000, flip in 1u8..) {
        let mut bytes = fs::read(goldens().join("gguf/qwen3-k-tiny-Q4_K.gguf")).unwrap();
        bytes[at] ^= flip;
        tare_formats::fuzz::gguf(&bytes);
    }
}
