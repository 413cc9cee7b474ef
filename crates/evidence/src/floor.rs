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
    /// Label of the ceiling arm of the same campaign whose turns these are; left out where no arm measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<String>,
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

impl Ceiling {
    /// Amount for each nanosecond, of every sample that has both.
    ///
    /// # Errors
    /// Why there is none, as a reading has it.
    pub(crate) fn rates(&self) -> Result<Vec<f64>, String> {
        let samples = match &self.samples {
            Reading::Available(samples) => samples,
            Reading::Unavailable { why } => return Err(why.clone()),
        };
        let used = samples.iter().filter(|s| s.ns > 0 && s.amount > 0);
        let rates: Vec<f64> = used.map(|s| s.amount as f64 / s.ns as f64).collect();
        if rates.is_empty() { Err(format!("ceiling `{}` has no usable sample", self.name)) } else { Ok(rates) }
    }
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
    /// The turn of its arm in that round, from 0; left out where no arm measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Bytes or flops done.
    pub amount: u64,
    /// Nanoseconds taken.
    pub ns: u64,
}
