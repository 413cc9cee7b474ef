//! What an engine is built from.

use tare_core::Fault;
use tare_model::PlanSpec;
use tare_ops::Class;

/// The plan an engine runs and the limits it keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Cache kind and kernel strategies.
    pub plan: PlanSpec,
    /// Arithmetic class.
    pub class: Class,
    /// Tokens that a sequence may have, prompt and output together.
    pub context: usize,
    /// Tokens of KV that all sequences together may hold; whole pages of them under a paged plan.
    pub kv_tokens: usize,
    /// Rows of a step: its token budget, and so the longest prefill chunk.
    pub max_rows: usize,
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Requests that may wait while as many run as may.
    pub max_queue: usize,
}

impl EngineConfig {
    /// The `kv_tokens` with which `sequences` sequences of `context` tokens each fit whole: pages are not shared, so each
    /// sequence may leave the rest of its last page unused.
    pub fn kv_tokens_for(plan: &PlanSpec, context: usize, sequences: usize) -> usize {
        context.next_multiple_of(plan.page_tokens.unwrap_or(1)) * sequences
    }

    /// Checks that every limit can be kept.
    ///
    /// # Errors
    /// When a limit is 0, or positions or pages would not fit 32 bits.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let limits = [
            ("context", self.context),
            ("kv_tokens", self.kv_tokens),
            ("max_rows", self.max_rows),
            ("max_sequences", self.max_sequences),
            ("max_queue", self.max_queue),
        ];
        for (name, value) in limits {
            if value == 0 || u32::try_from(value).is_err() {
                return Err(Fault::new(name, format!("1 to {}", u32::MAX), value.to_string()));
            }
        }
        Ok(())
    }
}
