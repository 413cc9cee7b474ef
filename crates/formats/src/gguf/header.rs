//! The head of a GGUF file: version, metadata, tensor descriptions. Tensor data is located but not read.
//!
//! Every length is compared with the bytes that are left before anything of that size is made, so a file cannot
//! make its reader allocate more than a small multiple of itself.

use super::value::{Array, Kind, Value};
use crate::error::FormatError;
use std::collections::HashSet;
use std::ops::Range;
use tare_core::{Blob, Fault, Format};

/// ggml's `GGML_MAX_NAME`.
pub(super) const NAME_LIMIT: usize = 64;
/// Longest metadata key (docs/gguf.md).
const KEY_LIMIT: usize = 65_535;
/// ggml's `GGML_MAX_DIMS`.
const DIMS_LIMIT: usize = 4;
/// Alignment of tensor data when `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: usize = 32;
/// More than this is no alignment but an attempt to move the data about.
const ALIGNMENT_LIMIT: u64 = 1 << 16;

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// How it is packed.
    pub format: Format,
    /// Row-major shape: the file's dimensions in reverse, so that columns come last.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<usize>,
}

/// All that comes before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Metadata in file order, keys distinct.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in file order, which is the order of their data.
    pub tensors: Vec<Tensor>,
}

impl Header {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }
}

/// A place in the file's bytes.
struct Cursor<'a> {
    file: &'a Blob,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8], Fault> {
        match usize::try_from(n) {
            Ok(n) if n <= self.left() => {
                let bytes = &self.file[self.at..self.at + n];
                self.at += n;
                Ok(bytes)
            }
            _ => Err(Fault::new(what, format!("{n} more bytes"), format!("{} at offset {}", self.left(), self.at))
                .remedy("the file is truncated or damaged; fetch it again")),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        let b = self.take(8, what)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    fn string(&mut self, what: &str, limit: usize) -> Result<&'a str, Fault> {
        let len = self.u64(what)?;
        if len > limit as u64 {
            return Err(Fault::new(what, format!("at most {limit} bytes"), len.to_string()));
        }
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| Fault::new(what, "UTF-8", "other bytes"))
    }

    /// A count of things of at least `least` bytes each.
    fn count(&mut self, what: &str, least: usize) -> Result<usize, Fault> {
        let n = self.u64(what)?;
        match usize::try_from(n) {
            Ok(n) if n <= self.left() / least => Ok(n),
            _ => Err(Fault::new(what, format!("at most {} in this file", self.left() / least), n.to_string())),
        }
    }

    fn kind(&mut self, key: &str) -> Result<Kind, Fault> {
        let id = self.u32(key)?;
        Kind::from_id(id).ok_or_else(|| Fault::new(key, "a value type from 0 to 12", id.to_string()))
    }

    fn value(&mut self, key: &str) -> Result<Value, Fault> {
        match self.kind(key)? {
            Kind::String => Ok(Value::String(self.string(key, usize::MAX)?.to_owned())),
            Kind::Array => self.array(key).map(Value::Array),
            kind => {
                let bytes = self.take(kind.scalar_bytes().unwrap_or(0) as u64, key)?;
                Value::scalar(kind, bytes).ok_or_else(|| Fault::new(key, "0 or 1", format!("{bytes:?}")))
            }
        }
    }

    fn array(&mut self, key: &str) -> Result<Array, Fault> {
        let kind = self.kind(key)?;
        if kind == Kind::Array {
            return Err(Fault::new(key, "an array of scalars or strings", "an array of arrays"));
        }
        let count = self.count(key, kind.scalar_bytes().unwrap_or(8))?;
        let start = self.at;
        match kind.scalar_bytes() {
            Some(size) => {
                self.take((count * size) as u64, key)?;
            }
            None => {
                for _ in 0..count {
                    let len = self.u64(key)?;
                    self.take(len, key)?;
                }
            }
        }
        let bytes = self.file.slice(start..self.at).expect("the cursor never leaves the file");
        Ok(Array::new(kind, count, bytes))
    }
}

/// Reads and checks the head of `file`, the whole file's bytes.
///
/// # Errors
/// When it is truncated, of another version, has duplicates, unknown types, or tensors that overlap or lie outside.
pub fn parse(file: &Blob) -> Result<Header, FormatError> {
    let mut c = Cursor { file, at: 0 };
    let magic = c.take(4, "magic")?;
    if magic != b"GGUF" {
        return Err(Fault::new("magic", "GGUF", format!("{:?}", String::from_utf8_lossy(magic))).into());
    }
    let version = c.u32("version")?;
    if !(2..=3).contains(&version) {
        let big = (2..=3).contains(&version.swap_bytes());
        let found = if big { "a big-endian file".into() } else { version.to_string() };
        let fault = Fault::new("version", "2 or 3, little-endian", found);
        return Err(FormatError::Unsupported(fault.remedy("convert the model again with a current tool")));
    }
    // The least description of a tensor: length of the name, dimensions, type, offset; of a value: length, kind, byte.
    let tensors = c.count("tensor count", 8 + 4 + 4 + 8)?;
    let values = c.count("metadata count", 8 + 4 + 1)?;
    let metadata = metadata(&mut c, values)?;
    let alignment = alignment(&metadata)?;
    let described = (0..tensors).map(|_| described(&mut c)).collect::<Result<Vec<_>, _>>()?;
    let start = c.at.checked_next_multiple_of(alignment).filter(|&s| s <= file.len() || described.is_empty());
    let Some(start) = start else {
        return Err(Fault::new("tensor data", "data behind the header", "the end of the file").into());
    };
    let tensors = located(described, (start, alignment, file.len()))?;
    Ok(Header { version, metadata, tensors })
}

