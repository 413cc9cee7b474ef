//! Bytes that note what is given back of them.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tare_core::Source;

/// A source of bytes that notes what it is asked to give back.
#[derive(Debug)]
pub struct Noting {
    bytes: Vec<u8>,
    given: Mutex<Vec<Range<usize>>>,
}

impl Noting {
    /// Of `bytes`, with nothing given back.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, given: Mutex::default() }
    }

    /// What was given back since the last time that somebody asked, in order.
    pub fn take(&self) -> Vec<Range<usize>> {
        std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for Noting {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn unload(&self, range: Range<usize>) {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).push(range);
    }
}
