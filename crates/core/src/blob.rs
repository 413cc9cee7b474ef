//! Bytes that somebody else owns: a range of a mapped file, of a buffer, or of what is made when it is looked at. Cheap to
//! clone.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The owner of bytes: a memory-mapped file, a `Vec<u8>`, an aligned buffer.
pub trait Source: Send + Sync {
    /// All of them.
    fn bytes(&self) -> &[u8];

    /// Gives back the memory in which `range` lies, where the bytes can be had again from elsewhere when somebody looks at
    /// them. They stay readable, and the same.
    fn unload(&self, range: Range<usize>);
}

/// Memory of its own: there is nowhere to have it from again.
impl Source for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn unload(&self, _range: Range<usize>) {}
}

/// Bytes that are made when somebody looks at them, and are there for as long as a blob does that has looked.
struct Made {
    len: usize,
    make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    here: Mutex<Weak<Vec<u8>>>,
}

impl Made {
    /// Those that are there, or new ones.
    fn bytes(&self) -> Arc<Vec<u8>> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        here.upgrade().unwrap_or_else(|| {
            let bytes = Arc::new((self.make)());
            assert_eq!(bytes.len(), self.len, "bytes that were announced and bytes that were made");
            *here = Arc::downgrade(&bytes);
            bytes
        })
    }
}

#[derive(Clone)]
enum Owner {
    There(Arc<dyn Source>),
    Made {
        made: Arc<Made>,
        /// Filled by the first look, and in clones from then on.
        seen: OnceLock<Arc<Vec<u8>>>,
    },
}

/// A range of shared bytes. Cloning copies a pointer, never the bytes.
#[derive(Clone)]
pub struct Blob {
    owner: Owner,
    range: Range<usize>,
}

impl Blob {
    /// All the bytes of `source`.
    pub fn new(source: Arc<dyn Source>) -> Self {
        let len = source.bytes().len();
        Self { owner: Owner::There(source), range: 0..len }
    }

    /// Bytes that live in memory of their own.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self::new(Arc::new(bytes))
    }

    /// `len` bytes that `make` gives when somebody looks at them, the same at each call. They are in memory while a blob
    /// lives through which they were looked at, or a clone or slice of one that had been.
    ///
    /// Looking at them panics when `make` gives another number.
    pub fn made(len: usize, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        let made = Arc::new(Made { len, make: Box::new(make), here: Mutex::default() });
        Self { owner: Owner::Made { made, seen: OnceLock::new() }, range: 0..len }
    }

    /// How many bytes, without looking at them.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes, unless they would have to be made first.
    pub fn there(&self) -> Option<&[u8]> {
        match &self.owner {
            Owner::There(source) => Some(&source.bytes()[self.range.clone()]),
            Owner::Made { seen, .. } => seen.get().map(|bytes| &bytes[self.range.clone()]),
        }
    }

    /// The part `range` of this blob, or `None` when it does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { owner: self.owner.clone(), range: start..self.range.start + range.end })
    }

    /// Gives back the memory of the part `range` as far as it lies inside, where the bytes can be had again: see
    /// [`Source::unload`].
    pub fn unload(&self, range: Range<usize>) {
        let within = |at: usize| self.range.start + at.min(self.range.len());
        let (from, to) = (within(range.start), within(range.end));
        if let Owner::There(source) = &self.owner
            && from < to
        {
            source.unload(from..to);
        }
    }
}

impl Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::There(source) => &source.bytes()[self.range.clone()],
            Owner::Made { made, seen } => &seen.get_or_init(|| made.bytes())[self.range.clone()],
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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

    #[test]
    fn made_bytes_are_there_while_somebody_looks() {
        let times = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&times);
        let b = Blob::made(10, move || {
            count.fetch_add(1, SeqCst);
            (0..10).collect()
        });
        let (head, tail) = (b.slice(0..4).unwrap(), b.slice(4..10).unwrap());
        assert_eq!((b.len(), tail.len(), times.load(SeqCst)), (10, 6, 0), "lengths need no bytes");
        assert!(head.there().is_none());
        assert_eq!((&*head, &*tail), (&[0, 1, 2, 3][..], &[4, 5, 6, 7, 8, 9][..]));
        assert_eq!((times.load(SeqCst), head.there()), (1, Some(&[0, 1, 2, 3][..])), "both look at the same bytes");
        let again = head.clone();
        assert!(again.there().is_some() && b.clone().there().is_none(), "a clone of one that has not looked has not");
        drop((head, tail));
        assert_eq!(
            (again[3], b.slice(3..4).unwrap()[0], times.load(SeqCst)),
            (3, 3, 1),
            "one that is left has kept them"
        );
        drop(again);
        assert_eq!((b[9], times.load(SeqCst)), (9, 2), "nobody had kept them");
    }
}
