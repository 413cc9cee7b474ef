//! Conversions: values against the goldens of MLX and llama-quantize, files against their own reader.

use half::bf16;
use std::fs;
use std::path::Path;
use tare_core::digest::sha256_hex;
use tare_core::{AffineBits, DType, Format};
use tare_formats::codec::dequantize;
use tare_formats::convert::{Target, convert};
use tare_formats::gguf::{GgufVocab, PLACEHOLDER, Value, parse};
use tare_formats::{Arch, ModelFile, Part, Role, RopeScaling, TokenizerSource, open, safetensors};
use tare_testkit::goldens;

fn golden(path: &str) -> ModelFile {
    open(&goldens().join(path)).unwrap()
}

fn run(src: &ModelFile, target: Target, out: &Path) -> ModelFile {
    let mut last = None;
    let done = convert(src, target, out, &mut |p| last = Some((p.done, p.tensors, p.bytes, p.total_bytes))).unwrap();
    let want = (done.tensors, done.tensors, done.bytes, done.bytes);
    assert_eq!(last.unwrap(), want, "the last report says that all is done");
    open(out).unwrap()
}

#[test]
fn an_mlx_folder_is_that_of_mlx_lm() {
    for (tail, bits, group) in [
        ("4bit-g32", AffineBits::Four, 32),
        ("4bit-g64", AffineBits::Four, 64),
        ("4bit-g128", AffineBits::Four, 128),
        ("8bit-g64", AffineBits::Eight, 64),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let model = run(&golden("models/qwen3-tiny"), Target::Mlx { bits, group }, &out);
        let theirs = goldens().join(format!("mlx/qwen3-tiny-{tail}"));
        let [a, b] = [&out, &theirs].map(|d| fs::read(d.join("model.safetensors")).unwrap());
        let [mine, want] = [&a, &b].map(|f| safetensors::parse(f).unwrap());
        assert_eq!((mine.entries.len(), mine.metadata["format"].as_str()), (want.entries.len(), "mlx"));
        for e in &want.entries {
            let m = mine.entries.iter().find(|m| m.name == e.name).unwrap();
            assert_eq!((m.dtype, &m.shape), (e.dtype, &e.shape), "{}", e.name);
            assert!(a[m.range.clone()] == b[e.range.clone()], "{tail} {}", e.name);
        }
        let index = |d: &Path| tare_testkit::json(d.join("model.safetensors.index.json"));
        assert_eq!(index(&out), index(&theirs));
        assert_eq!(tare_testkit::json(out.join("config.json")), tare_testkit::json(theirs.join("config.json")));
        assert_eq!(model.config.eos, [510, 508], "generation_config.json came along");
    }
}

#[test]
fn a_gguf_file_made_of_one_has_the_bytes_of_llama_quantize() {
    let dir = tempfile::tempdir().unwrap();
    for (from, to, format) in [
        ("qwen3-b32-tiny-F32", "qwen3-b32-tiny-Q4_0", Format::Q4_0),
        ("qwen3-b32-tiny-F32", "qwen3-b32-tiny-Q8_0", Format::Q8_0),
        ("qwen3-b32-tiny-F32", "qwen3-b32-tiny-BF16", Format::BF16),
        ("qwen3-b32-tiny-F32", "qwen3-b32-tiny-F16", Format::F16),
    ] {
        let out = dir.path().join(format!("{to}.gguf"));
        run(&golden(&format!("gguf/{from}.gguf")), Target::gguf(format), &out);
        let read = |p: &Path| tare_core::Blob::from_vec(fs::read(p).unwrap());
        let [mine, want] = [read(&out), read(&goldens().join(format!("gguf/{to}.gguf")))];
        let [m, w] = [&mine, &want].map(|f| parse(f).unwrap());
        for t in &w.tensors {
            let got = m.tensors.iter().find(|g| g.name == t.name).unwrap();
            assert!(mine[got.range.clone()] == want[t.range.clone()], "{to} {}", t.name);
        }
        for (key, value) in &w.metadata {
            let got = m.get(key).unwrap_or_else(|| panic!("{to} lacks {key}"));
            assert_eq!(format!("{got:?}"), format!("{value:?}"), "{to} {key}");
        }
    }
}

