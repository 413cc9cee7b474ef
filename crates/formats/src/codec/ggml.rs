//! ggml's blocks of 32 weights: an F16 scale, for the `_1` types an F16 minimum, then the quants.
//!
//! Nibble j of the quants holds weight j in its low half and weight j + 16 in its high half; the fifth bits of the
//! Q5 types are a little-endian u32, bit j for weight j. Layouts: `block_q*` in ggml-common.h.

use half::f16;

/// Weights of one block.
pub const BLOCK: usize = 32;

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The fifth bits of a Q5 block, whose u32 starts at `at`.
fn high_bits(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
    for (j, &b) in block[2..].iter().enumerate() {
        out[j] = (f32::from(b & 15) - 8.0) * d;
        out[j + 16] = (f32::from(b >> 4) - 8.0) * d;
    }
}

/// `w = d * q + m`: d and m F16, 16 bytes of nibbles.
pub fn q4_1(block: &[u8; 20], out: &mut [f32; BLOCK]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &b) in block[4..].iter().enumerate() {
        out[j] = f32::from(b & 15) * d + m;
        out[j + 16] = f32::from(b >> 4) * d + m;
    }
}

/// The two five-bit quants of byte j.
fn five_bits(byte: u8, high: u32, j: usize) -> (f32, f32) {
    let bit = |at: usize| ((high >> at & 1) as u8) << 4;
    (f32::from(byte & 15 | bit(j)), f32::from(byte >> 4 | bit(j + 16)))
}

/// `w = d * (q - 16)`: d F16, 32 fifth bits, 16 bytes of nibbles.
pub fn q5_0(block: &[u8; 22], out: &mut [f32; BLOCK]) {
    let (d, high) = (half_at(block, 0), high_bits(block, 2));
    for (j, &b) in block[6..].iter().enumerate() {
        let (lo, hi) = five_bits(b, high, j);
        out[j] = (lo - 16.0) * d;
        out[j + 16] = (hi - 16.0) * d;
    }
}

/// `w = d * q + m`: d and m F16, 32 fifth bits, 16 bytes of nibbles.
pub fn q5_1(block: &[u8; 24], out: &mut [f32; BLOCK]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), high_bits(block, 4));
    for (j, &b) in block[8..].iter().enumerate() {
        let (lo, hi) = five_bits(b, high, j);
        out[j] = lo * d + m;
        out[j + 16] = hi * d + m;
    }
}
