//! The safetensors container: a length, a JSON header, then the tensors one after another.

use crate::container::Writer;
use crate::error::FormatError;
use crate::json;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use tare_core::{DType, Fault};

/// The longest header that is read; the format's reference implementation has the same limit.
pub const HEADER_LIMIT: usize = 100_000_000;

/// Most dimensions of a tensor.
const DIMS_LIMIT: usize = 8;

/// One tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<usize>,
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub entries: Vec<Entry>,
    /// The text fields of `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's fields in the order of the text, names distinct.
struct RawHeader {
    entries: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut out = RawHeader { entries: Vec::new(), metadata: BTreeMap::new() };
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("the tensor `{name}` twice")));
                    }
                    if name == "__metadata__" {
                        out.metadata = map.next_value()?;
                    } else {
                        out.entries.push((name, map.next_value()?));
                    }
                }
                Ok(out)
            }
        }
        d.deserialize_map(V)
    }
}

/// Reads and checks the header of `file`, the whole file's bytes; tensor data is not touched.
///
/// The tensors must tile the data exactly: no holes, no overlaps, nothing behind them.
///
/// # Errors
/// When the header is truncated, too long, not of this shape, or does not fit the file.
pub fn parse(file: &[u8]) -> Result<Header, FormatError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(Fault::new("header", "8 bytes of length", format!("a file of {} bytes", file.len())).into());
    };
    let length = u64::from_le_bytes(*length);
    let text = usize::try_from(length).ok().filter(|&n| n <= HEADER_LIMIT).and_then(|n| rest.get(..n));
    let Some(text) = text else {
        let most = rest.len().min(HEADER_LIMIT);
        let fault = Fault::new("header length", format!("at most {most} in this file"), length.to_string());
        return Err(fault.remedy("the file is truncated or is no safetensors file; fetch it again").into());
    };
    let raw: RawHeader = serde_json::from_slice(text)
        .map_err(|e| Fault::new("header", "a JSON object of tensors with distinct names", e.to_string()))?;
    let start = 8 + text.len();
    let mut entries = raw.entries.into_iter().map(|(name, e)| entry(name, e, start)).collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|e| (e.range.start, e.range.end));
    check_tiling(&entries, start, file.len())?;
    Ok(Header { entries, metadata: raw.metadata })
}

fn entry(name: String, raw: RawEntry, start: usize) -> Result<Entry, FormatError> {
    let Some(dtype) = dtype(&raw.dtype) else {
        let known = "F64, F32, F16, BF16, BOOL or an integer type";
        return Err(FormatError::Unsupported(Fault::new(name, known, format!("`{}`", raw.dtype))));
    };
    let fault = |expected: String, found: String| FormatError::from(Fault::new(name.clone(), expected, found));
    if raw.shape.len() > DIMS_LIMIT {
        return Err(fault(format!("at most {DIMS_LIMIT} dimensions"), raw.shape.len().to_string()));
    }
    let shape = raw.shape.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<_>>>();
    let bytes = shape.as_ref().and_then(|s| s.iter().try_fold(dtype.bytes(), |n, &d| n.checked_mul(d)));
    let (Some(shape), Some(bytes)) = (shape, bytes) else {
        return Err(fault("a shape that fits in memory".into(), format!("{:?}", raw.shape)));
    };
    let (from, to) = raw.data_offsets;
    let range = (|| {
        let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
        Some(start.checked_add(from)?..start.checked_add(to)?)
    })();
    match range {
        Some(range) if range.end.checked_sub(range.start) == Some(bytes) => Ok(Entry { name, dtype, shape, range }),
        _ => Err(fault(format!("{bytes} bytes for {} {shape:?}", raw.dtype), format!("the range {from}..{to}"))),
    }
}

fn check_tiling(entries: &[Entry], start: usize, end: usize) -> Result<(), FormatError> {
    let mut at = start;
    for e in entries {
        if e.range.start != at {
            let what = if e.range.start < at { "overlapping the tensor before it" } else { "after a hole" };
            let found = format!("{}, {what}", e.range.start - start);
            return Err(Fault::new(e.name.clone(), format!("data at offset {}", at - start), found).into());
        }
        at = e.range.end;
        if at > end {
            let fault = Fault::new(e.name.clone(), format!("data within {end} bytes"), format!("an end at {at}"));
            return Err(fault.remedy("the file is truncated; fetch it again").into());
        }
    }
    if at == end {
        return Ok(());
    }
    Err(Fault::new("data", format!("a file of {at} bytes"), format!("{end} bytes")).into())
}

const DTYPES: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::I32,
    DType::U64,
    DType::I64,
    DType::Bool,
];

/// A type by its name in the header, which is tare's in capitals.
fn dtype(name: &str) -> Option<DType> {
    DTYPES.into_iter().find(|d| d.name().to_ascii_uppercase() == name)
}

/// `model.safetensors.index.json`: which shard holds which tensor.
///
/// # Errors
/// When the map is missing or a shard is not a plain file name.
pub fn index(bytes: &[u8]) -> Result<BTreeMap<String, String>, FormatError> {
    let map = json::object("index", bytes, HEADER_LIMIT)?;
    let fields = json::Fields::new("", &map);
    let weights = fields.object("weight_map")?;
    let weights = fields.need("weight_map", "an object of tensor names and files", weights)?;
    let mut out = BTreeMap::new();
    for name in weights.names() {
        let file = weights.need(name, "a file name", weights.text(name)?)?;
        if file.contains(['/', '\\']) || !file.ends_with(".safetensors") {
            return Err(weights.fault(name, "a .safetensors file name without folders").into());
        }
        out.insert(name.to_owned(), file.to_owned());
    }
    Ok(out)
}

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

impl TensorPlan {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes() as u64
    }
}

/// Starts a file: the header is written, the data is expected in the order of `tensors`.
///
/// # Errors
/// When a name is taken twice or `out` fails.
pub fn write<W: Write>(out: W, metadata: &[(&str, &str)], tensors: &[TensorPlan]) -> Result<Writer<W>, FormatError> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let fields = metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        header.insert("__metadata__".into(), serde_json::Value::Object(fields));
    }
    let mut at = 0;
    for t in tensors {
        let end = at + t.bytes();
        let dtype = t.dtype.name().to_ascii_uppercase();
        let entry = serde_json::json!({"dtype": dtype, "shape": t.shape, "data_offsets": [at, end]});
        if header.insert(t.name.clone(), entry).is_some() {
            return Err(Fault::new(&t.name, "distinct names", "it twice").into());
        }
        at = end;
    }
    let mut text = serde_json::Value::Object(header).to_string();
    // Data starts at a multiple of 8, as the format's reference implementation has it.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend(text.as_bytes());
    let sizes = tensors.iter().map(TensorPlan::bytes).collect();
    Writer::new(out, &head, sizes, 1).map_err(|e| FormatError::io("safetensors file".as_ref(), "write", e))
}
