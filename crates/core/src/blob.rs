//! Bytes that somebody else owns: a range of a mapped file or of a buffer, cheap to clone.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The owner of bytes: a memory-mapped file, a `Vec<u8>`, an aligned buffer.
pub type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A range of shared bytes. Cloning copies a pointer, never the bytes.
#[derive(Clone)]
pub struct Blob {
    owner: Owner,
    range: Range<usize>,
}

impl Blob {
    /// All the bytes of `owner`.
    pub fn new(owner: Owner) -> Self {
        let len = (*owner).as_ref().len();
        Self { owner, range: 0..len }
    }

    /// Bytes that live in memory of their own.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self::new(Arc::new(bytes))
    }

    /// The part `range` of this blob, or `None` when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { owner: Arc::clone(&self.owner), range: start..self.range.start + range.end })
    }
}

impl Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_slices_stay_inside() {
        let b = Blob::from_vec((0..10).collect());
        let s = b.slice(2..8).unwrap();
        assert_eq!(&*s, &[2, 3, 4, 5, 6, 7]);
        assert_eq!(&*s.slice(1..3).unwrap(), &[3, 4]);
        assert!(s.slice(0..7).is_none(), "must not reach past the slice into its owner");
        let (from, to) = (3, 2);
        assert!(s.slice(from..to).is_none());
        assert!(b.slice(10..10).unwrap().is_empty());
    }
}
