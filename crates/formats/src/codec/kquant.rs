//! ggml's super-blocks of 256 weights. Layouts: `block_q4_K`, `block_q5_K`, `block_q6_K` in ggml-common.h.
//!
//! Q4_K and Q5_K: eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum, which F16 `d` and `dmin`
//! multiply: `w = (d * sc) * q - dmin * m`. Q6_K: sixteen sub-blocks of 16 with a signed 8-bit scale:
//! `w = (d * sc) * (q - 32)`.

use super::ggml::half_at;

/// Weights of one super-block.
pub const SUPER: usize = 256;

/// Scale and minimum of sub-block `j` of a Q4_K or Q5_K block, 6 bits each, out of its 12 bytes at byte 4.
///
/// The first four of each are the low six bits of bytes j and j + 4. The last four have their low nibbles in byte
/// j + 4 (scale low half, minimum high half) and their upper two bits on top of bytes j - 4 and j.
pub fn scale_and_min(block: &[u8], j: usize) -> (u8, u8) {
    let packed = &block[4..16];
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | (packed[j - 4] >> 6) << 4, low >> 4 | (packed[j] >> 6) << 4)
    }
}

/// Codes of a Q4_K block, 0 to 15: 32 bytes of nibbles hold sub-blocks 2i (low) and 2i + 1 (high).
pub fn q4_k_codes(block: &[u8; 144]) -> [u8; SUPER] {
    let mut codes = [0; SUPER];
    for (j, sub) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (q, &b) in sub.iter_mut().zip(&block[16 + j / 2 * 32..][..32]) {
            *q = b >> (j % 2 * 4) & 15;
        }
    }
    codes
}

/// Codes of a Q5_K block, 0 to 31: the nibbles as in Q4_K, bit j of byte l of the fifth bits belongs to weight l of
/// sub-block j.
pub fn q5_k_codes(block: &[u8; 176]) -> [u8; SUPER] {
    let mut codes = [0; SUPER];
    let high = &block[16..48];
    for (j, sub) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for ((q, &b), &h) in sub.iter_mut().zip(&block[48 + j / 2 * 32..][..32]).zip(high) {
            *q = b >> (j % 2 * 4) & 15 | (h >> j & 1) << 4;
        }
    }
    codes
}

/// Codes of a Q6_K block, 0 to 63.
///
/// Each half of 128 weights is four runs of 32: run r takes its nibbles from byte 32 * (r % 2) + l of the half's 64
/// (low for r < 2, high after) and its upper bits from bits 2r of byte l of the half's 32.
pub fn q6_k_codes(block: &[u8; 210]) -> [u8; SUPER] {
    let mut codes = [0; SUPER];
    for (at, run) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, r) = (at / 4, at % 4);
        let low = &block[half * 64 + r % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for ((q, &low), &high) in run.iter_mut().zip(low).zip(high) {
            *q = low >> (r / 2 * 4) & 15 | (high >> (2 * r) & 3) << 4;
        }
    }
    codes
}

/// The signed scale of group `g` of 16 weights of a Q6_K block.
pub fn q6_k_scale(block: &[u8], g: usize) -> i8 {
    block[192 + g].cast_signed()
}

/// `codes` of 32 a sub-block under the scales and minimums of `block`.
fn with_minimums(block: &[u8], codes: &[u8; SUPER], out: &mut [f32; SUPER]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let subs = out.as_chunks_mut::<32>().0.iter_mut().zip(codes.as_chunks::<32>().0);
    for (j, (sub, codes)) in subs.enumerate() {
        let (sc, m) = scale_and_min(block, j);
        let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
        for (o, &q) in sub.iter_mut().zip(codes) {
            *o = scale * f32::from(q) - min;
        }
    }
}

/// d, dmin, 12 bytes of scales, 128 bytes of nibbles.
pub fn q4_k(block: &[u8; 144], out: &mut [f32; SUPER]) {
    with_minimums(block, &q4_k_codes(block), out);
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles.
pub fn q5_k(block: &[u8; 176], out: &mut [f32; SUPER]) {
    with_minimums(block, &q5_k_codes(block), out);
}

/// 128 bytes of low nibbles, 64 bytes of upper two bits, 16 signed scales, d.
pub fn q6_k(block: &[u8; 210], out: &mut [f32; SUPER]) {
    let (d, codes) = (half_at(block, 208), q6_k_codes(block));
    let groups = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
    for (g, (group, codes)) in groups.enumerate() {
        let scale = d * f32::from(q6_k_scale(block, g));
        for (o, &q) in group.iter_mut().zip(codes) {
            *o = scale * (f32::from(q) - 32.0);
        }
    }
}
