//! Opening the golden models: every configuration, by every kind of file.

use tare_core::{AffineBits, Format};
use tare_formats::{Arch, FileKind, ModelFile, Part, Role, RopeScaling, RopeStyle, TokenizerSource, open};
use tare_testkit::goldens;

fn golden(path: &str) -> ModelFile {
    open(&goldens().join(path)).unwrap()
}

fn part(layer: usize, part: Part) -> Role {
    Role::Layer { layer, part }
}

#[test]
fn every_model_folder_opens_with_its_numbers() {
    // name, D, layers, H, K, E, F, V, tied head
    let table = [
        ("qwen3-tiny", [128, 3, 4, 2, 64, 384, 512], true),
        ("qwen3-tiny-untied", [64, 2, 5, 1, 128, 192, 128], false),
        ("qwen2-tiny", [128, 2, 2, 1, 64, 96, 144], true),
        ("llama-tiny", [128, 2, 2, 1, 64, 96, 144], true),
        ("qwen3-yarn-tiny", [80, 2, 2, 1, 80, 64, 112], true),
        ("mistral-tiny", [96, 2, 2, 1, 96, 96, 128], false),
    ];
    for (name, sizes, tied) in table {
        let model = golden(&format!("models/{name}"));
        let c = &model.config;
        assert_eq!([c.hidden, c.layers, c.heads, c.kv_heads, c.head_size, c.ffn, c.vocab], sizes, "{name}");
        assert_eq!((c.tied_head, model.kind), (tied, FileKind::HuggingFace), "{name}");
        assert_eq!(c.rope.style, RopeStyle::HalfSplit, "{name}");
        for role in Role::all(c) {
            let w = model.weight(role).unwrap();
            assert_eq!((w.rows(), w.cols(), w.format()), (role.shape(c).0, role.shape(c).1, Format::BF16), "{role}");
        }
        let embed = model.weight(Role::Embed).unwrap();
        assert_eq!(model.weight(Role::Head).unwrap().name() == embed.name(), tied, "{name}");
        assert_eq!(model.tensors().count(), Role::all(c).len(), "{name}");
        assert_eq!(*model.tokenizer(), TokenizerSource::None, "{name}");
    }
}

#[test]
fn families_differ_where_they_should() {
    let (qwen3, qwen2) = (golden("models/qwen3-tiny"), golden("models/qwen2-tiny"));
    assert_eq!((qwen3.config.arch, qwen3.config.qk_norm, qwen3.config.qkv_bias), (Arch::Qwen3, true, false));
    assert_eq!((qwen2.config.arch, qwen2.config.qk_norm, qwen2.config.qkv_bias), (Arch::Qwen2, false, true));
    assert!(qwen3.has(part(0, Part::QNorm)) && !qwen3.has(part(0, Part::QBias)));
    assert!(qwen2.has(part(1, Part::VBias)) && !qwen2.has(part(0, Part::QNorm)));
    assert!(!qwen3.has(part(3, Part::Q)) && qwen3.weight(part(3, Part::Q)).is_err(), "there are three layers");
    // generation_config.json adds 508 to the 510 of config.json.
    assert_eq!((qwen3.config.bos, qwen3.config.eos.as_slice()), (Some(508), [510, 508].as_slice()));
    assert_eq!(golden("models/mistral-tiny").config.rope.theta, 1e6, "out of rope_parameters");
}

#[test]
fn rope_scalings_are_read() {
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: 32 };
    assert_eq!(golden("models/llama-tiny").config.rope.scaling, llama3);
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_positions: 32,
        attention_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(golden("models/qwen3-yarn-tiny").config.rope.scaling, yarn);
}

#[test]
fn mlx_folders_open_packed() {
    for (tail, bits, group) in [
        ("4bit-g32", AffineBits::Four, 32),
        ("4bit-g64", AffineBits::Four, 64),
        ("4bit-g128", AffineBits::Four, 128),
        ("8bit-g64", AffineBits::Eight, 64),
    ] {
        let model = golden(&format!("mlx/qwen3-tiny-{tail}"));
        assert_eq!((model.kind, model.config.quantization), (FileKind::Mlx, Some((bits, group))), "{tail}");
        for role in Role::all(&model.config) {
            let want = if role.is_vector() { Format::BF16 } else { Format::Affine { bits, group } };
            assert_eq!(model.weight(role).unwrap().format(), want, "{tail} {role}");
        }
    }
}

#[test]
fn gguf_files_say_the_same_as_their_folders() {
    let (file, folder) = (golden("gguf/llama-tiny-BF16.gguf"), golden("models/llama-tiny"));
    assert_eq!(file.kind, FileKind::Gguf { version: 3 });
    assert_eq!(file.config.rope.style, RopeStyle::Interleaved);
    let RopeScaling::Factors(factors) = &file.config.rope.scaling else { panic!("no frequency factors") };
    assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 8.0));
    let mut same = file.config.clone();
    same.rope = folder.config.rope.clone();
    same.eos = folder.config.eos.clone();
    assert_eq!(same, folder.config, "all but the positions and the end tokens of generation_config.json");

    let qwen3 = golden("gguf/qwen3-b32-tiny-Q5_1.gguf");
    assert_eq!((qwen3.config.rope.style, qwen3.config.tied_head), (RopeStyle::HalfSplit, true));
    let TokenizerSource::Gguf(vocab) = qwen3.tokenizer() else { panic!("no vocabulary") };
    assert_eq!((vocab.model.as_str(), vocab.pre.as_str(), vocab.tokens.len()), ("gpt2", "qwen2", 160));
    assert_eq!((vocab.merges.len(), vocab.token_types[156..].to_vec()), (4, vec![3; 4]));
    assert_eq!((vocab.add_bos, vocab.pad), (Some(false), Some(159)));
}

#[test]
fn one_file_and_one_folder_open_alike() {
    let folder = golden("models/qwen3-tiny");
    let file = golden("models/qwen3-tiny/model.safetensors");
    assert_eq!(folder.config, file.config);
    assert_eq!(folder.bytes_on_disk(), file.bytes_on_disk());
    assert!(open(&goldens().join("models")).unwrap_err().to_string().contains("config.json"));
    assert!(open(&goldens().join("gguf")).unwrap_err().to_string().contains("folder"));
    assert!(open(&goldens().join("nowhere")).unwrap_err().to_string().contains("cannot open"));
}
