//! Unpacked elements: F32, F16 and BF16, little-endian.

use half::{bf16, f16};

/// `out.len()` binary32 values.
pub fn f32(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *o = f32::from_le_bytes(*b);
    }
}

/// `out.len()` binary16 values.
pub fn f16(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *o = f16::from_le_bytes(*b).to_f32();
    }
}

/// `out.len()` values whose upper half is stored.
pub fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *o = bf16::from_le_bytes(*b).to_f32();
    }
}
