//! Activations in 8 bits, and what is done with them: see [`blocks`].
//!
//! A block's integers are from -127 to 127 under the scale of its largest number. Sums of products inside a block are below
//! 2^24, and so F32 numbers.

pub use super::blocks::BLOCK;
use super::blocks::{self, Code};

/// The largest code.
pub const MOST: f32 = 127.0;
/// A block whose largest number is below this, 2^-119, becomes zeros: its scale would not be a normal number.
pub const LEAST: f32 = f32::from_bits(8 << 23);

/// One block, of codes from -127 to 127.
pub type Block = blocks::Block<i8>;

impl Code for i8 {
    /// With m the largest size: `scale = m / 127`, `codes = x * (127 / m)`, to the nearest integer, ties to even.
    fn block(x: &[f32; BLOCK]) -> Block {
        let most = blocks::largest(x);
        if most < LEAST {
            return Block { codes: [0; BLOCK], scale: 0.0 };
        }
        let up = MOST / most;
        Block { codes: x.map(|x| (x * up).round_ties_even() as i8), scale: most / MOST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::linear::Epilogue;
    use tare_core::{Blob, Format, Weight};

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
        blocks::linear::<i8>(&weight, &x, Epilogue { bias: Some(&[0.25]), accumulate: true }, &mut out);
        // 0.5 * 1 * (2 * 130) + -2 * 2 * (1 * -127), then the bias, then what was there.
        assert_eq!(out, [130.0 + 508.0 + 0.25 + 10.0]);
    }
}
