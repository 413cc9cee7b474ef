//! The rows' keys and values into their pages.
//!
//! math: `cache[layer, slot(t)] = k[t], v[t]`, rounded to BF16 (nearest, ties to even) when the pool is BF16
//! shapes: k, v [T, K * E]
//! layout: see `tare_cpu::kv`
//! precision: exact in F32, one rounding in BF16
//! preconditions: no two rows share a slot
//! cost: T tokens written
//! tolerance: exact
//! wins: everywhere
//! loses: nowhere known
//! fallback: none: plain Rust
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of (row, kv head) pairs.

use half::bf16;
use tare_core::DType;
use tare_ops::Row;

use crate::kv::PoolView;
use crate::pool::Region;
use crate::rows::Rows;

/// The pages of a sequence, as kernels see them.
#[derive(Clone, Copy, Debug)]
pub struct TableView {
    /// The pool.
    pub pool: PoolView,
    pages: *const u32,
    len: usize,
}

// SAFETY: it points to the pages of a batch, which is borrowed for the whole step.
unsafe impl Send for TableView {}
// SAFETY: as above.
unsafe impl Sync for TableView {}

impl TableView {
    /// A view of `pages`, which must outlive it.
    pub fn new(pool: PoolView, pages: &[u32]) -> Self {
        Self { pool, pages: pages.as_ptr(), len: pages.len() }
    }

    /// The pages.
    #[inline(always)]
    pub fn pages(&self) -> &[u32] {
        // SAFETY: the constructor's contract.
        unsafe { std::slice::from_raw_parts(self.pages, self.len) }
    }
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct KvAppend {
    /// Decoder layer.
    pub layer: usize,
    /// [T, K * E]
    pub k: Rows,
    /// [T, K * E]
    pub v: Rows,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_size: usize,
    /// Of the pool.
    pub dtype: DType,
}

impl KvAppend {
    /// Heads that workers share out when `rows` rows travel through.
    pub fn items(&self, rows: usize) -> usize {
        rows * self.kv_heads
    }

    /// Runs one worker's share.
    ///
    /// # Safety
    /// The rows have been checked against the tables; k and v hold them; nobody reads these slots meanwhile.
    pub unsafe fn run(&self, rows: &[Row], tables: &[TableView], region: Region) {
        for i in region.share(self.items(rows.len()), 1) {
            // SAFETY: the caller's promise.
            unsafe { self.head(rows, tables, i / self.kv_heads, i % self.kv_heads) };
        }
    }

    /// Head `head` of row `t`.
    ///
    /// # Safety
    /// That of [`KvAppend::run`].
    #[inline(always)]
    pub unsafe fn head(&self, rows: &[Row], tables: &[TableView], t: usize, head: usize) {
        let [keys, values] = self.places(&rows[t], tables, head);
        let from = head * self.head_size;
        // SAFETY: the slot lies in the page, the head in the row.
        unsafe {
            self.store(self.k.row(t).add(from), keys);
            self.store(self.v.row(t).add(from), values);
        }
    }

    /// Where key and value of head `head` of a row go.
    #[inline(always)]
    pub(super) fn places(&self, row: &Row, tables: &[TableView], head: usize) -> [*mut u8; 2] {
        let (table, slot) = (&tables[row.table as usize], row.slot as usize);
        let (page, token) = (table.pages()[slot / table.pool.page_tokens], slot % table.pool.page_tokens);
        let at = token * table.pool.token_bytes;
        let (keys, values) = (table.pool.keys(self.layer, page, head), table.pool.values(self.layer, page, head));
        [keys.wrapping_add(at), values.wrapping_add(at)]
    }

    /// One head of one token.
    ///
    /// # Safety
    /// E elements lie at both.
    #[inline(always)]
    pub(super) unsafe fn store(&self, from: *const f32, to: *mut u8) {
        if self.dtype == DType::F32 {
            // SAFETY: the caller's promise: E elements at both.
            return unsafe { std::ptr::copy_nonoverlapping(from, to.cast::<f32>(), self.head_size) };
        }
        for i in 0..self.head_size {
            // SAFETY: as above.
            unsafe { to.cast::<bf16>().add(i).write(bf16::from_f32(from.add(i).read())) };
        }
    }
}
