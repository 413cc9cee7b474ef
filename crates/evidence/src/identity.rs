//! Identity in two parts: the work, which must be equal for times to be compared, and the arm, which may vary.

use crate::canonical;
use crate::schema::ReadingShape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tare_core::{Fault, Reading};

/// What was computed. Two records are comparable only when all of it is equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// SHA-256 that stands for the values of the weights: over role, format, shape and packed bytes of each, so that the
    /// same packed numbers are the same work whatever file they are in. For a synthetic model it is that of the
    /// generator's version and the written-out spec, which fix every byte.
    pub weights_values_sha256: String,
    /// Name of the published shape, such as `qwen3-0.6b`.
    pub shape: String,
    /// SHA-256 of the canonical JSON of the list of lists of prompt ids, `[rows][depth + prompt]`.
    pub prompt_ids_sha256: String,
    /// Prompt tokens of each row, `[rows]`.
    pub prompt_lengths: Vec<u32>,
    /// Tokens to emit for each row, `[rows]`: exact when `eos` is `ignore`, at most when it is `stop`.
    pub output_lengths: Vec<u32>,
    /// Positions whose logits prefill computes.
    pub prefill_logits: PrefillLogits,
    /// Requests that run together.
    pub rows: u32,
    /// Sampler settings as the engine has them, the seed included.
    pub sampling: Value,
    /// What an end-of-sequence token does.
    pub eos: EosRule,
    /// Tokens already in the KV cache before the prompt.
    pub depth: u32,
    /// Whether the weights may lie in a processor cache when the clock starts.
    pub warmth: Warmth,
}

impl Work {
    /// Its lengths for people, as [`lengths_told`] has them: those of its first row.
    pub fn lengths(&self) -> String {
        let first = |of_rows: &[u32]| of_rows.first().copied().unwrap_or(0);
        lengths_told(self.rows, first(&self.prompt_lengths), first(&self.output_lengths), self.depth)
    }
}

/// The lengths of a work for people: `8 sequences of 128 in, 65 out, depth 0`. One sequence alone is not counted.
pub fn lengths_told(sequences: u32, prompt_tokens: u32, output_tokens: u32, depth: u32) -> String {
    let several = if sequences > 1 { format!("{sequences} sequences of ") } else { String::new() };
    format!("{several}{prompt_tokens} in, {output_tokens} out, depth {depth}")
}

/// What a rate is of, behind its unit: ` of 8 sequences together`; nothing where one runs alone.
pub fn together_told(sequences: u32) -> String {
    if sequences > 1 { format!(" of {sequences} sequences together") } else { String::new() }
}

/// Positions whose logits prefill computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrefillLogits {
    /// Only the last prompt position.
    Last,
    /// Every prompt position.
    All,
}

/// What an end-of-sequence token does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EosRule {
    /// Nothing: output lengths are exact.
    Ignore,
    /// It ends its row.
    Stop,
}

/// Whether the weights may lie in a processor cache when the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Warmth {
    /// They may: the same weights were just used.
    Warm,
    /// They may not: enough copies were rotated, or the caches were swept.
    Cold,
}

/// How it was computed: what may differ between two records of one work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Name of the plan, such as `selected`.
    pub plan: String,
    /// Canonical digest of the resolved plan; equals `plan.sha256` of the record.
    pub plan_sha256: String,
    /// SHA-256 of the binary that ran; equals `provenance.binary_sha256` of the record.
    pub binary_sha256: String,
    /// Arithmetic class, such as `w4a16`, or `undeclared` for a peer that does not say.
    pub class: String,
    /// Weight format of the layers, such as `w4g128`.
    pub file_format: String,
    /// SHA-256 of the model's weights as they were read; today as `work.weights_values_sha256`.
    pub file_sha256: String,
    /// Weight format of the output head.
    pub head_format: String,
    /// Kind of the KV cache, such as `paged`.
    pub cache: String,
    /// Tokens of one KV page.
    #[schemars(with = "ReadingShape<u32>")]
    pub page_tokens: Reading<u32>,
    /// Threads that compute.
    #[schemars(with = "ReadingShape<u32>")]
    pub threads: Reading<u32>,
    /// Highest instruction-set level that a kernel of the plan needs.
    pub isa: String,
    /// `cpu`, `cuda` or the peer's.
    pub backend: String,
    /// Bytes of weights read for one decoded token: for a step, which gives a token to every row.
    #[schemars(with = "ReadingShape<u64>")]
    pub streamed_bytes_per_token: Reading<u64>,
    /// The other engine, when it was not tare that ran.
    pub peer: Option<Peer>,
    /// Settings of the arm beyond its plan, such as a kernel that it was told to use; left out when there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Value>,
    /// A delay that was planted in it; left out when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Delay>,
}

impl Arm {
    /// Whether its settings say that every worker was in every step, also one whose processor another process kept busy.
    pub fn keeps_workers(&self) -> bool {
        self.settings.as_ref().and_then(|s| s.get("keep_workers")).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// A delay planted in every call of one group of operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Name of the group, as a replay names it.
    pub group: String,
    /// How much longer each call takes, in percent of its time without the delay.
    pub percent: f64,
}

/// Another engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its version, as it prints it.
    pub version: String,
    /// Everything it was started with.
    pub settings: Value,
}

/// Digest of prompts, as [`Work::prompt_ids_sha256`] has it.
///
/// # Errors
/// Never for ids; the signature is that of every canonical digest.
pub fn prompt_ids_sha256(prompts: &[Vec<u32>]) -> Result<String, Fault> {
    canonical::digest_of(&prompts)
}