/// The bytes of every tensor of a GGUF file, by name.
fn tensors(path: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let bytes = tare_core::Blob::from_vec(fs::read(path).unwrap());
    parse(&bytes).unwrap().tensors.iter().map(|t| (t.name.clone(), bytes[t.range.clone()].to_vec())).collect()
}

#[test]
fn the_head_may_have_a_format_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::Gguf { matrices: Format::Q4_0, head: Format::Q8_0 };
    let out = dir.path().join("tied.gguf");
    let tied = run(&golden("gguf/qwen3-b32-tiny-F32.gguf"), target, &out);
    let of = |name: &str| tensors(&goldens().join(format!("gguf/qwen3-b32-tiny-{name}.gguf")));
    let (mine, fours, eights) = (tensors(&out), of("Q4_0"), of("Q8_0"));
    assert_eq!(mine.len(), fours.len());
    for (name, bytes) in mine {
        let from = if name == "token_embd.weight" { &eights } else { &fours };
        assert!(bytes == from[&name], "{name}");
    }
    let file_type = tied.gguf_header().unwrap().get("general.file_type").map(|v| format!("{v:?}"));
    assert_eq!(file_type, Some(format!("{:?}", Value::u32(2))), "the file is called after its layers");

    let untied = run(&golden("models/qwen3-tiny-untied"), target, &dir.path().join("untied.gguf"));
    let format = |role| untied.weight(role).unwrap().format();
    let q = Role::Layer { layer: 1, part: Part::Q };
    assert_eq!([Role::Embed, q, Role::Head].map(format), [Format::Q4_0, Format::Q4_0, Format::Q8_0]);

    let head = Target::Gguf { matrices: Format::Q8_0, head: Format::Q5_0 };
    let why = convert(&golden("models/qwen3-tiny-untied"), head, &dir.path().join("no.gguf"), &mut |_| {}).unwrap_err();
    assert!(why.to_string().contains("head: format: expected f32"), "{why}");
}

#[test]
fn a_llama_folder_becomes_the_gguf_file_of_the_reference_converter() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("llama.gguf");
    let model = run(&golden("models/llama-tiny"), Target::gguf(Format::BF16), &out);
    let want = golden("gguf/llama-tiny-BF16.gguf");
    // The golden file holds the F32 norms, the folder BF16 ones; the matrices are the same.
    for role in Role::all(&want.config).into_iter().filter(|r| !r.is_vector()) {
        let [a, b] = [&model, &want].map(|m| dequantize(&m.weight(role).unwrap()));
        assert!(a == b, "{role}");
    }
    let [RopeScaling::Factors(a), RopeScaling::Factors(b)] = [&model, &want].map(|m| m.config.rope.scaling.clone())
    else {
        panic!("no frequency factors")
    };
    assert_eq!(a, b);
    assert_eq!(model.config.rope.style, want.config.rope.style);
    assert_eq!((model.config.arch, model.config.max_positions), (Arch::Llama, want.config.max_positions));
    // The end tokens of generation_config.json survive as eos and eot.
    assert_eq!(model.config.eos, golden("models/llama-tiny").config.eos);
}

#[test]
fn every_folder_survives_as_gguf() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["qwen3-tiny", "qwen3-tiny-untied", "qwen2-tiny", "qwen3-yarn-tiny", "mistral-tiny"] {
        let src = golden(&format!("models/{name}"));
        let out = run(&src, Target::gguf(Format::F32), &dir.path().join(format!("{name}.gguf")));
        let mut config = out.config.clone();
        if src.config.arch == Arch::Mistral {
            assert_eq!(config.arch, Arch::Llama);
            config.arch = Arch::Mistral;
            config.rope.style = src.config.rope.style;
        }
        assert_eq!(config, src.config, "{name}");
        for role in Role::all(&src.config) {
            let turned = matches!(role, Role::Layer { part: Part::Q | Part::K, .. });
            let [a, b] = [&out, &src].map(|m| dequantize(&m.weight(role).unwrap()));
            assert!((a == b) != (turned && src.config.arch == Arch::Mistral), "{name} {role}");
        }
        // Loaders that insist on a vocabulary find one; tare knows that it stands for nothing.
        let vocab = GgufVocab::read(out.gguf_header().unwrap()).unwrap().unwrap();
        assert_eq!(vocab.tokens.len(), src.config.vocab);
        assert_eq!(vocab.tokens.iter().collect::<std::collections::HashSet<_>>().len(), src.config.vocab);
        assert_eq!(out.tokenizer(), &TokenizerSource::None, "{name}");
    }
}

