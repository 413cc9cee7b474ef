//! A measured value, or the reason why there is none. Never zero for "missing".

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A value that a host may not be able to give. In JSON: the value, or `{"unavailable": "why"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    /// The value.
    Available(T),
    /// Why there is none.
    Unavailable {
        /// A sentence for a person.
        why: String,
    },
}

impl<T> Reading<T> {
    /// A missing value.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into() }
    }

    /// The value, if there is one.
    pub fn available(&self) -> Option<&T> {
        match self {
            Self::Available(v) => Some(v),
            Self::Unavailable { .. } => None,
        }
    }

    /// The value by `f`; a missing value stays missing with its reason.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Available(v) => Reading::Available(f(v)),
            Self::Unavailable { why } => Reading::Unavailable { why },
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(r: Result<T, E>) -> Self {
        match r {
            Ok(v) => Self::Available(v),
            Err(e) => Self::unavailable(e.to_string()),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available(v) => v.fmt(f),
            Self::Unavailable { why } => write!(f, "unavailable: {why}"),
        }
    }
}

impl<T: Serialize> Serialize for Reading<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Available(v) => v.serialize(s),
            Self::Unavailable { why } => {
                use serde::ser::SerializeMap;
                let mut m = s.serialize_map(Some(1))?;
                m.serialize_entry("unavailable", why)?;
                m.end()
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Missing {
    unavailable: String,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Reading<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            Missing(Missing),
            Value(T),
        }
        Ok(match Either::<T>::deserialize(d)? {
            Either::Missing(m) => Self::unavailable(m.unavailable),
            Either::Value(v) => Self::Available(v),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_is_written_with_its_reason_and_read_back() {
        let r: Reading<u64> = Reading::unavailable("no counter on this host");
        let text = serde_json::to_string(&r).unwrap();
        assert_eq!(text, r#"{"unavailable":"no counter on this host"}"#);
        assert_eq!(serde_json::from_str::<Reading<u64>>(&text).unwrap(), r);
        assert_eq!(serde_json::from_str::<Reading<u64>>("7").unwrap(), Reading::Available(7));
    }
}
