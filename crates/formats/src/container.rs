//! Writing a container: a head, then tensors whose sizes the head has announced.

use std::io::{self, Write};

/// Tensors being written one after another, each padded to the alignment of the container.
///
/// Memory use does not grow with the file: bytes of the current tensor may come in any number of pieces.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    align: u64,
    sizes: Vec<u64>,
    current: usize,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes `head`, padded to `align`. `sizes` are the bytes of the tensors to come.
    ///
    /// # Errors
    /// What `out` gives.
    pub fn new(mut out: W, head: &[u8], sizes: Vec<u64>, align: u64) -> io::Result<Self> {
        out.write_all(head)?;
        let mut w = Self { out, align, sizes, current: 0, written: 0 };
        w.pad(head.len() as u64)?;
        w.advance()?;
        Ok(w)
    }

    fn pad(&mut self, len: u64) -> io::Result<()> {
        let n = len.next_multiple_of(self.align) - len;
        self.out.write_all(&vec![0; n as usize])
    }

    /// Steps over tensors that are complete.
    fn advance(&mut self) -> io::Result<()> {
        while self.sizes.get(self.current) == Some(&self.written) {
            self.pad(self.written)?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// The next bytes of the current tensor; a complete one is padded and the next begins.
    ///
    /// # Errors
    /// What the output gives, and `InvalidInput` for more bytes than the tensor has left.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.sizes.get(self.current).map_or(0, |n| n - self.written);
        if bytes.len() as u64 > left {
            let text = format!("{} bytes for tensor {}, which has {left} left", bytes.len(), self.current);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        self.advance()
    }

    /// The output, once all tensors are complete.
    ///
    /// # Errors
    /// `InvalidInput` when bytes of a tensor are missing.
    pub fn finish(self) -> io::Result<W> {
        if self.current == self.sizes.len() {
            return Ok(self.out);
        }
        let text = format!("tensor {} of {} is incomplete", self.current, self.sizes.len());
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_padded_and_must_be_complete() {
        let mut w = Writer::new(Vec::new(), b"head", vec![3, 0, 8], 8).unwrap();
        w.write(b"ab").unwrap();
        assert!(w.write(b"cd").is_err(), "one byte too many");
        w.write(b"c").unwrap();
        w.write(b"01234567").unwrap();
        assert_eq!(w.finish().unwrap(), b"head\0\0\0\0abc\0\0\0\0\x0001234567");
        assert!(Writer::new(Vec::new(), b"", vec![1], 1).unwrap().finish().is_err());
    }
}