#[test]
fn a_vocabulary_that_stands_for_nothing_is_no_tokenizer_however_often_the_file_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let says_why = |m: &ModelFile| matches!(m.gguf_header().unwrap().get(PLACEHOLDER), Some(Value::Bool(true)));
    let first = run(&golden("models/qwen3-tiny"), Target::gguf(Format::F32), &dir.path().join("1.gguf"));
    let second = run(&first, Target::gguf(Format::Q8_0), &dir.path().join("2.gguf"));
    for model in [&first, &second] {
        assert_eq!((model.tokenizer(), says_why(model)), (&TokenizerSource::None, true));
        assert_eq!(model.config.eos, golden("models/qwen3-tiny").config.eos, "the ids are the model's own");
    }
    // A vocabulary that is one carries no such mark.
    let real = run(&golden("gguf/qwen3-b32-tiny-F32.gguf"), Target::gguf(Format::F16), &dir.path().join("3.gguf"));
    assert!(
        matches!(real.tokenizer(), TokenizerSource::Gguf(_)) && real.gguf_header().unwrap().get(PLACEHOLDER).is_none()
    );
}

#[test]
fn a_vocabulary_goes_into_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    fs::create_dir(&src).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(goldens().join("models/qwen3-tiny").join(file), src.join(file)).unwrap();
    }
    let tokenizer = serde_json::json!({
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<think>": 3}, "merges": [["a", "b"]]},
        "added_tokens": [
            {"id": 3, "content": "<think>", "special": false},
            {"id": 510, "content": "<|im_end|>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}
    });
    fs::write(src.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let settings = r#"{"eos_token": {"content": "<|im_end|>"}, "add_bos_token": true, "chat_template": "{{ x }}"}"#;
    fs::write(src.join("tokenizer_config.json"), settings).unwrap();

    let model = open(&src).unwrap();
    assert_eq!((model.tokenizer(), model.chat_template()), (&TokenizerSource::Folder(src), Some("{{ x }}")));
    let out = run(&model, Target::gguf(Format::Q8_0), &dir.path().join("m.gguf"));
    let TokenizerSource::Gguf(v) = out.tokenizer() else { panic!("no vocabulary") };
    assert_eq!((v.pre.as_str(), v.merges.as_slice()), ("gpt-2", ["a b".to_owned()].as_slice()));
    assert_eq!((&v.tokens[2], &v.tokens[4], &v.tokens[510]), (&"ab".into(), &"[PAD4]".into(), &"<|im_end|>".into()));
    assert_eq!([v.token_types[2], v.token_types[3], v.token_types[4], v.token_types[510]], [1, 4, 5, 3]);
    assert_eq!((v.eos, v.eot, v.bos, v.add_bos), (Some(510), Some(508), Some(508), Some(true)));
    assert_eq!(out.chat_template(), Some("{{ x }}"));
}

#[test]
fn nothing_is_replaced_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let names = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let out = dir.path().join("m.gguf");
    fs::write(&out, "mine").unwrap();
    let go = |src: &str, target, out: &Path| convert(&golden(src), target, out, &mut |_| {}).unwrap_err().to_string();
    assert!(go("models/qwen3-tiny", Target::gguf(Format::Q8_0), &out).contains("something that exists"));
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");

    let new = dir.path().join("new.gguf");
    let text = go("gguf/qwen3-b32-tiny-Q4_1.gguf", Target::gguf(Format::Q8_0), &new);
    assert!(text.contains("q4_1") && text.contains("unquantised"), "{text}");
    assert!(go("models/qwen3-tiny", Target::gguf(Format::Q4K), &new).contains("q4_k"));
    let affine = Target::Mlx { bits: AffineBits::Four, group: 32 };
    assert!(go("gguf/qwen3-b32-tiny-F32.gguf", affine, &new).contains("Hugging Face folder"));
    for format in [Format::Q8_0, Format::Q4_0] {
        let text = go("models/qwen3-yarn-tiny", Target::gguf(format), &new);
        assert!(text.contains("multiples of 32") && text.contains("; choose bf16, f16 or f32"), "{text}");
    }
    assert_eq!(names(), ["m.gguf"]);
    assert!(go("models/qwen3-tiny", affine, &dir.path().join("no/such")).contains("cannot find"));
}

/// A folder of a golden model in which one value of one matrix is `odd`.
fn spoiled(folder: &Path, odd: f32) -> ModelFile {
    fs::create_dir(folder).unwrap();
    let source = goldens().join("models/qwen3-tiny");
    for file in ["config.json", "generation_config.json"] {
        fs::copy(source.join(file), folder.join(file)).unwrap();
    }
    let mut bytes = fs::read(source.join("model.safetensors")).unwrap();
    let entries = safetensors::parse(&bytes).unwrap().entries;
    let down = entries.iter().find(|e| e.name.ends_with("layers.1.mlp.down_proj.weight")).unwrap();
    assert_eq!(down.dtype, DType::BF16);
    bytes[down.range.start..][..2].copy_from_slice(&bf16::from_f32(odd).to_le_bytes());
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
    open(folder).unwrap()
}

#[test]
fn a_value_that_cannot_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let affine = Target::Mlx { bits: AffineBits::Four, group: 32 };
    let packed = [Target::gguf(Format::Q4_0), Target::gguf(Format::Q8_0), Target::gguf(Format::F16)];
    let (large, nan) = (spoiled(&dir.path().join("large"), 2f32.powi(100)), spoiled(&dir.path().join("nan"), f32::NAN));
    let large = packed.iter().map(|target| (&large, *target, "1.2676506e30"));
    let all = large.chain(packed.iter().chain([&affine]).map(|target| (&nan, *target, "NaN")));
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for (src, target, found) in all {
        let e = convert(src, target, &out.join("m"), &mut |_| {}).unwrap_err().to_string();
        let said = ["layers.1.mlp.down_proj.weight", found, "at [0, 0], in block 0"];
        assert!(said.iter().all(|s| e.contains(s)), "{target:?}: {e}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{target:?}");
    }
}

