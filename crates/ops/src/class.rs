//! Arithmetic classes: what a plan promises about the numbers it computes with.

use serde::{Deserialize, Serialize};
use tare_core::{DType, Fault, Format};

/// What a linear operator does to its input before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Activations stay F32.
    F32,
    /// Activations are rounded to BF16 (nearest, ties to even); products and sums are F32.
    Bf16,
}

/// A named promise about weights, activations, sums and KV cache.
///
/// Two timings may only be set against each other as equals when their classes agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// The name in plans, records and on the command line.
    pub name: &'static str,
    /// Activations entering a linear operator.
    pub rounding: Rounding,
    /// Element type of the KV cache: F32 or BF16.
    pub kv: DType,
    /// What it means, for people.
    pub summary: &'static str,
}

/// The classes that are built, in the order they are listed to people.
pub const CLASSES: [Class; 4] = [
    Class {
        name: "f32",
        rounding: Rounding::F32,
        kv: DType::F32,
        summary: "weights dequantized exactly, activations, sums and KV in F32",
    },
    Class {
        name: "bf16",
        rounding: Rounding::Bf16,
        kv: DType::BF16,
        summary: "BF16 weights, activations and KV, F32 sums",
    },
    Class {
        name: "w4a16",
        rounding: Rounding::F32,
        kv: DType::BF16,
        summary: "weights stay packed in 4 or 5 bits, activations F32, F32 sums, KV BF16",
    },
    Class {
        name: "w8a16",
        rounding: Rounding::F32,
        kv: DType::BF16,
        summary: "weights stay packed in 6 or 8 bits, activations F32, F32 sums, KV BF16",
    },
];

impl Class {
    /// The class of that name.
    ///
    /// # Errors
    /// When there is none; the classes that SYSTEM.md names but are not built yet are told apart from typing errors.
    pub fn by_name(name: &str) -> Result<Self, Fault> {
        if let Some(c) = CLASSES.iter().find(|c| c.name == name) {
            return Ok(*c);
        }
        let names: Vec<&str> = CLASSES.iter().map(|c| c.name).collect();
        let found = match name {
            "w4a8" | "w8a8" => format!("`{name}`, which is not built yet (8-bit activations)"),
            n if n.ends_with("-kv8") => format!("`{name}`, which is not built yet (8-bit KV cache)"),
            _ => format!("`{name}`"),
        };
        Err(Fault::new("class", format!("one of {}", names.join(", ")), found))
    }

    /// Whether a linear weight in `format` may be computed with in this class; the reason when not.
    pub fn admits(self, format: Format) -> Result<(), String> {
        let ok = match self.name {
            "f32" => true,
            "bf16" => format == Format::BF16,
            _ => format.value_bits() <= 8,
        };
        if ok { Ok(()) } else { Err(format!("class {} does not compute with {format} weights", self.name)) }
    }

    /// The class that a model whose widest-used projection format is `format` runs in when nobody asks.
    pub fn default_for(format: Format) -> Self {
        let name = match format {
            Format::BF16 => "bf16",
            Format::F32 | Format::F16 => "f32",
            f if f.value_bits() <= 5 => "w4a16",
            _ => "w8a16",
        };
        CLASSES.into_iter().find(|c| c.name == name).unwrap_or(CLASSES[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_class_admits_its_format() {
        for f in Format::ALL {
            assert_eq!(Class::default_for(f).admits(f), Ok(()), "{f}");
        }
    }

    #[test]
    fn unbuilt_classes_are_refused_by_name() {
        assert!(Class::by_name("w4a8").unwrap_err().to_string().contains("not built yet"));
        assert!(Class::by_name("fp8").unwrap_err().to_string().contains("one of f32"));
        assert!(Class::by_name("bf16").unwrap().admits(Format::Q4_0).is_err());
    }
}
