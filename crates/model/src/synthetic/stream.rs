//! Random words that are a function of seed, name and index: any part of a tensor can be made alone, on any host.

/// The words of one tensor, or of its scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of `name` under `seed`.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        Self { key: mix(fnv1a(name.as_bytes()) ^ mix(seed)) }
    }

    /// Word `index`: SplitMix64 (Steele, Lea and Flood, 2014) jumped to that index.
    pub(super) fn word(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Fills `out` with words from `first` on, little-endian. Its length is a multiple of 8.
    pub(super) fn fill(self, first: u64, out: &mut [u8]) {
        for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *eight = self.word(first + i as u64).to_le_bytes();
        }
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// FNV-1a of 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3))
}
