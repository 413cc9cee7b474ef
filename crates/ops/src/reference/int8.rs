//! Matrix times vector with activations in 8 bits: integers inside a group, F32 over groups.
//!
//! Each 32 activations of a row, a *block*, become integers `c` of -127 to 127 under one scale `d`. A weight is
//! `(q - center) * s`, or `q * s + b`, with `s` and `b` of its *group*: 16, 32, 64 or 128 of a row's weights, packed as
//! [`tare_formats::codec::quants`] says. A group's sums over the part of it that lies in one block,
//!
//! ```text
//! I = sum of c * (q - center)        S = sum of c
//! ```
//!
//! are exact, so that their order is free. The rest is F32, each step fused and rounded once, in one order: groups
//! ascending, and in a group its blocks ascending,
//!
//! ```text
//! for each group:   u = 0;  for each block:  u = d * I + u        acc = s * u + acc
//!    with a bias:   v = 0;  for each block:  v = d * S + v        acc = b * v + acc
//! ```
//!
//! `v` does not depend on the weights, and no step depends on another output, so that kernels may hold any number of
//! outputs in a register.

use tare_core::Weight;
use tare_formats::codec::quants::{Coding, codes_row, scales_row};

use super::linear::Epilogue;

/// Activations that share a scale.
pub const BLOCK: usize = 32;
/// The largest code.
pub const MOST: f32 = 127.0;
/// A block whose largest number is below this, 2^-119, becomes zeros: its scale would not be a normal number.
pub const LEAST: f32 = f32::from_bits(8 << 23);

/// One block: `x[i]` is about `codes[i] * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// From -127 to 127.
    pub codes: [i8; BLOCK],
    /// 0 or a normal number; infinite or no number when one of x is.
    pub scale: f32,
}

impl Block {
    /// With m the largest size: `scale = m / 127`, `codes = x * (127 / m)`, to the nearest integer, ties to even.
    pub fn of(x: &[f32; BLOCK]) -> Self {
        // Sizes are ordered as the bits of numbers without a sign are; what is no number comes last.
        let most = f32::from_bits(x.iter().fold(0, |m, x| m.max(x.abs().to_bits())));
        if most < LEAST {
            return Self { codes: [0; BLOCK], scale: 0.0 };
        }
        let up = MOST / most;
        Self { codes: x.map(|x| (x * up).round_ties_even() as i8), scale: most / MOST }
    }
}

/// The codes and scales of a row.
///
/// # Panics
/// When the row is no whole number of blocks: the columns of packed formats always are.
pub fn quantize(x: &[f32]) -> Vec<Block> {
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "{} activations are no whole number of blocks of {BLOCK}", x.len());
    blocks.iter().map(Block::of).collect()
}

/// A row of a weight as [`tare_formats::codec::quants`] gives it.
struct Row {
    coding: Coding,
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// `out[t, n] = x[t] * w[n]` as this module says. x [T, k], weight [n, k], out [T, n]
///
/// # Panics
/// When the weight is not in a packed format: [`crate::ForwardPlan::validate`] finds that before anything runs.
pub fn linear(weight: &Weight, x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    let (n, k) = (weight.rows(), weight.cols());
    let coding = Coding::of(weight.format()).expect("weights of 8-bit activations are packed");
    let zeros = || vec![0.0; k / coding.group];
    let mut row = Row { coding, codes: vec![0; k], scales: zeros(), biases: zeros() };
    let x: Vec<Vec<Block>> = x.chunks_exact(k).map(quantize).collect();
    for i in 0..n {
        codes_row(weight, i, &mut row.codes);
        scales_row(weight, i, &mut row.scales, &mut row.biases);
        for (x, out) in x.iter().zip(out.chunks_exact_mut(n)) {
            epilogue.store(i, row.dot(x), &mut out[i]);
        }
    }
}

impl Row {
    fn dot(&self, x: &[Block]) -> f32 {
        let Coding { group, center } = self.coding;
        let center = i32::from(center.unwrap_or(0));
        let mut acc = 0.0f32;
        for (g, codes) in self.codes.chunks_exact(group).enumerate() {
            let (mut u, mut v) = (0.0f32, 0.0f32);
            for (i, part) in codes.chunks(BLOCK).enumerate() {
                let at = g * group + i * BLOCK;
                let block = &x[at / BLOCK];
                let (mut product, mut sum) = (0, 0);
                for (q, c) in part.iter().zip(&block.codes[at % BLOCK..]) {
                    product += (i32::from(*q) - center) * i32::from(*c);
                    sum += i32::from(*c);
                }
                // Both are below 2^24, so that they are F32 numbers.
                u = block.scale.mul_add(product as f32, u);
                v = block.scale.mul_add(sum as f32, v);
            }
            acc = self.scales[g].mul_add(u, acc);
            if self.coding.center.is_none() {
                acc = self.biases[g].mul_add(v, acc);
            }
        }
        acc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::{Blob, Format};

    #[test]
    fn codes_are_rounded_to_even_and_reach_127() {
        let mut x = [0.0; BLOCK];
        (x[0], x[1], x[2], x[3], x[4]) = (-254.0, 1.0, 3.0, 5.1, -0.9);
        let block = Block::of(&x);
        assert_eq!((block.scale, &block.codes[..6]), (2.0, &[-127, 0, 2, 3, 0, 0][..]));
        let tiny = Block::of(&[1e-37; BLOCK]);
        assert_eq!((tiny.scale, tiny.codes), (0.0, [0; BLOCK]));
        let least = Block::of(&[LEAST; BLOCK]);
        assert!(least.scale.is_normal() && least.codes == [127; BLOCK]);
        for most in [LEAST, 0.37, 1.0, 3.3, f32::MAX] {
            assert_eq!(Block::of(&[-most; BLOCK]).codes, [-127; BLOCK], "{most}");
        }
    }

    #[test]
    fn what_is_no_number_is_seen() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = [1.0; BLOCK];
            row[7] = x;
            assert!(!Block::of(&row).scale.is_finite(), "{x}");
        }
    }

    /// One row of Q8_0: two groups, each of one block, with a bias and something to add to.
    #[test]
    fn a_product_by_hand() {
        let mut bytes = Vec::new();
        for (scale, code) in [(half::f16::from_f32(0.5), 2i8), (half::f16::from_f32(-2.0), 1)] {
            bytes.extend(scale.to_le_bytes());
            bytes.extend([code.cast_unsigned(); 32]);
        }
        let weight = Weight::blocks("w", Format::Q8_0, 1, 64, Blob::from_vec(bytes)).unwrap();
        let mut x = [0.0; 64];
        (x[0], x[1], x[32]) = (127.0, 3.0, -254.0);
        let mut out = [10.0];
        linear(&weight, &x, Epilogue { bias: Some(&[0.25]), accumulate: true }, &mut out);
        // 0.5 * 1 * (2 * 130) + -2 * 2 * (1 * -127), then the bias, then what was there.
        assert_eq!(out, [130.0 + 508.0 + 0.25 + 10.0]);
    }
}
