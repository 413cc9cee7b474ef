//! Rows of the embedding.

use tare_core::Weight;
use tare_formats::codec::dequantize_row;

/// `out = table[token]`, dequantized exactly. table [V, D], out [D]
///
/// # Panics
/// When the token is not in the table or `out` is not D long.
pub fn embedding(table: &Weight, token: u32, out: &mut [f32]) {
    dequantize_row(table, token as usize, out);
}
