//! Real files: SmolLM2's GGUF and Qwen3's tokenizer.json.

use std::fs;
use tare_core::Format;
use tare_formats::convert::{Target, convert, from_folder};
use tare_formats::{Arch, Part, Role, RopeScaling, TokenizerSource, open};
use tare_testkit::{assets, goldens};

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_smollm2_opens_packed() {
    let model = open(&assets().join("smollm2-135m.gguf")).unwrap();
    let c = &model.config;
    assert_eq!((c.arch, c.hidden, c.layers, c.heads, c.kv_heads, c.vocab), (Arch::Llama, 576, 30, 9, 3, 49_152));
    assert_eq!((c.tied_head, &c.rope.scaling, model.bytes_on_disk()), (true, &RopeScaling::None, 98_362_432));
    let q = model.weight(Role::Layer { layer: 29, part: Part::Q }).unwrap();
    assert_eq!(q.format(), Format::Q4_1);
    let TokenizerSource::Gguf(v) = model.tokenizer() else { panic!("no vocabulary") };
    assert_eq!((v.pre.as_str(), v.tokens.len(), v.merges.len()), ("smollm", 49_152, 48_900));
    assert!(model.chat_template().unwrap().contains("<|im_start|>"));
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_smollm2_is_written_out_and_opens_again() {
    let model = open(&assets().join("smollm2-135m.gguf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("bf16.gguf");
    convert(&model, Target::gguf(Format::BF16), &out, &mut |_| {}).unwrap();
    let again = open(&out).unwrap();
    assert_eq!((&again.config, again.tokenizer()), (&model.config, model.tokenizer()));
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_qwen3_vocabulary_becomes_that_of_a_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(assets().join("qwen3-tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let mut config = open(&goldens().join("models/qwen3-tiny")).unwrap().config;
    assert!(from_folder(dir.path(), &config).unwrap_err().to_string().contains("below the 512 rows"));
    (config.vocab, config.eos) = (151_936, vec![151_645, 151_643]);
    let v = from_folder(dir.path(), &config).unwrap();
    assert_eq!((v.pre.as_str(), v.tokens.len(), v.merges.len()), ("qwen2", 151_936, 151_387));
    assert_eq!((v.tokens[151_645].as_str(), v.token_types[151_645]), ("<|im_end|>", 3));
    assert_eq!((v.tokens[151_667].as_str(), v.token_types[151_667]), ("<think>", 4));
    assert_eq!((v.tokens[151_935].as_str(), v.token_types[151_935]), ("[PAD151935]", 5));
    assert_eq!((v.eos, v.eot, v.merges[0].as_str()), (Some(151_645), Some(151_643), "Ġ Ġ"));
}
