//! Arithmetic classes: what a plan promises about the numbers it computes with.

use serde::{Deserialize, Serialize};
use std::fmt;
use tare_core::{DType, Fault, Format};

/// What a linear operator does to its input before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Activations stay F32.
    F32,
    /// Activations are rounded to BF16 (nearest, ties to even); products and sums are F32.
    Bf16,
    /// Activations become 8-bit integers, 32 of a row under one scale; products and the sums of a group are integers: see
    /// [`crate::reference::int8`].
    Int8,
    /// Activations are rounded to BF16 and become 15-bit integers, 32 of a row under one scale; products and the sums of a
    /// group are integers: see [`crate::reference::int16`].
    Int15,
}

impl Rounding {
    /// Those that leave numbers in floating point, in which every weight format can be multiplied.
    pub const FLOATING: &'static [Rounding] = &[Rounding::F32, Rounding::Bf16];
    /// All of them.
    pub const ALL: &'static [Rounding] = &[Rounding::F32, Rounding::Bf16, Rounding::Int8, Rounding::Int15];

    /// Whether activations become integers, which meet the codes of packed weights and no others.
    pub const fn is_integer(self) -> bool {
        matches!(self, Rounding::Int8 | Rounding::Int15)
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rounding::F32 => "f32",
            Rounding::Bf16 => "bf16",
            Rounding::Int8 => "int8",
            Rounding::Int15 => "int15",
        })
    }
}

/// In which order sums are made: what a class promises, and what a kernel keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The order of [`crate::reference`]: the same bits from every kernel.
    Reference,
    /// Whatever suits the kernel: close to the reference, within limits of its own. The same call still gives the same
    /// bits every time.
    Free,
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
    /// The order that its kernels must keep.
    pub order: Order,
    /// What it means, for people.
    pub summary: &'static str,
}

/// The classes that are built, in the order they are listed to people.
pub const CLASSES: [Class; 11] = [
    Class {
        name: "f32",
        rounding: Rounding::F32,
        kv: DType::F32,
        order: Order::Reference,
        summary: "weights dequantized exactly, activations, sums and KV in F32",
    },
    Class {
        name: "bf16",
        rounding: Rounding::Bf16,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "BF16 weights, activations and KV, F32 sums",
    },
    Class {
        name: "w4a16",
        rounding: Rounding::F32,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 4 or 5 bits, activations F32, F32 sums, KV BF16",
    },
    Class {
        name: "w8a16",
        rounding: Rounding::F32,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 6 or 8 bits, activations F32, F32 sums, KV BF16",
    },
    Class {
        name: "w4a8",
        rounding: Rounding::Int8,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 4 or 5 bits, activations in 8 bits by 32, integer sums in a group, KV BF16",
    },
    Class {
        name: "w8a8",
        rounding: Rounding::Int8,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 6 or 8 bits, activations in 8 bits by 32, integer sums in a group, KV BF16",
    },
    Class {
        name: "w4a15",
        rounding: Rounding::Int15,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 4 or 5 bits, activations in 15 bits by 32, integer sums in a group, KV BF16",
    },
    Class {
        name: "w8a15",
        rounding: Rounding::Int15,
        kv: DType::BF16,
        order: Order::Reference,
        summary: "weights stay packed in 6 or 8 bits, activations in 15 bits by 32, integer sums in a group, KV BF16",
    },
    Class {
        name: "bf16-free",
        rounding: Rounding::Bf16,
        kv: DType::BF16,
        order: Order::Free,
        summary: "BF16 weights, activations and KV, F32 sums in any order",
    },
    Class {
        name: "w4a16-free",
        rounding: Rounding::Bf16,
        kv: DType::BF16,
        order: Order::Free,
        summary: "weights stay packed in 4 or 5 bits, activations and KV BF16, F32 sums in any order",
    },
    Class {
        name: "w8a16-free",
        rounding: Rounding::Bf16,
        kv: DType::BF16,
        order: Order::Free,
        summary: "weights stay packed in 6 or 8 bits, activations and KV BF16, F32 sums in any order",
    },
];

/// What the name of a class of [`Order::Free`] adds to that of the class of the same weights.
const FREE: &str = "-free";
/// How the names of classes end whose activations become integers, and those of the classes of the same weights without.
const INTEGER_ACTIVATIONS: [&str; 2] = ["a8", "a15"];
const NO_INTEGERS: &str = "a16";

impl Class {
    /// The class of that name.
    ///
    /// # Errors
    /// When there is none; classes that are not built yet are told apart from typing errors.
    pub fn by_name(name: &str) -> Result<Self, Fault> {
        if let Some(c) = CLASSES.iter().find(|c| c.name == name) {
            return Ok(*c);
        }
        let names: Vec<&str> = CLASSES.iter().map(|c| c.name).collect();
        let found = match name {
            n if n.ends_with("-kv8") => format!("`{name}`, which is not built yet (8-bit KV cache)"),
            _ => format!("`{name}`"),
        };
        Err(Fault::new("class", format!("one of {}", names.join(", ")), found))
    }

