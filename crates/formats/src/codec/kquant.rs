//! ggml's super-blocks of 256 weights. Layouts: `block_q4_K`, `block_q5_K`, `block_q6_K` in ggml-common.h.
//!
//! Q4_K and Q5_K: eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum, which F16 `d` and `dmin`
//! multiply: `w = (d * sc) * q - dmin * m`. Q6_K: sixteen sub-blocks of 16 with a signed 8-bit scale:
//! `w = (d * sc) * (q - 32)`.

use half::f16;

/// Weights of one super-block.
pub const SUPER: usize = 256;

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scale and minimum of sub-block `j` out of their 12 bytes.
///
/// The first four of each are the low six bits of bytes j and j + 4. The last four have their low nibbles in byte
/// j + 4 (scale low half, minimum high half) and their upper two bits on top of bytes j - 4 and j.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (sc, m) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | (packed[j - 4] >> 6) << 4, low >> 4 | (packed[j] >> 6) << 4)
    };
    (f32::from(sc), f32::from(m))
}

/// d, dmin, 12 bytes of scales, 128 bytes of nibbles: 32 bytes hold sub-blocks 2i (low) and 2i + 1 (high).
pub fn q4_k(block: &[u8; 144], out: &mut [f32; SUPER]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (j, sub) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * sc, dmin * m);
        let quants = &block[16 + j / 2 * 32..][..32];
        for (o, &b) in sub.iter_mut().zip(quants) {
            *o = scale * f32::from(b >> (j % 2 * 4) & 15) - min;
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte l belongs to weight l of sub-block j.
pub fn q5_k(block: &[u8; 176], out: &mut [f32; SUPER]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let high = &block[16..48];
    for (j, sub) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * sc, dmin * m);
        let quants = &block[48 + j / 2 * 32..][..32];
        for ((o, &b), &h) in sub.iter_mut().zip(quants).zip(high) {
            *o = scale * f32::from(b >> (j % 2 * 4) & 15 | (h >> j & 1) << 4) - min;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of upper two bits, 16 signed scales, d.
///
/// Each half of 128 weights is four runs of 32: run r takes its nibbles from byte 32 * (r % 2) + l of the half's 64
/// (low for r < 2, high after) and its upper bits from bits 2r of byte l of the half's 32.
pub fn q6_k(block: &[u8; 210], out: &mut [f32; SUPER]) {
    let d = half_at(block, 208);
    for (at, run) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, r) = (at / 4, at % 4);
        let low = &block[half * 64 + r % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for (l, o) in run.iter_mut().enumerate() {
            let q = low[l] >> (r / 2 * 4) & 15 | (high[l] >> (2 * r) & 3) << 4;
            let scale = f32::from(block[192 + half * 8 + r * 2 + l / 16].cast_signed());
            *o = d * scale * (f32::from(q) - 32.0);
        }
    }
}
