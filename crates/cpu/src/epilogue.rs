//! What happens to the products of a linear before they are stored.

use crate::lanes::{LANES, Lanes};
use crate::rows::Rows;

/// Where 16 products of a row go, and what is added to them.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue {
    /// [n], padded; none for none.
    pub bias: Bias,
    /// Add to `out` instead of replacing it.
    pub accumulate: bool,
    /// [T, n]
    pub out: Rows,
}

/// A bias vector that the backend holds, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Bias(pub Option<std::ptr::NonNull<f32>>);

// SAFETY: it points into a vector of the backend, which is never written after it was made.
unsafe impl Send for Bias {}
// SAFETY: as above.
unsafe impl Sync for Bias {}

impl Epilogue {
    /// Stores products `n .. n + 16` of row `t`; of those past the last output, nothing.
    ///
    /// # Safety
    /// Row t exists, n is an output and a multiple of 16, and nobody else writes these columns.
    #[inline(always)]
    pub unsafe fn store<L: Lanes>(&self, l: L, t: usize, n: usize, products: L::V) {
        let mut v = products;
        if let Bias(Some(bias)) = self.bias {
            // SAFETY: a bias is padded to a multiple of 32, and n is one of 16.
            v = l.add(v, unsafe { l.load(bias.as_ptr().add(n)) });
        }
        let at = self.out.row(t).wrapping_add(n);
        let left = self.out.width - n;
        // SAFETY: the row has `left` outputs from here, and only its columns are written.
        unsafe {
            if left >= LANES {
                let v = if self.accumulate { l.add(l.load(at), v) } else { v };
                l.store(at, v);
            } else {
                let v = if self.accumulate { l.add(l.load_part(at, left, 0.0), v) } else { v };
                l.store_part(at, left, v);
            }
        }
    }
}