    /// The class of the same weights in the reference's order, activations not in integers: every backend has kernels for it.
    pub fn plain(self) -> Self {
        let ordered = self.name.strip_suffix(FREE).unwrap_or(self.name);
        let weights = INTEGER_ACTIVATIONS.iter().find_map(|ending| ordered.strip_suffix(ending));
        let name = weights.map_or_else(|| ordered.to_string(), |weights| format!("{weights}{NO_INTEGERS}"));
        CLASSES.into_iter().find(|c| c.name == name).unwrap_or(self)
    }

    /// The class of the same packed weights with activations in integers of 15 bits by 32, in which an answer depends on
    /// its request alone; none where weights are not packed.
    pub fn in_fifteen_bits(self) -> Option<Self> {
        CLASSES.into_iter().find(|c| c.rounding == Rounding::Int15 && c.plain() == self.plain())
    }

    /// What an answer may depend on, to its last bits, beside its request: nothing in the classes in the reference's order,
    /// which batch, chunks, pages, threads and instruction set cannot change.
    pub fn depends_on(self) -> Option<&'static str> {
        match self.order {
            Order::Reference => None,
            Order::Free => {
                Some("how many rows travel with it, its chunks, the threads or blocks that share it, and the kernels")
            }
        }
    }

    /// The same arithmetic in the reference's order of sums: by what a class in any order is judged.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { order: Order::Reference, ..self }
    }

    /// Whether a kernel that adds in `order` may compute in this class; the reason when not.
    ///
    /// # Errors
    /// Why not.
    pub fn allows(self, order: Order) -> Result<(), String> {
        match (self.order, order) {
            (Order::Reference, Order::Free) => {
                Err(format!("adds in an order of its own; class {} does not", self.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether a linear weight in `format` may be computed with in this class; the reason when not.
    pub fn admits(self, format: Format) -> Result<(), String> {
        let ok = match self.plain().name {
            "f32" => true,
            "bf16" => format == Format::BF16,
            _ => format.value_bits() <= 8,
        };
        if ok { Ok(()) } else { Err(format!("class {} does not compute with {format} weights", self.name)) }
    }

    /// The plain class of a model whose widest-used projection format is `format`.
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
        assert!(Class::by_name("w4a8-kv8").unwrap_err().to_string().contains("not built yet"));
        assert!(Class::by_name("fp8").unwrap_err().to_string().contains("one of f32"));
        assert!(Class::by_name("bf16").unwrap().admits(Format::Q4_0).is_err());
    }

    #[test]
    fn a_free_class_is_that_of_the_same_weights_in_any_order() {
        for free in CLASSES.into_iter().filter(|c| c.order == Order::Free) {
            let ordered = free.plain();
            assert_eq!((ordered.order, ordered.kv), (Order::Reference, free.kv), "{}", free.name);
            for f in Format::ALL {
                assert_eq!(free.admits(f).is_ok(), ordered.admits(f).is_ok(), "{} {f}", free.name);
            }
            assert!(free.allows(Order::Free).is_ok() && free.allows(Order::Reference).is_ok());
            assert!(ordered.allows(Order::Free).unwrap_err().contains(ordered.name));
            let judge = free.in_order();
            assert_eq!((judge.rounding, judge.kv, judge.name), (free.rounding, free.kv, free.name));
            assert!(judge.allows(Order::Free).is_err());
        }
    }

    #[test]
    fn answers_depend_on_their_request_alone_unless_sums_have_any_order() {
        for class in CLASSES {
            assert_eq!(class.depends_on().is_some(), class.order == Order::Free, "{}", class.name);
            assert_eq!(class.plain().depends_on(), None, "{}: there is one without", class.name);
        }
    }

    #[test]
    fn integer_activations_are_for_packed_weights_alone() {
        let eight = [("w4a8", "w4a16"), ("w8a8", "w8a16")].map(|names| (names, Rounding::Int8));
        let fifteen = [("w4a15", "w4a16"), ("w8a15", "w8a16")].map(|names| (names, Rounding::Int15));
        for ((name, plain), rounding) in eight.into_iter().chain(fifteen) {
            let class = Class::by_name(name).unwrap();
            assert_eq!((class.plain().name, class.rounding), (plain, rounding));
            assert!(class.admits(Format::Q6K).is_ok() && class.admits(Format::BF16).is_err());
        }
        assert_eq!(Class::by_name("bf16").unwrap().plain().name, "bf16");
        let fifteen = |name: &str| Class::by_name(name).unwrap().in_fifteen_bits().map(|c| c.name);
        assert_eq!(["w4a16", "w4a16-free", "w4a8", "w4a15"].map(fifteen), [Some("w4a15"); 4]);
        assert_eq!(["w8a16", "bf16", "f32"].map(fifteen), [Some("w8a15"), None, None]);
    }
}
