//! Matrix times vector with activations in integers: exact inside a group, F32 over groups.
//!
//! Each 32 activations of a row, a *block*, become integers `c` under one scale `d`: [`int8`](super::int8) and
//! [`int16`](super::int16) say which. A weight is `(q - center) * s`, or `q * s + b`, with `s` and `b` of its *group*: 16, 32,
//! 64 or 128 of a row's weights, packed as [`tare_formats::codec::quants`] says. A group's sums over the part of it that lies
//! in one block,
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

/// One block: `x[i]` is about `codes[i] * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block<C> {
    /// Integers.
    pub codes: [C; BLOCK],
    /// 0 or a normal number; infinite or no number when one of x is.
    pub scale: f32,
}

/// Integers that numbers become, block by block.
pub trait Code: Copy + Into<i32> {
    /// The block that 32 numbers become.
    fn block(x: &[f32; BLOCK]) -> Block<Self>;
}

impl<C: Code> Block<C> {
    /// As [`Code::block`].
    pub fn of(x: &[f32; BLOCK]) -> Self {
        C::block(x)
    }
}

/// The largest size among `x`; what is no number counts for more than all that are.
pub(super) fn largest(x: &[f32; BLOCK]) -> f32 {
    // Sizes are ordered as the bits of numbers without a sign are; what is no number comes last.
    f32::from_bits(x.iter().fold(0, |m, x| m.max(x.abs().to_bits())))
}

/// The codes and scales of a row.
fn quantize<C: Code>(x: &[f32]) -> Vec<Block<C>> {
    let (blocks, rest) = x.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "{} activations are no whole number of blocks of {BLOCK}", x.len());
    blocks.iter().map(C::block).collect()
}

/// A row of a weight as [`tare_formats::codec::quants`] gives it.
struct Row {
    coding: Coding,
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

/// `out[t, n] = x[t] * w[n]` as this module says, with activations in `C`. x [T, k], weight [n, k], out [T, n]
///
/// # Panics
/// When the weight is not in a packed format, whose columns are whole numbers of blocks: [`crate::ForwardPlan::validate`]
/// finds that before anything runs.
pub fn linear<C: Code>(weight: &Weight, x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    let (n, k) = (weight.rows(), weight.cols());
    let x: Vec<Vec<Block<C>>> = x.chunks_exact(k).map(quantize).collect();
    let coding = Coding::of(weight.format()).expect("weights that meet integers are packed");
    let zeros = || vec![0.0; k / coding.group];
    let mut row = Row { coding, codes: vec![0; k], scales: zeros(), biases: zeros() };
    for i in 0..n {
        codes_row(weight, i, &mut row.codes);
        scales_row(weight, i, &mut row.scales, &mut row.biases);
        for (x, out) in x.iter().zip(out.chunks_exact_mut(n)) {
            epilogue.store(i, row.dot(x), &mut out[i]);
        }
    }
}

impl Row {
    fn dot<C: Code>(&self, x: &[Block<C>]) -> f32 {
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
                    let c: i32 = (*c).into();
                    product += (i32::from(*q) - center) * c;
                    sum += c;
                }
                // Those of 8-bit integers are below 2^24, F32 numbers; of others the product is rounded, to nearest.
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
