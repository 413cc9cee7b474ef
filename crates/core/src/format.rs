//! Weight formats: how the numbers of a matrix are packed in bytes.

use crate::dtype::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bits of a weight in the affine (MLX) format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffineBits {
    /// Two weights a byte, low nibble first.
    Four,
    /// One weight a byte.
    Eight,
}

impl AffineBits {
    /// 4 or 8.
    pub const fn bits(self) -> usize {
        match self {
            AffineBits::Four => 4,
            AffineBits::Eight => 8,
        }
    }
}

/// How a matrix is packed. Block formats follow ggml's layouts; `Affine` follows MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// Blocks of 32 signed bytes and an F16 scale.
    Q8_0,
    /// Blocks of 32 nibbles (value - 8) and an F16 scale.
    Q4_0,
    /// Blocks of 32 nibbles, F16 scale and F16 minimum.
    Q4_1,
    /// Blocks of 32 five-bit values (value - 16) and an F16 scale.
    Q5_0,
    /// Blocks of 32 five-bit values, F16 scale and F16 minimum.
    Q5_1,
    /// Super-blocks of 256 nibbles with 6-bit scales and minimums.
    Q4K,
    /// Super-blocks of 256 five-bit values with 6-bit scales and minimums.
    Q5K,
    /// Super-blocks of 256 six-bit values with 8-bit scales.
    Q6K,
    /// `w = scale * q + bias` per group of a row; words, scales and biases are separate tensors.
    Affine {
        /// Bits of `q`.
        bits: AffineBits,
        /// Weights of one group: 32, 64 or 128.
        group: u16,
    },
}

impl Format {
    /// Every format, with the affine ones spelt out.
    pub const ALL: [Format; 17] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Affine { bits: AffineBits::Four, group: 32 },
        Format::Affine { bits: AffineBits::Four, group: 64 },
        Format::Affine { bits: AffineBits::Four, group: 128 },
        Format::Affine { bits: AffineBits::Eight, group: 32 },
        Format::Affine { bits: AffineBits::Eight, group: 64 },
        Format::Affine { bits: AffineBits::Eight, group: 128 },
    ];

    /// Weights of one block: the columns of a row must be a multiple of it.
    pub const fn block_weights(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 32,
            Format::Q4K | Format::Q5K | Format::Q6K => 256,
            Format::Affine { group, .. } => group as usize,
        }
    }

    /// Bytes of one block, scales included (for `Affine`: with two-byte scale and bias).
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Affine { bits, group } => group as usize * bits.bits() / 8 + 4,
        }
    }

    /// Bytes of one row of `cols` weights, or `None` when `cols` is no multiple of the block.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_weights()) {
            return None;
        }
        (cols / self.block_weights()).checked_mul(self.block_bytes())
    }

    /// Bits a weight, scales included: 4.25 for 4-bit groups of 128.
    pub fn bits_per_weight(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_weights() as f64
    }

    /// Bits of the stored value itself, scales left out: what names the arithmetic class.
    pub const fn value_bits(self) -> usize {
        match self {
            Format::F32 => 32,
            Format::F16 | Format::BF16 => 16,
            Format::Q8_0 => 8,
            Format::Q4_0 | Format::Q4_1 | Format::Q4K => 4,
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => 5,
            Format::Q6K => 6,
            Format::Affine { bits, .. } => bits.bits(),
        }
    }

    /// The element type of an unpacked format.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Format::F32 => Some(DType::F32),
            Format::F16 => Some(DType::F16),
            Format::BF16 => Some(DType::BF16),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
            Format::Q4_1 => "q4_1",
            Format::Q5_0 => "q5_0",
            Format::Q5_1 => "q5_1",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Affine { bits, group } => return write!(f, "w{}g{group}", bits.bits()),
        };
        f.write_str(s)
    }
}

impl FromStr for Format {
    type Err = crate::Fault;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Format::ALL.into_iter().find(|f| f.to_string() == s.to_ascii_lowercase()).ok_or_else(|| {
            let names: Vec<String> = Format::ALL.iter().map(ToString::to_string).collect();
            crate::Fault::new("format", format!("one of {}", names.join(", ")), format!("`{s}`"))
        })
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for f in Format::ALL {
            assert_eq!(f.to_string().parse::<Format>().unwrap(), f);
        }
        assert!("q3_k".parse::<Format>().unwrap_err().to_string().contains("q4_k"));
    }

    #[test]
    fn bits_per_weight_include_scales() {
        assert_eq!(Format::Affine { bits: AffineBits::Four, group: 128 }.bits_per_weight(), 4.25);
        assert_eq!(Format::Q4_0.bits_per_weight(), 4.5);
        assert_eq!(Format::Q6K.bits_per_weight(), 6.5625);
        assert_eq!(Format::Q4_0.row_bytes(33), None);
    }
}
