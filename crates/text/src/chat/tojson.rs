//! `tojson` as templates of Hugging Face know it: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Jinja's own `tojson` escapes `<`, `>`, `&` and `'` for HTML; models were trained without that.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// The filter, with the keyword arguments that `apply_chat_template` offers.
pub(super) fn filter(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => match (v.as_usize(), v.as_str()) {
            (Some(n), _) if n <= MAX_INDENT => Some(" ".repeat(n)),
            (_, Some(s)) => Some(s.to_owned()),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: indent {v} is not 0 to 64 or a string"),
                ));
            }
        },
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two strings")),
    };
    let style = Style {
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

/// More spaces than anyone indents by would only be a way to fill memory.
const MAX_INDENT: usize = 64;
/// Nesting beyond this is refused before the stack is.
const MAX_DEPTH: usize = 128;

struct Style {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
}

impl Style {
    fn write(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deep"));
        }
        match v.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(v)),
            ValueKind::String => self.string(out, v.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(out, v, depth)?,
            ValueKind::Map => self.object(out, v, depth)?,
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("tojson: {kind} is not JSON"))),
        }
        Ok(())
    }

    fn list(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in v.try_iter()?.checked() {
            self.next_item(out, &mut empty, depth);
            self.write(out, &item?, depth + 1)?;
        }
        self.close(out, empty, depth, ']');
        Ok(())
    }

    fn object(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = v.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
        if self.sort {
            keys.sort();
        }
        out.push('{');
        let mut empty = true;
        for key in keys {
            self.next_item(out, &mut empty, depth);
            match key.as_str() {
                Some(s) => self.string(out, s),
                None => {
                    let mut spelled = String::new();
                    self.write(&mut spelled, &key, depth + 1)?;
                    self.string(out, &spelled);
                }
            }
            out.push_str(&self.key);
            self.write(out, &v.get_item(&key)?, depth + 1)?;
        }
        self.close(out, empty, depth, '}');
        Ok(())
    }

    fn next_item(&self, out: &mut String, empty: &mut bool, depth: usize) {
        if !std::mem::take(empty) {
            out.push_str(&self.item);
        }
        self.line(out, depth + 1);
    }

    fn close(&self, out: &mut String, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(out, depth);
        }
        out.push(bracket);
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, out: &mut String, s: &str) {
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
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A number as Python's `repr` has it: floats keep their point, exponents have a sign and two digits.
fn number(v: &Value) -> String {
    if v.is_integer() {
        return v.to_string();
    }
    let Ok(x) = f64::try_from(v.clone()) else { return v.to_string() };
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}
