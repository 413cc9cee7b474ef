//! Metadata values: typed scalars, strings, and arrays that stay where the file has them until they are asked for.

use tare_core::{Blob, Fault};

/// Types of metadata values, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned 8 bits.
    U8,
    /// Signed 8 bits.
    I8,
    /// Unsigned 16 bits.
    U16,
    /// Signed 16 bits.
    I16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 32 bits.
    I32,
    /// Binary32.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// u64 length and UTF-8.
    String,
    /// u32 kind, u64 count and elements.
    Array,
    /// Unsigned 64 bits.
    U64,
    /// Signed 64 bits.
    I64,
    /// Binary64.
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::String,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    /// The kind that the file numbers `id`.
    pub fn from_id(id: u32) -> Option<Kind> {
        Kind::ALL.get(id as usize).copied()
    }

    /// The number of this kind in the file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a scalar; `None` for strings and arrays.
    pub const fn scalar_bytes(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }
}

/// One metadata value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Any unsigned integer, with its kind.
    Unsigned(Kind, u64),
    /// Any signed integer, with its kind.
    Signed(Kind, i64),
    /// Binary32 or binary64, with its kind.
    Float(Kind, f64),
    /// true or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Elements of one kind.
    Array(Array),
}

impl Value {
    /// A u32, the usual integer of metadata.
    pub fn u32(v: u32) -> Self {
        Value::Unsigned(Kind::U32, u64::from(v))
    }

    /// A binary32.
    pub fn f32(v: f32) -> Self {
        Value::Float(Kind::F32, f64::from(v))
    }

    /// Text.
    pub fn text(v: impl Into<String>) -> Self {
        Value::String(v.into())
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Unsigned(k, _) | Value::Signed(k, _) | Value::Float(k, _) => *k,
            Value::Bool(_) => Kind::Bool,
            Value::String(_) => Kind::String,
            Value::Array(_) => Kind::Array,
        }
    }

    /// A scalar of `kind` from its little-endian bytes; `None` for a boolean that is neither 0 nor 1, for a wrong
    /// number of bytes, and for kinds that are no scalars.
    pub fn scalar(kind: Kind, b: &[u8]) -> Option<Value> {
        Some(match kind {
            Kind::U8 | Kind::Bool => {
                let v = u8::from_le_bytes(b.try_into().ok()?);
                match (kind, v) {
                    (Kind::Bool, 0 | 1) => Value::Bool(v == 1),
                    (Kind::Bool, _) => return None,
                    _ => Value::Unsigned(kind, v.into()),
                }
            }
            Kind::U16 => Value::Unsigned(kind, u16::from_le_bytes(b.try_into().ok()?).into()),
            Kind::U32 => Value::Unsigned(kind, u32::from_le_bytes(b.try_into().ok()?).into()),
            Kind::U64 => Value::Unsigned(kind, u64::from_le_bytes(b.try_into().ok()?)),
            Kind::I8 => Value::Signed(kind, i8::from_le_bytes(b.try_into().ok()?).into()),
            Kind::I16 => Value::Signed(kind, i16::from_le_bytes(b.try_into().ok()?).into()),
            Kind::I32 => Value::Signed(kind, i32::from_le_bytes(b.try_into().ok()?).into()),
            Kind::I64 => Value::Signed(kind, i64::from_le_bytes(b.try_into().ok()?)),
            Kind::F32 => Value::Float(kind, f32::from_le_bytes(b.try_into().ok()?).into()),
            Kind::F64 => Value::Float(kind, f64::from_le_bytes(b.try_into().ok()?)),
            Kind::String | Kind::Array => return None,
        })
    }

    /// An integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(_, v) => Some(*v),
            Value::Signed(_, v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// The value as an error message shows it.
    pub fn show(&self) -> String {
        match self {
            Value::Unsigned(_, v) => v.to_string(),
            Value::Signed(_, v) => v.to_string(),
            Value::Float(_, v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(s) if s.len() <= 60 => format!("`{s}`"),
            Value::String(s) => format!("a string of {} bytes", s.len()),
            Value::Array(a) => format!("an array of {} ({:?})", a.count(), a.kind()),
        }
    }

    /// Appends the bytes of the value, without its kind.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Unsigned(k, v) => out.extend(&v.to_le_bytes()[..k.scalar_bytes().unwrap_or(8)]),
            Value::Signed(k, v) => out.extend(&v.to_le_bytes()[..k.scalar_bytes().unwrap_or(8)]),
            Value::Float(Kind::F32, v) => out.extend((*v as f32).to_le_bytes()),
            Value::Float(_, v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(u8::from(*v)),
            Value::String(s) => write_string(s, out),
            Value::Array(a) => {
                out.extend(a.kind.id().to_le_bytes());
                out.extend((a.count as u64).to_le_bytes());
                out.extend_from_slice(&a.bytes);
            }
        }
    }
}

/// Appends a length and the text.
pub fn write_string(s: &str, out: &mut Vec<u8>) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// An array as the file holds it: the bytes of `count` elements of one kind, already checked to be that many.
#[derive(Clone, Debug)]
pub struct Array {
    kind: Kind,
    count: usize,
    bytes: Blob,
}

impl Array {
    /// Checked bytes of `count` elements.
    pub(crate) fn new(kind: Kind, count: usize, bytes: Blob) -> Self {
        Self { kind, count, bytes }
    }

    /// An array of strings.
    pub fn strings<S: AsRef<str>>(items: &[S]) -> Self {
        let mut bytes = Vec::new();
        items.iter().for_each(|s| write_string(s.as_ref(), &mut bytes));
        Self::new(Kind::String, items.len(), Blob::from_vec(bytes))
    }

    /// An array of i32.
    pub fn i32s(items: &[i32]) -> Self {
        let bytes = items.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(Kind::I32, items.len(), Blob::from_vec(bytes))
    }

    /// Elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Their kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The strings, decoded.
    ///
    /// # Errors
    /// When the elements are no strings or one is not UTF-8.
    pub fn to_strings(&self, key: &str) -> Result<Vec<String>, Fault> {
        if self.kind != Kind::String {
            return Err(Fault::new(key, "an array of strings", format!("an array of {:?}", self.kind)));
        }
        let mut rest: &[u8] = &self.bytes;
        let mut out = Vec::with_capacity(self.count);
        while let Some((len, tail)) = rest.split_first_chunk::<8>() {
            let (text, tail) = tail.split_at(u64::from_le_bytes(*len) as usize);
            let text = std::str::from_utf8(text)
                .map_err(|_| Fault::new(key, "UTF-8", format!("other bytes in string {}", out.len())))?;
            out.push(text.to_owned());
            rest = tail;
        }
        Ok(out)
    }

    /// The integers as i32, whatever their width.
    ///
    /// # Errors
    /// When the elements are no integers or one does not fit.
    pub fn to_i32s(&self, key: &str) -> Result<Vec<i32>, Fault> {
        let fault = || Fault::new(key, "an array of 32-bit integers", format!("an array of {:?}", self.kind));
        let size = self.kind.scalar_bytes().ok_or_else(fault)?;
        let int = |b| match Value::scalar(self.kind, b)? {
            Value::Unsigned(_, v) => i32::try_from(v).ok(),
            Value::Signed(_, v) => i32::try_from(v).ok(),
            _ => None,
        };
        self.bytes.chunks_exact(size).map(int).collect::<Option<_>>().ok_or_else(fault)
    }
}
