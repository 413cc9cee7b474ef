//! What a floor is made of: the bytes and flops that a phase needs, and the ceilings that were measured.

use crate::schema::ReadingShape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tare_core::Reading;

/// Bytes and flops of one round, phase by phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Demands {
    /// The whole prefill, first token included.
    #[schemars(with = "ReadingShape<Demand>")]
    pub prefill: Reading<Demand>,
    /// All decode steps together.
    #[schemars(with = "ReadingShape<Demand>")]
    pub decode: Reading<Demand>,
}

/// What one phase of one round needs at the least.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// Packed weights read, over all steps of the phase.
    pub weight_bytes: u64,
    /// KV cache read, at the depth of each step.
    pub kv_read_bytes: u64,
    /// KV cache written.
    pub kv_write_bytes: u64,
    /// Multiplications and additions, two for each weight and token.
    pub flops: u64,
    /// Name of the ceiling that bounds the bytes.
    pub byte_ceiling: String,
    /// Name of the ceiling that bounds the flops.
    pub flop_ceiling: String,
}

impl Demand {
    /// All bytes. Wider than its parts, so that no record can make it overflow.
    pub fn bytes(&self) -> u128 {
        [self.weight_bytes, self.kv_read_bytes, self.kv_write_bytes].map(u128::from).iter().sum()
    }
}

/// The most that this host did of one thing, measured beside the arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Its name, to which demands refer.
    pub name: String,
    /// What is counted.
    pub resource: Resource,
    /// Threads that took part.
    pub threads: u32,
    /// Bytes that were walked over.
    pub working_set_bytes: u64,
    /// Kind of memory pages under them.
    pub pages: String,
    /// Each measurement, or why there is none.
    #[schemars(with = "ReadingShape<Vec<CeilingSample>>")]
    pub samples: Reading<Vec<CeilingSample>>,
}

/// What a ceiling counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Bytes moved.
    Bytes,
    /// Floating-point operations.
    Flops,
}

/// One measurement of a ceiling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingSample {
    /// The round inside which it ran; none when it was measured apart from the rounds.
    pub round: Option<u32>,
    /// Bytes or flops done.
    pub amount: u64,
    /// Nanoseconds taken.
    pub ns: u64,
}