/// The digest of a file, or of the files of a folder one after the other.
fn digest(path: &Path) -> String {
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        files = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
    }
    sha256_hex(&files.iter().flat_map(|f| fs::read(f).unwrap()).collect::<Vec<u8>>())[..12].to_string()
}

/// Files that are kept from one build to the next are kept under the version of their target: when this fails because files
/// are meant to be others now, raise `LAYOUT` where only what is around the values has changed, and write down both again.
#[test]
fn files_that_are_others_have_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let affine = Target::Mlx { bits: AffineBits::Four, group: 64 };
    let with_head = Target::Gguf { matrices: Format::Q4_0, head: Format::Q6K };
    let sources = [
        ("models/qwen3-tiny", affine),
        ("models/llama-tiny", Target::gguf(Format::Q8_0)),
        ("gguf/qwen3-b32-tiny-F32.gguf", Target::gguf(Format::Q4_0)),
        ("gguf/qwen3-k-tiny-Q6_K.gguf", with_head),
    ];
    let known = [
        ["1448fd407c5f", "a3be55fd0667"],
        ["61701cdeb846", "d373cb150cae"],
        ["da70b8865da4", "2ec5c3edcf79"],
        ["9f1fa3426b27", "b71f015a9b63"],
    ];
    let found = sources.map(|(source, target)| {
        let out = dir.path().join(format!("{}.gguf", source.replace('/', "-")));
        // What is packed is not packed again: its values are.
        let mut model = golden(source);
        if source.contains("Q6_K") {
            model = run(&model, Target::gguf(Format::F32), &dir.path().join("values.gguf"));
        }
        run(&model, target, &out);
        [target.version().unwrap(), digest(&out)]
    });
    assert_eq!(found, known);
    assert_ne!(with_head.version(), Target::gguf(Format::Q4_0).version());
    assert!(Target::gguf(Format::Q4K).version().is_err());
}
