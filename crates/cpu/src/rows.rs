//! Step buffers: F32 rows whose length is rounded up, so that kernels read whole vectors.

use crate::memory::Memory;
use crate::unpack::UNIT;

/// Columns that a row of `width` takes: the next multiple of 32, which is 128 bytes.
pub const fn padded(width: usize) -> usize {
    width.next_multiple_of(UNIT)
}

/// The rows of a step buffer, or of a worker's scratch.
///
/// The columns between the width and the stride hold +0 for as long as the buffer lives: no kernel writes them. A
/// weight of -0 there makes `fma(-0, +0, sum)`, which returns `sum` bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    ptr: *mut f32,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
}

// SAFETY: a pointer and two numbers. Kernels that write through it state which rows and columns each worker owns, and
// stages that touch the same buffer are separated by barriers.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Rows of `width` in `memory`, which holds `rows * padded(width)` F32 and outlives this view.
    pub fn new(memory: &Memory, width: usize) -> Self {
        Self::at(memory.as_ptr(), width)
    }

    /// Rows of `width` at `ptr`, where there is room for them for as long as this view is used.
    pub const fn at(ptr: *mut f32, width: usize) -> Self {
        Self { ptr, stride: padded(width), width }
    }

    /// The first element of row `t`.
    #[inline(always)]
    pub fn row(&self, t: usize) -> *mut f32 {
        self.ptr.wrapping_add(t * self.stride)
    }
}
