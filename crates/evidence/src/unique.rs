//! JSON in which no object has a key twice.
//!
//! Readers disagree about the value of a key that comes twice: the same bytes would be two records. Where the schema
//! names the fields, serde refuses that by itself; plans, configurations and facts of a host are free JSON.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The value of a text.
///
/// # Errors
/// When it is no JSON, or an object in it has a key twice.
pub(crate) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Unique>(text).map(|u| u.0)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without a key that comes twice")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<Value, E> {
        Number::from_f64(n).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    fn visit_str<E>(self, s: &str) -> Result<Value, E> {
        Ok(s.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some((key, Unique(item))) = entries.next_entry::<String, Unique>()? {
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` twice in one object")));
            }
            out.insert(key, item);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_twice_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"c":2,"a":3}}]"#, r#"{"a":1,"\u0061":2}"#] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("the key `a` twice"), "{text}: {error}");
        }
    }

    #[test]
    fn everything_else_reads_as_before() {
        for text in [r#"{"a":[{"a":null},{"a":true}],"b":-1,"c":18446744073709551615,"d":-0.0,"e":"x"}"#, "[]", "1e-7"]
        {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        assert!(parse("{} {}").is_err() && parse("1e999").is_err());
    }
}