fn metadata(c: &mut Cursor<'_>, count: usize) -> Result<Vec<(String, Value)>, FormatError> {
    let mut out: Vec<(String, Value)> = Vec::new();
    let mut seen = HashSet::new();
    for i in 0..count {
        let key = c.string(&format!("metadata key {i}"), KEY_LIMIT)?;
        if !seen.insert(key) {
            return Err(Fault::new(key, "distinct metadata keys", "it twice").into());
        }
        out.push((key.to_owned(), c.value(key)?));
    }
    Ok(out)
}

fn alignment(metadata: &[(String, Value)]) -> Result<usize, FormatError> {
    let key = "general.alignment";
    let Some((_, v)) = metadata.iter().find(|(k, _)| k == key) else { return Ok(DEFAULT_ALIGNMENT) };
    match v.as_u64() {
        Some(n) if n.is_power_of_two() && n <= ALIGNMENT_LIMIT => Ok(n as usize),
        _ => Err(Fault::new(key, format!("a power of two up to {ALIGNMENT_LIMIT}"), v.show()).into()),
    }
}

/// A tensor whose place is still an offset into the data.
struct Described {
    name: String,
    format: Format,
    shape: Vec<usize>,
    offset: u64,
}

fn described(c: &mut Cursor<'_>) -> Result<Described, FormatError> {
    let name = c.string("tensor name", NAME_LIMIT)?.to_owned();
    let dims = c.u32(&name)? as usize;
    if dims == 0 || dims > DIMS_LIMIT {
        return Err(Fault::new(name, format!("1 to {DIMS_LIMIT} dimensions"), dims.to_string()).into());
    }
    let mut shape = Vec::with_capacity(dims);
    for _ in 0..dims {
        let d = c.u64(&name)?;
        match usize::try_from(d) {
            Ok(n) if n > 0 => shape.push(n),
            _ => return Err(Fault::new(name, "dimensions above 0 that fit in memory", d.to_string()).into()),
        }
    }
    shape.reverse();
    let id = c.u32(&name)?;
    let format = format(id).ok_or_else(|| {
        let known = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K";
        FormatError::Unsupported(Fault::new(name.clone(), known, type_name(id)).remedy("requantize the model"))
    })?;
    Ok(Described { name: name.clone(), format, shape, offset: c.u64(&name)? })
}

fn located(described: Vec<Described>, (start, align, end): (usize, usize, usize)) -> Result<Vec<Tensor>, FormatError> {
    let mut names = HashSet::new();
    let mut at = start;
    let mut out = Vec::with_capacity(described.len());
    for d in described {
        if !names.insert(d.name.clone()) {
            return Err(Fault::new(d.name, "distinct tensor names", "it twice").into());
        }
        let (&cols, rows) = d.shape.split_last().expect("at least one dimension");
        if !cols.is_multiple_of(d.format.block_weights()) {
            let expected = format!("columns in multiples of {} ({})", d.format.block_weights(), d.format);
            return Err(Fault::new(d.name, expected, cols.to_string()).into());
        }
        let bytes = d.format.row_bytes(cols).and_then(|row| rows.iter().try_fold(row, |n, &r| n.checked_mul(r)));
        let Some(bytes) = bytes else {
            return Err(Fault::new(d.name, "a shape that fits in memory", format!("{:?}", d.shape)).into());
        };
        let from = usize::try_from(d.offset).ok().and_then(|o| start.checked_add(o));
        let to = from.and_then(|f| f.checked_add(bytes)).filter(|&t| t <= end);
        let (Some(from), Some(to)) = (from, to) else {
            let found = format!("{bytes} bytes at offset {}", d.offset);
            let fault = Fault::new(d.name, format!("data within the {} bytes of the file", end - start), found);
            return Err(fault.remedy("the file is truncated; fetch it again").into());
        };
        if from < at || !(from - start).is_multiple_of(align) {
            let expected = format!("an offset of at least {} in multiples of {align}", at - start);
            return Err(Fault::new(d.name, expected, d.offset.to_string()).into());
        }
        at = to;
        out.push(Tensor { name: d.name, format: d.format, shape: d.shape, range: from..to });
    }
    Ok(out)
}

/// `ggml_type` numbers of the formats of tare.
const TYPES: [(u32, Format); 11] = [
    (0, Format::F32),
    (1, Format::F16),
    (2, Format::Q4_0),
    (3, Format::Q4_1),
    (6, Format::Q5_0),
    (7, Format::Q5_1),
    (8, Format::Q8_0),
    (12, Format::Q4K),
    (13, Format::Q5K),
    (14, Format::Q6K),
    (30, Format::BF16),
];

fn format(id: u32) -> Option<Format> {
    TYPES.iter().find(|(n, _)| *n == id).map(|(_, f)| *f)
}

/// The `ggml_type` number of `format`; `None` for the affine ones.
pub fn type_id(format: Format) -> Option<u32> {
    TYPES.iter().find(|(_, f)| *f == format).map(|(n, _)| *n)
}

/// What ggml calls a type that tare does not read.
fn type_name(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("the unknown type {id}"),
    };
    format!("{name} (type {id})")
}
