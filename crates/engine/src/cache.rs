//! KV storage: four kinds behind one interface.
//!
//! A sequence's storage is opened, appended to before the rows that fill it run, rewound and closed. What differs is
//! where the bytes lie and what an append costs; the numbers computed from them are the same.

mod contiguous;
mod paged;
#[cfg(test)]
mod tests;

use tare_model::CacheKind;
use tare_ops::{Backend, KvShape, KvSpan, Table};

use crate::counters::{CopyBytes, PoolUse};
use crate::error::CacheError;
use crate::request::RequestId;
use contiguous::{Contiguous, Growth};
use paged::Paged;

/// Rows about to be run for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Append {
    /// Whose.
    pub(crate) sequence: RequestId,
    /// New tokens.
    pub(crate) rows: usize,
}

/// Where the keys and values of sequences lie.
pub(crate) trait Storage: Send {
    /// Begins a sequence that will hold at most `bound` tokens. One that is open already keeps its tokens; kinds that
    /// allocate ahead make its region longer when it is shorter than `bound`.
    ///
    /// # Errors
    /// When memory runs out; nothing has changed then.
    fn open(&mut self, backend: &mut dyn Backend, sequence: RequestId, bound: usize) -> Result<(), CacheError>;

    /// Makes room for the rows of a step: for all of them, or for none.
    ///
    /// # Errors
    /// When a sequence is unknown or would overflow, or pages or memory run out; nothing has changed then.
    fn append(&mut self, backend: &mut dyn Backend, appends: &[Append]) -> Result<(), CacheError>;

    /// Forgets all tokens after the first `tokens`. `rewind(s, 0)` is a reset.
    ///
    /// # Errors
    /// When fewer are cached; nothing has changed then.
    fn rewind(&mut self, sequence: RequestId, tokens: usize) -> Result<(), CacheError>;

    /// Frees everything of a sequence. One that was never opened has nothing to free.
    ///
    /// # Errors
    /// When the backend or the page accounting fails.
    fn close(&mut self, backend: &mut dyn Backend, sequence: RequestId) -> Result<(), CacheError>;

    /// The storage of `from` goes on as that of `to`.
    ///
    /// # Errors
    /// When `from` is unknown.
    fn rename(&mut self, from: RequestId, to: RequestId) -> Result<(), CacheError>;

    /// Tokens that a sequence has stored or made room for.
    ///
    /// # Errors
    /// When it is unknown.
    fn tokens(&self, sequence: RequestId) -> Result<usize, CacheError>;

    /// The block table as a batch wants it, written over `table`.
    ///
    /// # Errors
    /// When the sequence is unknown.
    fn table(&self, sequence: RequestId, table: &mut Table) -> Result<(), CacheError>;

    /// Tokens of a page of the sequence's pool.
    ///
    /// # Errors
    /// When the sequence is unknown.
    fn page_tokens(&self, sequence: RequestId) -> Result<usize, CacheError>;

    /// Bytes moved so far.
    fn copies(&self) -> CopyBytes;

    /// How full it is.
    fn pool(&self) -> PoolUse;
}

/// What storage is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageShape {
    /// Kind.
    pub(crate) kind: CacheKind,
    /// Tokens of a page; 1 where storage is contiguous.
    pub(crate) page_tokens: usize,
    /// Pages in the pool.
    pub(crate) pages: usize,
    /// A token's keys and values.
    pub(crate) token: KvShape,
}

/// Makes storage of a kind.
///
/// # Errors
/// When the pool cannot be allocated.
pub(crate) fn storage(backend: &mut dyn Backend, shape: StorageShape) -> Result<Box<dyn Storage>, CacheError> {
    Ok(match shape.kind {
        CacheKind::Recompute | CacheKind::Capacity => Box::new(Contiguous::new(shape, Growth::Bound)),
        CacheKind::Concatenate => Box::new(Contiguous::new(shape, Growth::Concatenate)),
        CacheKind::Paged => Box::new(Paged::new(backend, shape)?),
    })
}

/// The spans that hold tokens 0 to `tokens` of a table, in order.
fn spans(table: &Table, page_tokens: usize, tokens: usize) -> impl Iterator<Item = KvSpan> + '_ {
    table.pages.iter().enumerate().map_while(move |(i, page)| {
        let first = i * page_tokens;
        let here = tokens.saturating_sub(first).min(page_tokens);
        (here > 0).then_some(KvSpan { kv: table.kv, page: *page, start: 0, tokens: here })
    })
}

/// The KV of one sequence outside any pool, independent of how it was stored.
///
/// Bytes lie as for one span of all its tokens: layer by layer the keys [tokens, K, E], then the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedKv {
    /// The tokens whose keys and values these are.
    pub tokens: Vec<u32>,
    /// A token's place.
    pub shape: KvShape,
    /// Keys and values.
    pub bytes: Vec<u8>,
}

/// The bytes of a sequence's first `tokens` tokens.
///
/// # Errors
/// When the sequence is unknown or the backend cannot read.
pub(crate) fn export(
    storage: &dyn Storage,
    backend: &mut dyn Backend,
    sequence: RequestId,
    shape: KvShape,
) -> Result<Vec<u8>, CacheError> {
    let tokens = storage.tokens(sequence)?;
    let mut bytes = vec![0; tokens * shape.token_bytes()];
    let mut first = 0;
    for span in all_spans(storage, sequence)? {
        let part = backend.read_kv(span)?;
        for (plane, (whole, piece)) in planes(shape, tokens, span.tokens).enumerate() {
            let to = plane * whole + first * piece / span.tokens;
            bytes[to..to + piece].copy_from_slice(&part[plane * piece..(plane + 1) * piece]);
        }
        first += span.tokens;
    }
    Ok(bytes)
}

/// Writes what [`export`] gave into room that was appended for it.
///
/// # Errors
/// When the number of bytes is not that of the sequence's tokens, or the backend cannot write.
pub(crate) fn import(
    storage: &dyn Storage,
    backend: &mut dyn Backend,
    sequence: RequestId,
    kv: &ExportedKv,
) -> Result<(), CacheError> {
    let tokens = storage.tokens(sequence)?;
    let expected = tokens * kv.shape.token_bytes();
    if kv.bytes.len() != expected {
        return Err(CacheError::Bytes { expected, found: kv.bytes.len() });
    }
    let mut first = 0;
    for span in all_spans(storage, sequence)? {
        let mut part = Vec::with_capacity(span.tokens * kv.shape.token_bytes());
        for (plane, (whole, piece)) in planes(kv.shape, tokens, span.tokens).enumerate() {
            let from = plane * whole + first * piece / span.tokens;
            part.extend_from_slice(&kv.bytes[from..from + piece]);
        }
        backend.write_kv(span, &part)?;
        first += span.tokens;
    }
    Ok(())
}

fn all_spans(storage: &dyn Storage, sequence: RequestId) -> Result<Vec<KvSpan>, CacheError> {
    let mut table = Table { kv: tare_ops::KvId(0), pages: Vec::new() };
    storage.table(sequence, &mut table)?;
    Ok(spans(&table, storage.page_tokens(sequence)?, storage.tokens(sequence)?).collect())
}

/// For each plane (keys, then values, of each layer) its bytes in a run of `tokens` and in a piece of `part` tokens.
fn planes(shape: KvShape, tokens: usize, part: usize) -> impl Iterator<Item = (usize, usize)> {
    let token = shape.kv_heads * shape.head_size * shape.dtype.bytes();
    std::iter::repeat_n((tokens * token, part * token), 2 * shape.layers)
}
