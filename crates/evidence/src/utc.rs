//! A moment in UTC, written as RFC 3339.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use tare_core::Fault;

/// A moment in UTC with whole seconds, such as `2026-03-01T12:00:00Z`.
///
/// The reader of the clock gives it; this crate never asks for the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("format" = "date-time"))]
pub struct Utc(jiff::Timestamp);

impl Utc {
    /// The second of Unix time.
    ///
    /// # Errors
    /// When it lies outside the years -9999 to 9999.
    pub fn from_unix_seconds(seconds: i64) -> Result<Self, Fault> {
        jiff::Timestamp::from_second(seconds)
            .map(Self)
            .map_err(|e| Fault::new("Unix time", "seconds within the years -9999 to 9999", e.to_string()))
    }

    /// Digits only, sortable, good in a file name: `20260301T120000Z`.
    pub fn compact(self) -> String {
        self.to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect()
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Utc {
    type Err = Fault;
    /// Accepts exactly the form that is written, so that a moment has one spelling.
    fn from_str(s: &str) -> Result<Self, Fault> {
        let fault = || Fault::new("time", "UTC to the second such as 2026-03-01T12:00:00Z", format!("`{s}`"));
        let moment: jiff::Timestamp = s.parse().map_err(|_| fault())?;
        let utc = Self(moment);
        if moment.subsec_nanosecond() == 0 && utc.to_string() == s { Ok(utc) } else { Err(fault()) }
    }
}

impl Serialize for Utc {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Utc {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_spelling() {
        let t = Utc::from_unix_seconds(1_772_366_400).unwrap();
        assert_eq!(t.to_string(), "2026-03-01T12:00:00Z");
        assert_eq!(t.compact(), "20260301T120000Z");
        assert_eq!("2026-03-01T12:00:00Z".parse::<Utc>().unwrap(), t);
        for other in ["2026-03-01T12:00:00.5Z", "2026-03-01T13:00:00+01:00", "2026-03-01 12:00:00Z", "soon"] {
            assert!(other.parse::<Utc>().is_err(), "{other}");
        }
    }
}
