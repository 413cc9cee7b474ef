//! config.json with one field changed: what is refused, and that the message names field, expectation and finding.

use serde_json::{Value, json};
use tare_formats::config::hf;
use tare_formats::{FormatError, RopeScaling};
use tare_testkit::goldens;

/// Parses the configuration of golden model `name` with `changes` laid over it; null removes a field.
fn with(name: &str, changes: Value) -> Result<hf::HfConfig, FormatError> {
    let mut config = tare_testkit::json(goldens().join(format!("models/{name}/config.json")));
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    hf::parse(config.to_string().as_bytes())
}

fn refused(name: &str, changes: Value) -> String {
    match with(name, changes.clone()) {
        Err(FormatError::Unsupported(f)) => f.to_string(),
        other => panic!("{changes} on {name}: {other:?}"),
    }
}

fn malformed(name: &str, changes: Value) -> String {
    match with(name, changes.clone()) {
        Err(FormatError::Malformed(f)) => f.to_string(),
        other => panic!("{changes} on {name}: {other:?}"),
    }
}

#[test]
fn fields_that_change_the_arithmetic_are_refused_by_name() {
    for (name, field, value) in [
        ("qwen3-tiny", "hidden_act", json!("gelu")),
        ("qwen3-tiny", "model_type", json!("gemma3")),
        ("qwen3-tiny", "architectures", json!(["Qwen3ForSequenceClassification"])),
        ("llama-tiny", "mlp_bias", json!(true)),
        ("llama-tiny", "partial_rotary_factor", json!(0.5)),
        ("llama-tiny", "sliding_window", json!(64)),
        ("mistral-tiny", "sliding_window", json!(1023)),
        ("llama-tiny", "num_local_experts", json!(8)),
        ("llama-tiny", "attn_logit_softcapping", json!(50.0)),
        ("llama-tiny", "final_logit_softcapping", json!(30.0)),
        ("llama-tiny", "residual_multiplier", json!(0.22)),
        ("llama-tiny", "logits_scaling", json!(8.0)),
        ("llama-tiny", "auto_map", json!({"AutoModel": "x.Y"})),
        ("qwen3-tiny", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("qwen2-tiny", "attention_bias", json!(false)),
        ("qwen2-tiny", "qkv_bias", json!(false)),
    ] {
        assert!(refused(name, json!({field: value})).starts_with(field), "{field}");
    }
}

/// Whether the configuration of `name` with these windows and positions is read; null stays null, `None` is no field.
fn windowed(name: &str, window: Option<Value>, used: Option<bool>, positions: u64) -> Result<(), String> {
    let mut config = tare_testkit::json(goldens().join(format!("models/{name}/config.json")));
    let fields = config.as_object_mut().unwrap();
    fields.insert("max_position_embeddings".into(), json!(positions));
    for (field, value) in [("sliding_window", window), ("use_sliding_window", used.map(Value::Bool))] {
        fields.remove(field);
        fields.extend(value.map(|v| (field.to_owned(), v)));
    }
    match hf::parse(config.to_string().as_bytes()) {
        Ok(_) => Ok(()),
        Err(FormatError::Unsupported(f)) => Err(f.to_string()),
        Err(other) => panic!("{config}: {other:?}"),
    }
}

#[test]
fn a_window_that_some_position_would_feel_is_refused_even_when_no_field_asks_for_it() {
    for (name, window, used, positions) in [
        // An unwritten window is 4096 in Mistral's class, and in Qwen's when the window is switched on.
        ("mistral-tiny", None, None, 4097),
        ("mistral-tiny", None, Some(true), 32_768),
        ("mistral-tiny", None, Some(false), 32_768),
        ("qwen2-tiny", None, Some(true), 32_768),
        ("qwen3-tiny", None, Some(true), 32_768),
        ("mistral-tiny", Some(json!(4096)), None, 4097),
        ("qwen2-tiny", Some(json!(1024)), Some(true), 1025),
        ("llama-tiny", Some(json!(1024)), None, 2048),
    ] {
        let case = format!("{name} {window:?} {used:?} {positions}");
        let text = windowed(name, window.clone(), used, positions).expect_err(&case);
        assert!(text.starts_with("sliding_window: expected null"), "{case}: {text}");
        let unwritten = text.contains("found no such field") && text.contains("\"sliding_window\": null");
        assert_eq!(unwritten, window.is_none(), "{case}: {text}");
    }
    for (name, window, used, positions) in [
        ("mistral-tiny", Some(Value::Null), None, 32_768),
        ("qwen2-tiny", Some(Value::Null), Some(true), 32_768),
        ("llama-tiny", Some(json!(4096)), Some(false), 32_768),
        ("mistral-tiny", None, None, 4096),
        ("mistral-tiny", Some(json!(4096)), None, 4096),
        ("qwen2-tiny", None, None, 32_768),
        ("llama-tiny", None, None, 32_768),
    ] {
        assert_eq!(windowed(name, window.clone(), used, positions), Ok(()), "{name} {window:?} {used:?} {positions}");
    }
}

#[test]
fn fields_that_change_nothing_pass() {
    for changes in [
        json!({"torch_dtype": "float16", "transformers_version": "4.51.0", "unsloth_fixed": true}),
        json!({"sliding_window": 4096, "use_sliding_window": false}),
        json!({"layer_types": ["full_attention", "full_attention", "full_attention"]}),
        json!({"some_attention_switch": false, "another_norm": null, "attention_dropout": 0.1}),
    ] {
        assert!(with("qwen3-tiny", changes.clone()).is_ok(), "{changes}");
    }
}

#[test]
fn sizes_must_be_sizes_that_fit_together() {
    for (changes, place) in [
        (json!({"hidden_size": null}), "hidden_size: expected a positive integer, found null"),
        (json!({"hidden_size": "128"}), "hidden_size: expected an integer"),
        (json!({"hidden_size": -1}), "hidden_size"),
        (json!({"hidden_size": 1u64 << 40}), "hidden_size"),
        (json!({"num_hidden_layers": 0}), "layers: expected 1 to 4096, found 0"),
        (json!({"num_hidden_layers": 4_000_000_000u64}), "layers"),
        (json!({"num_key_value_heads": 3}), "key and value heads: expected a divisor of the 4 heads"),
        (json!({"head_dim": 63}), "head size: expected an even number"),
        (json!({"head_dim": null}), "head_dim"),
        (json!({"rms_norm_eps": "tiny"}), "rms_norm_eps"),
        (json!({"rope_theta": 0}), "rope_theta: expected a number above 0"),
        (json!({"eos_token_id": [1, -2]}), "eos_token_id"),
        (json!({"tie_word_embeddings": "yes"}), "tie_word_embeddings: expected true or false"),
    ] {
        let text = malformed("qwen3-tiny", changes.clone());
        assert!(text.starts_with(place), "{changes}: {text}");
    }
}

#[test]
fn rope_in_either_form_and_under_either_name() {
    let scaling = |changes| with("qwen3-tiny", changes).unwrap().model.rope.scaling;
    let linear = json!({"type": "linear", "factor": 2.0});
    assert_eq!(scaling(json!({"rope_scaling": linear})), RopeScaling::Linear { factor: 2.0 });
    let new = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6});
    assert_eq!(scaling(json!({"rope_parameters": new})), RopeScaling::Linear { factor: 2.0 });
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let RopeScaling::Yarn { original_positions, .. } = scaling(json!({"rope_scaling": yarn})) else { panic!() };
    assert_eq!(original_positions, 32768);
}

