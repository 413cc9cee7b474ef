//! Which stages must not overlap.

use tare_ops::BufId;

use crate::tiled::Side;

/// Something that stages read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A buffer of the plan.
    Buffer(BufId),
    /// Its rounded copy.
    Rounded(BufId),
    /// Its copy in integers of so many planes.
    Codes(BufId, usize),
    /// Its copy in tiles for one side of a product.
    Tiled(BufId, Side),
    /// The cache of a layer.
    Cache(u32),
    /// Sines and cosines of the step.
    Angles,
    /// Working memory that the attention calls of a step share.
    Scratch,
    /// What the step gives back.
    Output,
}

impl Resource {
    /// Whether it is a copy of `what`: rounded, in integers or in tiles.
    pub fn is_copy_of(self, what: Self) -> bool {
        match (self, what) {
            (Self::Rounded(x) | Self::Codes(x, _) | Self::Tiled(x, _), Self::Buffer(of)) => x == of,
            _ => false,
        }
    }
}

/// What has been read and written since the workers last met.
#[derive(Debug, Default)]
pub struct Order {
    read: Vec<Resource>,
    written: Vec<Resource>,
}

impl Order {
    /// Whether the workers must meet before a stage that reads and writes these; takes note of it.
    pub fn meets(&mut self, reads: &[Resource], writes: &[Resource]) -> bool {
        let touched = |r: &Resource| self.written.contains(r);
        let barrier = reads.iter().any(touched) || writes.iter().any(|w| touched(w) || self.read.contains(w));
        if barrier {
            self.read.clear();
            self.written.clear();
        }
        self.read.extend(reads);
        self.written.extend(writes);
        barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dependent_stages_are_separated() {
        let b = |n| Resource::Buffer(BufId(n));
        let mut order = Order::default();
        assert!(!order.meets(&[], &[b(0)]), "the first stage waits for nobody");
        assert!(order.meets(&[b(0)], &[b(1)]), "reads what was written");
        assert!(!order.meets(&[b(0)], &[b(2)]), "a second reader");
        assert!(order.meets(&[b(3)], &[b(0)]), "writes what is being read");
        assert!(order.meets(&[], &[b(0)]), "writes what was written");
        assert!(!order.meets(&[b(1), b(2)], &[b(4)]), "what was written before the last meeting is settled");
    }
}
