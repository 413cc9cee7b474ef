//! Activations in integers of 15 bits, and what is done with them: see [`blocks`].
//!
//! Numbers are rounded to BF16 first, as the classes do that have kernels for this. A block's integers are multiples of one
//! power of two, `d = 2^(e - 13)`, with e the exponent of its largest number. A BF16 number has 8 binary digits: so integers
//! are at most 255 * 64, and a number whose exponent is e - 6 or more is a multiple of d and kept as it is. A smaller one moves
//! by half of d at the most, 2^-14 of the largest.
//!
//! Kernels multiply them in two bytes, `128 * high + low`, each from -127 to 127.

pub use super::blocks::BLOCK;
use super::blocks::{self, Code};
use super::linear::round_bf16;

/// The largest code.
pub const MOST: i16 = 255 << 6;
/// A block whose largest number is below this, 2^-113, becomes zeros: its scale would not be a normal number.
pub const LEAST: f32 = f32::from_bits(14 << 23);

/// One block, of codes from -[`MOST`] to [`MOST`].
pub type Block = blocks::Block<i16>;

impl Code for i16 {
    /// With m the largest size of what is left of x in BF16: `scale = 2^(floor(log2 m) - 13)`, `codes = x / scale`, to the
    /// nearest integer, ties to even; all 0 when m is no finite number.
    fn block(x: &[f32; BLOCK]) -> Block {
        let x = x.map(round_bf16);
        let most = blocks::largest(&x);
        if most < LEAST || !most.is_finite() {
            return Block { codes: [0; BLOCK], scale: if most < LEAST { 0.0 } else { most } };
        }
        let exponent = most.to_bits() >> 23;
        let (scale, up) = (f32::from_bits((exponent - 13) << 23), f32::from_bits((254 + 13 - exponent) << 23));
        Block { codes: x.map(|x| (x * up).round_ties_even() as i16), scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::linear::Epilogue;
    use tare_core::{Blob, Format, Weight};

    #[test]
    fn what_is_near_the_largest_is_kept_as_it_is() {
        let mut x = [0.0; BLOCK];
        // All digits of BF16 at both ends of what is kept, and one below it, half way between two multiples.
        (x[0], x[1], x[2], x[3]) = (1.9921875, -1.9921875 / 64.0, 1.9921875 / 128.0, -0.3);
        let block = Block::of(&x);
        assert_eq!((block.scale, block.codes[0], block.codes[1]), (2f32.powi(-13), MOST, -255));
        assert_eq!(block.codes[2], 128, "127.5, to even");
        assert_eq!(f32::from(block.codes[3]) * block.scale, round_bf16(-0.3));
        for most in [LEAST, 0.37, 1.0, 3.3, 1e38] {
            let block = Block::of(&[-most; BLOCK]);
            assert!(block.scale.is_normal(), "{most}");
            assert_eq!(f32::from(block.codes[9]) * block.scale, round_bf16(-most), "{most}");
        }
        let tiny = Block::of(&[LEAST * 0.99; BLOCK]);
        assert_eq!((tiny.scale, tiny.codes), (0.0, [0; BLOCK]));
    }

    #[test]
    fn what_is_no_number_is_seen() {
        // The last one is finite in F32, and not in BF16.
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let mut row = [1.0; BLOCK];
            row[7] = x;
            let block = Block::of(&row);
            assert!(!block.scale.is_finite() && block.codes == [0; BLOCK], "{x}");
        }
    }

    /// Two groups of Q8_0 with an outlier in one block: what it costs the others is half a step.
    #[test]
    fn an_outlier_costs_half_a_step() {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            bytes.extend(half::f16::from_f32(1.0).to_le_bytes());
            bytes.extend([1u8; 32]);
        }
        let weight = Weight::blocks("w", Format::Q8_0, 1, 64, Blob::from_vec(bytes)).unwrap();
        let mut x = [0.0; 64];
        (x[0], x[1], x[32]) = (1024.0, 0.0390625, 3.0);
        let mut out = [0.0];
        blocks::linear::<i16>(&weight, &x, Epilogue::default(), &mut out);
        assert_eq!(out, [1024.0 + 3.0], "0.039 is less than half of 2^-3");
        x[1] = 0.0703125;
        blocks::linear::<i16>(&weight, &x, Epilogue::default(), &mut out);
        assert_eq!(out, [1024.0 + 0.125 + 3.0]);
    }
}
