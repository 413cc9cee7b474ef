//! KV storage kinds.

/// How KV is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing is kept from one token to the next: each computes the whole sequence again.
    Recompute,
    /// One region for each sequence, made anew, longer, at each append.
    Concatenate,
    /// One region for each sequence, made once for prompt and output.
    Capacity,
    /// Pages of one pool.
    Paged {
        /// Tokens of a page.
        page_tokens: usize,
    },
}
