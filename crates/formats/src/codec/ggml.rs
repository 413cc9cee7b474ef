//! ggml's blocks of 32 weights: an F16 scale, for the `_1` types an F16 minimum, then the quants.
//!
//! Nibble j of the quants holds weight j in its low half and weight j + 16 in its high half; the fifth bits of the
//! Q5 types are a little-endian u32, bit j for weight j. Layouts: `block_q*` in ggml-common.h.

use half::f16;

/// Weights of one block.
pub const BLOCK: usize = 32;

pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The fifth bits of a Q5 block, whose u32 starts at `at`.
fn high_bits(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The codes of 16 bytes of nibbles.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (j, &b) in bytes.iter().enumerate() {
        (codes[j], codes[j + 16]) = (b & 15, b >> 4);
    }
    codes
}

/// Codes of a Q4_0 block, 0 to 15.
pub fn q4_0_codes(block: &[u8; 18]) -> [u8; BLOCK] {
    nibbles(&block[2..])
}

/// Codes of a Q4_1 block, 0 to 15.
pub fn q4_1_codes(block: &[u8; 20]) -> [u8; BLOCK] {
    nibbles(&block[4..])
}

/// Five-bit codes: fifth bits whose u32 starts at `high`, then nibbles.
fn five_bits(block: &[u8], high: usize) -> [u8; BLOCK] {
    let mut codes = nibbles(&block[high + 4..]);
    let high = high_bits(block, high);
    for (j, q) in codes.iter_mut().enumerate() {
        *q |= ((high >> j & 1) as u8) << 4;
    }
    codes
}

/// Codes of a Q5_0 block, 0 to 31.
pub fn q5_0_codes(block: &[u8; 22]) -> [u8; BLOCK] {
    five_bits(block, 2)
}

/// Codes of a Q5_1 block, 0 to 31.
pub fn q5_1_codes(block: &[u8; 24]) -> [u8; BLOCK] {
    five_bits(block, 4)
}

/// `w = d * q`: d F16, 32 signed bytes.
pub fn q8_0(block: &[u8; 34], out: &mut [f32; BLOCK]) {
    let d = half_at(block, 0);
    for (o, &q) in out.iter_mut().zip(&block[2..]) {
        *o = f32::from(q.cast_signed()) * d;
    }
}

/// `w = d * (q - 8)`: d F16, 16 bytes of nibbles.
pub fn q4_0(block: &[u8; 18], out: &mut [f32; BLOCK]) {
    let d = half_at(block, 0);
    for (o, q) in out.iter_mut().zip(q4_0_codes(block)) {
        *o = (f32::from(q) - 8.0) * d;
    }
}

/// `w = d * q + m`: d and m F16, 16 bytes of nibbles.
pub fn q4_1(block: &[u8; 20], out: &mut [f32; BLOCK]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (o, q) in out.iter_mut().zip(q4_1_codes(block)) {
        *o = f32::from(q) * d + m;
    }
}

/// `w = d * (q - 16)`: d F16, 32 fifth bits, 16 bytes of nibbles.
pub fn q5_0(block: &[u8; 22], out: &mut [f32; BLOCK]) {
    let d = half_at(block, 0);
    for (o, q) in out.iter_mut().zip(q5_0_codes(block)) {
        *o = (f32::from(q) - 16.0) * d;
    }
}

/// `w = d * q + m`: d and m F16, 32 fifth bits, 16 bytes of nibbles.
pub fn q5_1(block: &[u8; 24], out: &mut [f32; BLOCK]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (o, q) in out.iter_mut().zip(q5_1_codes(block)) {
        *o = f32::from(q) * d + m;
    }
}
