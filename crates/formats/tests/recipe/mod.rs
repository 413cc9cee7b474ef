//! The F32 weights of the golden models, by the recipe at the top of goldens/scripts/weights.py.

use serde_json::Value;
use tare_formats::{Arch, ModelConfig, Part, Role};
use tare_testkit::{goldens, json};

/// Seed and amplitudes of one model of goldens/scripts/models.json.
pub(crate) struct Recipe {
    seed: u64,
    amp: Value,
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3))
}

impl Recipe {
    pub(crate) fn of(name: &str) -> Self {
        let models = json(goldens().join("scripts/models.json"));
        let model = models["models"].as_array().unwrap().iter().find(|m| m["name"] == name).unwrap().clone();
        let seed = u64::from_str_radix(model["seed"].as_str().unwrap(), 16).unwrap();
        Self { seed, amp: model["amp"].clone() }
    }

    fn amp(&self, role: Role) -> f32 {
        let kind = match role {
            Role::Embed => "embed",
            Role::Head => "head",
            Role::FinalNorm => "norm",
            Role::Layer { part, .. } => match part {
                Part::AttnNorm | Part::FfnNorm => "norm",
                Part::QNorm | Part::KNorm => "norm_qk",
                Part::QBias | Part::KBias | Part::VBias => "bias",
                Part::Q => "q_proj",
                Part::K => "k_proj",
                Part::V => "v_proj",
                Part::O => "o_proj",
                Part::Gate => "gate_proj",
                Part::Up => "up_proj",
                Part::Down => "down_proj",
            },
        };
        self.amp[kind].as_f64().unwrap() as f32
    }

    /// The weight of `role`, rows in Hugging Face order.
    pub(crate) fn rows(&self, role: Role, config: &ModelConfig) -> Vec<f32> {
        let (rows, cols) = role.shape(config);
        let name = role.hugging_face();
        let (start, amp, norm) = (fnv1a64(name.as_bytes()) ^ self.seed, self.amp(role), name.contains("norm"));
        let value = |i: u64| {
            let mut z = start.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            let w = ((z >> 40) as i64 - (1 << 23)) as f32 * 2f32.powi(-23) * amp;
            if norm { 1.0 + w } else { w }
        };
        (0..(rows * cols) as u64).map(value).collect()
    }

    /// The same in the row order of GGUF files: heads of Q and K of llama in pair order.
    pub(crate) fn gguf_rows(&self, role: Role, config: &ModelConfig) -> Vec<f32> {
        let values = self.rows(role, config);
        let q_or_k = matches!(role, Role::Layer { part: Part::Q | Part::K, .. });
        if config.arch != Arch::Llama || !q_or_k {
            return values;
        }
        let (rows, cols) = role.shape(config);
        let e = config.head_size;
        let source = |r: usize| r / e * e + (r % e) / 2 + (r % 2) * (e / 2);
        (0..rows).flat_map(|r| values[source(r) * cols..][..cols].iter().copied()).collect()
    }
}
