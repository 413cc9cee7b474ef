//! The weights of a decoder: their roles, their shapes, and what Hugging Face and GGUF call them.

use crate::config::ModelConfig;
use std::fmt;

/// What a weight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Token embedding [V, D].
    Embed,
    /// Norm before the head [1, D].
    FinalNorm,
    /// Output head [V, D].
    Head,
    /// A weight of one layer.
    Layer {
        /// Layer, from 0.
        layer: usize,
        /// Which of its weights.
        part: Part,
    },
}

/// The weights of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Norm before attention [1, D].
    AttnNorm,
    /// Query projection [H * E, D].
    Q,
    /// Key projection [K * E, D].
    K,
    /// Value projection [K * E, D].
    V,
    /// Query bias [1, H * E].
    QBias,
    /// Key bias [1, K * E].
    KBias,
    /// Value bias [1, K * E].
    VBias,
    /// Output projection [D, H * E].
    O,
    /// Norm of each query head [1, E].
    QNorm,
    /// Norm of each key head [1, E].
    KNorm,
    /// Norm before the MLP [1, D].
    FfnNorm,
    /// Gate projection [F, D].
    Gate,
    /// Up projection [F, D].
    Up,
    /// Down projection [D, F].
    Down,
}

/// Part, Hugging Face name and GGUF name, in the order in which a layer uses them.
const PARTS: [(Part, &str, &str); 14] = [
    (Part::AttnNorm, "input_layernorm.weight", "attn_norm.weight"),
    (Part::Q, "self_attn.q_proj.weight", "attn_q.weight"),
    (Part::K, "self_attn.k_proj.weight", "attn_k.weight"),
    (Part::V, "self_attn.v_proj.weight", "attn_v.weight"),
    (Part::QBias, "self_attn.q_proj.bias", "attn_q.bias"),
    (Part::KBias, "self_attn.k_proj.bias", "attn_k.bias"),
    (Part::VBias, "self_attn.v_proj.bias", "attn_v.bias"),
    (Part::QNorm, "self_attn.q_norm.weight", "attn_q_norm.weight"),
    (Part::KNorm, "self_attn.k_norm.weight", "attn_k_norm.weight"),
    (Part::O, "self_attn.o_proj.weight", "attn_output.weight"),
    (Part::FfnNorm, "post_attention_layernorm.weight", "ffn_norm.weight"),
    (Part::Gate, "mlp.gate_proj.weight", "ffn_gate.weight"),
    (Part::Up, "mlp.up_proj.weight", "ffn_up.weight"),
    (Part::Down, "mlp.down_proj.weight", "ffn_down.weight"),
];

impl Part {
    fn row(self) -> &'static (Part, &'static str, &'static str) {
        PARTS.iter().find(|(p, ..)| *p == self).expect("every part is in the table")
    }

    /// [rows, cols] in a model of `config`.
    pub fn shape(self, config: &ModelConfig) -> (usize, usize) {
        let (d, f) = (config.hidden, config.ffn);
        let (q, kv) = (config.heads * config.head_size, config.kv_heads * config.head_size);
        match self {
            Part::AttnNorm | Part::FfnNorm => (1, d),
            Part::Q => (q, d),
            Part::K | Part::V => (kv, d),
            Part::QBias => (1, q),
            Part::KBias | Part::VBias => (1, kv),
            Part::O => (d, q),
            Part::QNorm | Part::KNorm => (1, config.head_size),
            Part::Gate | Part::Up => (f, d),
            Part::Down => (d, f),
        }
    }

    /// Whether layers of `config` have it.
    pub fn in_model(self, config: &ModelConfig) -> bool {
        match self {
            Part::QBias | Part::KBias | Part::VBias => config.qkv_bias,
            Part::QNorm | Part::KNorm => config.qk_norm,
            _ => true,
        }
    }
}

impl Role {
    /// All roles of a model of `config` in the order in which a step uses them. A tied head is not among them.
    pub fn all(config: &ModelConfig) -> Vec<Role> {
        let mut out = vec![Role::Embed];
        for layer in 0..config.layers {
            let parts = PARTS.iter().filter(|(p, ..)| p.in_model(config));
            out.extend(parts.map(|&(part, ..)| Role::Layer { layer, part }));
        }
        out.push(Role::FinalNorm);
        if !config.tied_head {
            out.push(Role::Head);
        }
        out
    }

    /// [rows, cols] in a model of `config`.
    pub fn shape(self, config: &ModelConfig) -> (usize, usize) {
        match self {
            Role::Embed | Role::Head => (config.vocab, config.hidden),
            Role::FinalNorm => (1, config.hidden),
            Role::Layer { part, .. } => part.shape(config),
        }
    }

    /// Whether it is a vector, which files store with one dimension and never pack.
    pub fn is_vector(self) -> bool {
        match self {
            Role::FinalNorm => true,
            Role::Embed | Role::Head => false,
            Role::Layer { part, .. } => {
                !matches!(part, Part::Q | Part::K | Part::V | Part::O | Part::Gate | Part::Up | Part::Down)
            }
        }
    }

    /// Its name in Hugging Face and MLX folders.
    pub fn hugging_face(self) -> String {
        match self {
            Role::Embed => "model.embed_tokens.weight".into(),
            Role::FinalNorm => "model.norm.weight".into(),
            Role::Head => "lm_head.weight".into(),
            Role::Layer { layer, part } => format!("model.layers.{layer}.{}", part.row().1),
        }
    }

    /// Its name in GGUF files.
    pub fn gguf(self) -> String {
        match self {
            Role::Embed => "token_embd.weight".into(),
            Role::FinalNorm => "output_norm.weight".into(),
            Role::Head => "output.weight".into(),
            Role::Layer { layer, part } => format!("blk.{layer}.{}", part.row().2),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hugging_face())
    }
}
