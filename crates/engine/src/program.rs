//! A model made ready on a backend: packed weights and an executable for each bucket.

use tare_model::planner::Target;
use tare_model::{CacheKind, Model, ModelError, PackedModel, Resolved, resolve};
use tare_ops::{Backend, Bucket, Executable, KvShape};

use crate::config::EngineConfig;

/// The most rows that go through the head in a step, unless more sequences than this may run at once. It bounds the
/// logits buffer; prompts whose every position is read are cut into chunks of this size.
const SELECTED: usize = 64;
/// The most rows that go through the head of a bucket for chunks of which hardly a row is read: the last one of a prompt,
/// of which at most its last row is, and those before. A head made for many rows would be a waste on one.
const FEW: usize = 4;
/// Rows from which on a bucket is one of chunks.
const CHUNK: usize = 64;

/// What the runner runs.
pub(crate) struct Program {
    /// From the smallest bucket to the largest.
    pub(crate) executables: Vec<(Bucket, Executable)>,
    /// The plans behind them, in the same order.
    pub(crate) resolved: Vec<Resolved>,
    /// KV cache of a token.
    pub(crate) kv: KvShape,
    /// V.
    pub(crate) vocabulary: usize,
}

impl Program {
    /// Packs, resolves and compiles.
    ///
    /// # Errors
    /// When the plan does not suit the model or the backend.
    pub(crate) fn new(model: &Model, backend: &mut dyn Backend, config: &EngineConfig) -> Result<Self, ModelError> {
        // Before the model is packed, which takes its time.
        config.plan.runs(&backend.describe().name, config.class)?;
        let packed = PackedModel::pack(model, backend)?;
        let (mut executables, mut resolved) = (Vec::new(), Vec::new());
        // The largest first: the others find its step memory large enough.
        for bucket in buckets(config.max_rows, config.max_sequences).into_iter().rev() {
            let target = Target { class: config.class, bucket, context: config.context };
            let plan = resolve(&config.plan, &packed, &*backend, target)?;
            executables.push((bucket, backend.compile(&plan.plan)?));
            resolved.push(plan);
        }
        executables.reverse();
        resolved.reverse();
        let kv = tare_model::planner::kv_shape(packed.config(), config.class);
        Ok(Self { executables, resolved, kv, vocabulary: packed.config().vocab })
    }
}

/// The buckets of an engine: 1 row, then four times as many each, and from 64 on, where what a step costs grows with its
/// rows, twice as many, up to `max_rows`; and one of `max_sequences` rows, which a step has while all of them decode. Where
/// that is a chunk, there is one of each size for few selected rows and one for many. A function of the limits
/// alone, so that the same configuration runs the same kernels everywhere.
pub(crate) fn buckets(max_rows: usize, max_sequences: usize) -> Vec<Bucket> {
    let mut rows = vec![1];
    while let Some(last) = rows.last().copied().filter(|last| *last < max_rows) {
        rows.push((last * if last < 64 { 4 } else { 2 }).min(max_rows));
    }
    if let Err(place) = rows.binary_search(&max_sequences.clamp(1, max_rows.max(1))) {
        rows.insert(place, max_sequences);
    }
    let of = |rows: usize| {
        let many = rows.min(SELECTED.max(max_sequences));
        let few = if rows < CHUNK { many } else { FEW };
        [few, many].into_iter().skip(usize::from(few == many)).map(move |selected| Bucket { rows, selected })
    };
    rows.into_iter().flat_map(of).collect()
}

/// Tokens of a page and pages of the pool: contiguous kinds count in pages of one token.
pub(crate) fn pages(config: &EngineConfig) -> (usize, usize) {
    let page_tokens = match config.plan.cache {
        CacheKind::Paged => config.plan.page_tokens.unwrap_or(1),
        CacheKind::Recompute | CacheKind::Concatenate | CacheKind::Capacity => 1,
    };
    (page_tokens, config.kv_tokens / page_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_to_the_row_budget() {
        let all = |max, sequences| buckets(max, sequences).iter().map(|b| (b.rows, b.selected)).collect::<Vec<_>>();
        assert_eq!(all(1, 4), [(1, 1)]);
        assert_eq!(all(3, 4), [(1, 1), (3, 3)]);
        let chunks = [(64, 4), (64, 64), (128, 4), (128, 64)];
        assert_eq!(all(128, 4), [&[(1, 1), (4, 4), (16, 16)], &chunks[..]].concat());
        assert_eq!(all(600, 4)[7..], [(256, 4), (256, 64), (512, 4), (512, 64), (600, 4), (600, 64)]);
        assert_eq!(all(512, 100).last(), Some(&(512, 100)));
        let beside = |max_sequences| {
            let mut rows: Vec<usize> = buckets(64, max_sequences).iter().map(|b| b.rows).collect();
            rows.dedup();
            rows
        };
        assert_eq!(beside(1), [1, 4, 16, 64]);
        assert_eq!(beside(8), [1, 4, 8, 16, 64], "a step in which all of them decode");
        assert_eq!(beside(100), [1, 4, 16, 64], "no step has more rows than the budget");
    }
}