#[test]
fn rope_that_is_unknown_or_contradicts_itself_is_refused() {
    for (rope, place) in [
        (json!({"rope_type": "longrope", "factor": 2.0}), "rope_scaling.rope_type: expected default, linear"),
        (json!({"rope_type": "dynamic", "factor": 2.0}), "rope_scaling.rope_type"),
        (json!({"type": "dynamic"}), r#"rope_scaling.type: expected default, linear, llama3 or yarn, found "dynamic""#),
        (json!({"type": "ntk", "rope_type": null}), r#"rope_scaling.type: expected default, linear"#),
        (json!({"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}), "rope_scaling.mscale"),
        (json!({"rope_type": "yarn", "factor": 2.0, "truncate": false}), "rope_scaling.truncate"),
        (json!({"rope_type": "linear", "factor": 2.0, "new_knob": 1}), "rope_scaling.new_knob"),
    ] {
        let text = refused("qwen3-tiny", json!({"rope_scaling": rope}));
        assert!(text.starts_with(place), "{text}");
    }
    for (changes, place) in [
        (json!({"rope_scaling": {"factor": 2.0}}), "rope_scaling.rope_type: expected the name"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor: expected a number above 0"),
        (json!({"rope_scaling": {"rope_type": "linear", "type": "yarn"}}), "rope_scaling.type"),
        (json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}), "rope_theta: expected 5"),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 1.0, "original_max_position_embeddings": 32}}),
            "rope_scaling.high_freq_factor: expected more than low_freq_factor",
        ),
    ] {
        let text = malformed("qwen3-tiny", changes);
        assert!(text.starts_with(place), "{text}");
    }
}

#[test]
fn packings_are_honoured_or_refused() {
    let q = |quantization: Value| with("qwen3-tiny", json!({"quantization": quantization}));
    let read = q(json!({"bits": 4, "group_size": 64, "model.norm": false, "lm_head": {"bits": 8, "group_size": 32}}));
    let overrides = read.unwrap().quantization.unwrap().overrides;
    assert_eq!(overrides.len(), 2);
    assert_eq!(overrides["model.norm"], None);
    for (changes, place) in [
        (json!({"quantization": {"bits": 3, "group_size": 64}}), "quantization.bits: expected 4 or 8, found 3"),
        (json!({"quantization": {"bits": 4, "group_size": 16}}), "quantization.group_size"),
        (json!({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}), "quantization.mode"),
        (json!({"quantization_config": {"quant_method": "awq", "bits": 4}}), "quantization_config.quant_method"),
    ] {
        let text = refused("qwen3-tiny", changes);
        assert!(text.starts_with(place), "{text}");
    }
    let two = json!({"quantization": {"bits": 4, "group_size": 32},
        "quantization_config": {"bits": 8, "group_size": 32}});
    assert!(malformed("qwen3-tiny", two).starts_with("quantization_config"));
}
