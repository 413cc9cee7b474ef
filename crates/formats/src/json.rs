//! JSON read strictly: duplicate keys are refused, and every field is asked for by name, type and range.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;
use tare_core::Fault;

/// Parses `bytes` of at most `limit` bytes as one JSON object.
///
/// Nesting is limited by `serde_json` (128 levels).
///
/// # Errors
/// When the text is longer, is no JSON object, or a key occurs twice.
pub(crate) fn object(what: &str, bytes: &[u8], limit: usize) -> Result<Map<String, Value>, Fault> {
    if bytes.len() > limit {
        return Err(Fault::new(what, format!("at most {limit} bytes"), bytes.len().to_string()));
    }
    match serde_json::from_slice::<Unique>(bytes) {
        Ok(Unique(Value::Object(map))) => Ok(map),
        Ok(Unique(other)) => Err(Fault::new(what, "a JSON object", kind(&other))),
        Err(e) => Err(Fault::new(what, "JSON with distinct keys", e.to_string())),
    }
}

/// A value whose objects have distinct keys.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        UniqueVisitor.deserialize(d).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> DeserializeSeed<'de> for UniqueVisitor {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }
    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.into()))
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element_seed(UniqueVisitor)? {
            out.push(v);
        }
        Ok(Value::Array(out))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(UniqueVisitor)?;
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` twice")));
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

/// A value as an error message shows it: itself when short, else its kind.
pub(crate) fn kind(v: &Value) -> String {
    let text = v.to_string();
    if text.len() <= 60 {
        return text;
    }
    match v {
        Value::String(s) => format!("a string of {} bytes", s.len()),
        Value::Array(a) => format!("an array of {}", a.len()),
        Value::Object(o) => format!("an object of {} fields", o.len()),
        _ => text.chars().take(60).collect(),
    }
}

/// The fields of an object, read by name. A field that is null counts as absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    place: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of `map`, which errors call `place` (empty for the top level).
    pub(crate) fn new(place: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { place, map }
    }

    /// The full name of `field` in messages.
    pub(crate) fn path(&self, field: &str) -> String {
        if self.place.is_empty() { field.into() } else { format!("{}.{field}", self.place) }
    }

    /// The value of `field`; `None` when absent or null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    /// Whether `field` is there, be it null: some classes take another default for nothing than for null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// Names of the fields that are there and not null.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str())
    }

    /// A fault at `field`, which holds something else than `expected`.
    pub(crate) fn fault(&self, field: &str, expected: impl Into<String>) -> Fault {
        let found = self.map.get(field).map_or_else(|| "nothing".into(), kind);
        Fault::new(self.path(field), expected, found)
    }

    /// An integer from 0 to `max`.
    pub(crate) fn integer(&self, field: &str, max: u64) -> Result<Option<u64>, Fault> {
        let Some(v) = self.get(field) else { return Ok(None) };
        match v.as_u64() {
            Some(n) if n <= max => Ok(Some(n)),
            _ => Err(self.fault(field, format!("an integer from 0 to {max}"))),
        }
    }

    /// A finite number.
    pub(crate) fn number(&self, field: &str) -> Result<Option<f64>, Fault> {
        let Some(v) = self.get(field) else { return Ok(None) };
        v.as_f64().map(Some).ok_or_else(|| self.fault(field, "a number"))
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, field: &str) -> Result<Option<f64>, Fault> {
        match self.number(field)? {
            Some(v) if v <= 0.0 || (v as f32).is_infinite() => Err(self.fault(field, "a number above 0")),
            v => Ok(v),
        }
    }

    /// true or false.
    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, Fault> {
        let Some(v) = self.get(field) else { return Ok(None) };
        v.as_bool().map(Some).ok_or_else(|| self.fault(field, "true or false"))
    }

    /// A string.
    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, Fault> {
        let Some(v) = self.get(field) else { return Ok(None) };
        v.as_str().map(Some).ok_or_else(|| self.fault(field, "a string"))
    }

    /// An object.
    pub(crate) fn object(&self, field: &'a str) -> Result<Option<Fields<'a>>, Fault> {
        let Some(v) = self.get(field) else { return Ok(None) };
        v.as_object().map(|map| Some(Fields { place: field, map })).ok_or_else(|| self.fault(field, "an object"))
    }

    /// What a getter gave, or the fault that the field is missing.
    pub(crate) fn need<T>(&self, field: &str, expected: &str, value: Option<T>) -> Result<T, Fault> {
        value.ok_or_else(|| self.fault(field, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_refused_at_any_depth() {
        let e = object("f", br#"{"a": {"b": 1, "b": 2}}"#, 100).unwrap_err();
        assert!(e.to_string().contains("the key `b` twice"), "{e}");
        assert!(object("f", br#"{"a": [{"b": 1}, {"b": 2}]}"#, 100).is_ok());
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let text = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(object("f", text.as_bytes(), 1 << 20).is_err());
        assert!(object("f", b"{}", 1).is_err());
    }

    #[test]
    fn faults_name_field_expectation_and_finding() {
        let map = object("f", br#"{"n": -1, "x": null}"#, 100).unwrap();
        let f = Fields::new("rope", &map);
        assert_eq!(f.integer("n", 9).unwrap_err().to_string(), "rope.n: expected an integer from 0 to 9, found -1");
        assert_eq!(f.integer("x", 9).unwrap(), None);
    }
}
