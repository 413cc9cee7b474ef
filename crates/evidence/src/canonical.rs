//! Canonical JSON: one text for one value, so that a digest of it means something.
//!
//! The text is the one of Python's `json.dumps(v, sort_keys=True, separators=(",", ":"))`: keys sorted by code point,
//! no spaces, everything outside printable ASCII escaped, floats as their shortest digits that read back the same.
//! A stranger can therefore recompute every digest of a record with five lines of Python.

use serde::Serialize;
use serde_json::{Number, Value};
use tare_core::Fault;
use tare_core::digest::sha256_hex;

/// The canonical text of a value.
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// SHA-256 of the canonical text.
pub fn digest(value: &Value) -> String {
    sha256_hex(text(value).as_bytes())
}

/// The JSON value that a reader of the written file will see.
///
/// It goes through text: an F32 is written with its own shortest digits, while `serde_json::to_value` would widen it
/// to F64 first and give other digits than the file has.
///
/// # Errors
/// When the value has no JSON form.
pub fn value_of<T: Serialize>(value: &T) -> Result<Value, Fault> {
    serde_json::to_string(value)
        .and_then(|s| serde_json::from_str(&s))
        .map_err(|e| Fault::new("canonical JSON", "a value with a JSON form", e.to_string()))
}

/// SHA-256 of the canonical text of anything serializable.
///
/// # Errors
/// As [`value_of`].
pub fn digest_of<T: Serialize>(value: &T) -> Result<String, Fault> {
    Ok(digest(&value_of(value)?))
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(out, n),
        Value::String(s) => write_string(out, s),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            // The map may keep insertion order when another crate of the build asks serde_json for that.
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(k, _)| *k);
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(out, key);
                out.push(':');
                write_value(out, item);
            }
            out.push('}');
        }
    }
}

/// Digits as `serde_json` writes them into the file, spelt as Python's `repr` does.
///
/// Rust's own `{:?}` is no source of digits: where two shortest decimals are equally near it takes the greater one, while
/// `serde_json` and Python take the one with an even last digit.
fn write_number(out: &mut String, n: &Number) {
    let written = n.to_string();
    if n.is_f64() { out.push_str(&respelt(&written)) } else { out.push_str(&written) }
}

/// A float in Python's spelling: positional for exponents from -4 to 15, else `d.ddde+XX`, at least two exponent digits.
fn respelt(written: &str) -> String {
    let (sign, unsigned) = written.strip_prefix('-').map_or(("", written), |rest| ("-", rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    // Power of ten of the first digit that is not 0.
    let leading = (all.len() - digits.len()) as i32;
    let power = exponent.parse::<i32>().unwrap_or(0) + whole.len() as i32 - 1 - leading;
    let digits = digits.trim_end_matches('0');
    let Some((first, rest)) = digits.split_at_checked(1) else { return format!("{sign}0.0") };
    match power {
        -4..0 => format!("{sign}0.{}{digits}", "0".repeat((-power - 1) as usize)),
        0..16 => {
            let places = power as usize + 1;
            let padded = format!("{digits:0<places$}");
            let (whole, fraction) = padded.split_at(places);
            format!("{sign}{whole}.{}", if fraction.is_empty() { "0" } else { fraction })
        }
        _ => {
            let point = if rest.is_empty() { "" } else { "." };
            format!("{sign}{first}{point}{rest}e{}{:02}", if power < 0 { '-' } else { '+' }, power.unsigned_abs())
        }
    }
}

fn write_string(out: &mut String, s: &str) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Right-hand sides printed by CPython 3.11: `json.dumps(json.loads(left), sort_keys=True, separators=(",", ":"))`.
    #[test]
    fn spells_values_as_python_does() {
        let cases = [
            (r#"{"b":1,"a":[true,null,-0.0]}"#, r#"{"a":[true,null,-0.0],"b":1}"#),
            ("[1e22,1E-7,1e16,123456789012345.6,0.0001,0.00001]", "[1e+22,1e-07,1e+16,123456789012345.6,0.0001,1e-05]"),
            ("[18446744073709551615,-9223372036854775808]", "[18446744073709551615,-9223372036854775808]"),
            ("[0.07094192504882813,0.07094192504882812]", "[0.07094192504882812,0.07094192504882812]"),
            ("[5e-324,1.7976931348623157e308]", "[5e-324,1.7976931348623157e+308]"),
            ("\"\u{e9}\u{1f600}\u{7f}\\u0001\\n/\"", r#""\u00e9\ud83d\ude00\u007f\u0001\n/""#),
            ("{\"\u{fb01}\":1,\"\u{1f600}\":2,\"Z\":3}", r#"{"Z":3,"\ufb01":1,"\ud83d\ude00":2}"#),
        ];
        for (left, right) in cases {
            assert_eq!(text(&serde_json::from_str(left).unwrap()), right);
        }
    }

    /// `tests/data/numbers.json` was written by CPython; its first lines say how.
    #[test]
    fn spells_numbers_as_python_does() {
        let table: Value = serde_json::from_str(include_str!("../tests/data/numbers.json")).unwrap();
        let numbers = table["numbers"].as_array().unwrap();
        assert!(numbers.len() > 600, "{}", numbers.len());
        for pair in numbers {
            let bits = u64::from_str_radix(pair[0].as_str().unwrap(), 16).unwrap();
            let (float, repr) = (f64::from_bits(bits), pair[1].as_str().unwrap());
            assert_eq!(text(&serde_json::json!(float)), repr, "{bits:016x}");
            let read: Value = serde_json::from_str(repr).unwrap();
            assert_eq!((read.as_f64().map(f64::to_bits), text(&read)), (Some(bits), repr.to_string()));
        }
    }

    #[test]
    fn f32_keeps_the_digits_of_the_file() {
        assert_eq!(text(&value_of(&[0.1f32]).unwrap()), "[0.1]");
    }

    proptest! {
        #[test]
        fn reads_back_as_the_same_value(f in any::<f64>().prop_filter("finite", |f| f.is_finite()), s in ".*", n: u64) {
            let value = serde_json::json!({ "f": f, "s": s, "n": n });
            let read: Value = serde_json::from_str(&text(&value)).unwrap();
            prop_assert_eq!(&read, &value);
            prop_assert_eq!(digest(&read), digest(&value));
        }
    }
}
