//! Golden tensors: a safetensors file read whole, given out by name and type.

use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// An element type that a golden tensor can be read as.
pub trait Element: Sized {
    /// The names that safetensors files give to this type.
    const DTYPES: &'static [Dtype];
    /// Elements from little-endian bytes.
    fn from_le(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($t:ty: $($d:ident)|+),+ $(,)?) => {$(
        impl Element for $t {
            const DTYPES: &'static [Dtype] = &[$(Dtype::$d),+];
            fn from_le(bytes: &[u8]) -> Vec<Self> {
                let (parts, rest) = bytes.as_chunks::<{ size_of::<$t>() }>();
                assert!(rest.is_empty(), "{} bytes are no whole number of {}", bytes.len(), stringify!($t));
                parts.iter().map(|b| <$t>::from_le_bytes(*b)).collect()
            }
        }
    )+};
}

element!(f32: F32, f64: F64, u8: U8, u16: U16 | F16 | BF16, u32: U32, i32: I32, i64: I64, u64: U64);

/// A safetensors file in memory.
#[derive(Debug)]
pub struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads the file at `path`.
    ///
    /// # Panics
    /// When it is missing or is no safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_path_buf();
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = Self { path, bytes };
        file.parsed();
        file
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.parsed().names().into_iter().map(str::to_string).collect();
        names.sort();
        names
    }

    /// Shape and elements of one tensor, row-major.
    ///
    /// # Panics
    /// When there is no such tensor or its type is not one of `T::DTYPES`.
    pub fn get<T: Element>(&self, name: &str) -> (Vec<usize>, Vec<T>) {
        let at = self.path.display();
        let parsed = self.parsed();
        let view = parsed.tensor(name).unwrap_or_else(|e| panic!("{at}: {name}: {e}"));
        assert!(
            T::DTYPES.contains(&view.dtype()),
            "{at}: {name}: stored as {:?}, wanted {:?}",
            view.dtype(),
            T::DTYPES
        );
        (view.shape().to_vec(), T::from_le(view.data()))
    }

    /// Shape and elements of an F32 tensor.
    pub fn f32(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        self.get(name)
    }

    /// Shape and elements of an F64 tensor.
    pub fn f64(&self, name: &str) -> (Vec<usize>, Vec<f64>) {
        self.get(name)
    }

    /// Shape and elements of a U8 tensor.
    pub fn u8(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        self.get(name)
    }

    /// Shape and bit patterns of a U16, F16 or BF16 tensor.
    pub fn bits16(&self, name: &str) -> (Vec<usize>, Vec<u16>) {
        self.get(name)
    }

    /// Shape and elements of a U32 tensor.
    pub fn u32(&self, name: &str) -> (Vec<usize>, Vec<u32>) {
        self.get(name)
    }

    /// Shape and elements of an I64 tensor.
    pub fn i64(&self, name: &str) -> (Vec<usize>, Vec<i64>) {
        self.get(name)
    }

    /// Shape, type name as the file gives it (`F32`, `BF16`, `U32`...) and little-endian bytes of any tensor.
    pub fn raw(&self, name: &str) -> (Vec<usize>, String, Vec<u8>) {
        let parsed = self.parsed();
        let view = parsed.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", self.path.display()));
        (view.shape().to_vec(), format!("{:?}", view.dtype()), view.data().to_vec())
    }

    fn parsed(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }
}
