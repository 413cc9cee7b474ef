//! What the arithmetic of another engine is called.

use serde::{Deserialize, Serialize};
use tare_core::Fault;

/// An arithmetic class as an engine's own tables and files declare it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Bits of a weight of the layers, scales included, mean over the matrices.
    pub weight_bits: f64,
    /// Bits of a weight of the output head, scales included.
    pub head_bits: f64,
    /// Bits that a matrix product rounds its activations to.
    pub activation_bits: u32,
    /// Element type of the KV cache.
    pub kv: String,
    /// Type that products are summed in.
    pub sums: String,
}

impl Declared {
    /// The name under which `gates.toml` has limits: `f32`, `w16a16`, `w4a8` and so on; `-kv8` when the cache has 8 bits.
    ///
    /// # Errors
    /// When a width is no number of bits.
    pub fn name(&self) -> Result<String, Fault> {
        let whole = self.weight_bits.floor();
        if !(1.0..=32.0).contains(&whole) || ![8, 16, 32].contains(&self.activation_bits) {
            return Err(Fault::new(
                "class of the peer",
                "1 to 32 weight bits, and activations of 8, 16 or 32 bits",
                format!("{} and {}", self.weight_bits, self.activation_bits),
            ));
        }
        let kv8 = if self.kv.ends_with('8') || self.kv.starts_with("q8") { "-kv8" } else { "" };
        if whole == 32.0 && self.activation_bits == 32 && self.kv == "f32" {
            return Ok("f32".to_string());
        }
        Ok(format!("w{whole}a{}{kv8}", self.activation_bits))
    }
}

impl Declared {
    /// Bytes of an element of the KV cache; none of a type whose elements share bytes.
    pub fn kv_bytes(&self) -> Option<usize> {
        match self.kv.as_str() {
            "f32" => Some(4),
            "f16" | "bf16" => Some(2),
            "u8" | "i8" | "f8" => Some(1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(weight_bits: f64, activation_bits: u32, kv: &str) -> Declared {
        Declared { weight_bits, head_bits: weight_bits, activation_bits, kv: kv.into(), sums: "f32".into() }
    }

    #[test]
    fn names_follow_from_the_widths() {
        for (bits, activations, kv, name) in [
            (4.5, 8, "f16", "w4a8"),
            (8.5, 8, "f16", "w8a8"),
            (8.5, 8, "q8_0", "w8a8-kv8"),
            (8.5, 8, "u8", "w8a8-kv8"),
            (16.0, 16, "f16", "w16a16"),
            (32.0, 32, "f32", "f32"),
            (32.0, 32, "f16", "w32a32"),
        ] {
            assert_eq!(declared(bits, activations, kv).name().unwrap(), name);
        }
        assert!(declared(0.0, 8, "f16").name().is_err());
        assert!(declared(f64::NAN, 8, "f16").name().is_err());
        assert!(declared(4.5, 7, "f16").name().is_err());
    }
}
