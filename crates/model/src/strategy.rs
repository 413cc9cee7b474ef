//! Strategies: which kernels of an operator a plan considers.

use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use tare_core::Fault;
use tare_ops::{Isa, Variant};

/// The most rows of a bucket that counts as few: up to so many, kernels for few rows are made (a decode step of as many
/// sequences); prompts come in wider ones.
pub const FEW_ROWS: usize = 16;

/// Which kernels of an operator a plan considers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Strategy {
    /// All of them: `auto`.
    Auto,
    /// The one that a person would read first, `readable`: of the lowest level, and of those of that level the one that adds in
    /// the reference's order. On the CPU that is plain Rust, on a device the kernel whose bits are those of the CPU.
    Readable,
    /// Those that need no more than this level: `avx2`.
    UpTo(Isa),
    /// Those whose key starts like this: `linear.q4_0.`.
    Prefix(String),
}

impl Strategy {
    /// Whether it considers `v` by itself; [`Strategy::Readable`] compares kernels, and takes part elsewhere.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn admits(&self, v: &Variant) -> Result<(), String> {
        match self {
            Strategy::UpTo(level) if v.isa > *level => Err(format!("the plan stops at {level}")),
            Strategy::Prefix(p) if !v.key.starts_with(p) => Err(format!("the plan asks for {p}")),
            _ => Ok(()),
        }
    }
}

/// The strategy of an operator in buckets of few rows and in those of many, which are often the same one.
///
/// Written as one word, or as `{ few = "auto", many = "readable" }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByRows {
    /// In buckets of at most [`FEW_ROWS`] rows.
    pub few: Strategy,
    /// In wider ones.
    pub many: Strategy,
}

/// [`Strategy::Auto`] everywhere: that of an operator of which a plan says nothing.
pub(crate) static AUTO: ByRows = ByRows { few: Strategy::Auto, many: Strategy::Auto };

impl ByRows {
    /// The strategy for calls of so many rows at the full bucket.
    pub fn of(&self, rows: usize) -> &Strategy {
        if rows <= FEW_ROWS { &self.few } else { &self.many }
    }

    /// Both.
    pub fn each(&self) -> [&Strategy; 2] {
        [&self.few, &self.many]
    }
}

impl From<Strategy> for ByRows {
    fn from(s: Strategy) -> Self {
        Self { few: s.clone(), many: s }
    }
}

const LEVELS: [Isa; 10] = [
    Isa::Portable,
    Isa::Neon,
    Isa::NeonDotprod,
    Isa::Avx2,
    Isa::Avx512,
    Isa::Avx512Vnni,
    Isa::Avx512Bf16,
    Isa::Amx,
    Isa::Cuda,
    Isa::Hopper,
];

impl TryFrom<String> for Strategy {
    type Error = Fault;
    fn try_from(s: String) -> Result<Self, Fault> {
        match s.as_str() {
            "auto" => return Ok(Self::Auto),
            "readable" => return Ok(Self::Readable),
            _ => {}
        }
        if let Some(level) = LEVELS.into_iter().find(|l| l.name() == s) {
            return Ok(Self::UpTo(level));
        }
        if s.contains('.') {
            return Ok(Self::Prefix(s));
        }
        let levels = LEVELS.map(Isa::name).join(", ");
        let expected = format!("auto, readable, a level ({levels}) or the start of a kernel key");
        Err(Fault::new("strategy", expected, format!("`{s}`")))
    }
}

impl From<Strategy> for String {
    fn from(s: Strategy) -> String {
        match s {
            Strategy::Auto => "auto".into(),
            Strategy::Readable => "readable".into(),
            Strategy::UpTo(level) => level.name().into(),
            Strategy::Prefix(p) => p,
        }
    }
}

/// The written form of [`ByRows`] when its halves differ.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Halves {
    few: Strategy,
    many: Strategy,
}

impl Serialize for ByRows {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.few == self.many {
            return self.few.serialize(s);
        }
        let mut halves = s.serialize_struct("ByRows", 2)?;
        halves.serialize_field("few", &self.few)?;
        halves.serialize_field("many", &self.many)?;
        halves.end()
    }
}

impl<'de> Deserialize<'de> for ByRows {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Word;
        impl<'de> Visitor<'de> for Word {
            type Value = ByRows;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a strategy, or { few = strategy, many = strategy }")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<ByRows, E> {
                Strategy::try_from(s.to_string()).map(ByRows::from).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ByRows, A::Error> {
                let Halves { few, many } = Halves::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ByRows { few, many })
            }
        }
        d.deserialize_any(Word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ByRows, String> {
        #[derive(Debug, Deserialize)]
        struct One {
            linear: ByRows,
        }
        toml::from_str::<One>(text).map(|one| one.linear).map_err(|e| e.to_string())
    }

    #[test]
    fn a_word_is_for_all_rows_and_a_pair_for_few_and_many() {
        let both = read("linear = \"readable\"").unwrap();
        assert_eq!((both.of(1), both.of(4096)), (&Strategy::Readable, &Strategy::Readable));
        let pair = read("linear = { few = \"auto\", many = \"avx2\" }").unwrap();
        assert_eq!(pair.of(FEW_ROWS), &Strategy::Auto);
        assert_eq!(pair.of(FEW_ROWS + 1), &Strategy::UpTo(Isa::Avx2));
        for of in [both, pair] {
            let json = serde_json::to_string(&of).unwrap();
            assert_eq!(serde_json::from_str::<ByRows>(&json).unwrap(), of, "{json}");
        }
    }

    #[test]
    fn what_is_unknown_or_missing_is_refused_by_name() {
        for (text, says) in [
            ("linear = \"fast\"", "found `fast`"),
            ("linear = 3", "a strategy, or { few"),
            ("linear = { few = \"auto\" }", "many"),
            ("linear = { few = \"auto\", many = \"auto\", one = \"auto\" }", "one"),
            ("linear = { few = \"auto\", many = \"slow\" }", "found `slow`"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
