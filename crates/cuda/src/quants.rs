//! The integers and scales inside packed rows, column by column. Layouts: the head of each `tare_formats::codec` file.

use half::f16;
use tare_core::{AffineBits, Format, Weight, WeightData};

/// One row taken apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    /// One quant a column, not negative: signed ones are moved up by the layout's centre.
    pub(crate) quants: Vec<u8>,
    /// Scales in the element type of [`crate::layout::scale_dtype`].
    pub(crate) scales: Vec<u8>,
    /// Biases alike; empty where the format has none.
    pub(crate) biases: Vec<u8>,
}

impl Row {
    /// Room for rows of `weight`.
    pub(crate) fn new(weight: &Weight) -> Self {
        Self { quants: vec![0; weight.cols()], ..Self::default() }
    }

    /// Takes row `r` of a quantized weight apart.
    pub(crate) fn read(&mut self, weight: &Weight, r: usize) {
        self.scales.clear();
        self.biases.clear();
        match (weight.data(), weight.format()) {
            (WeightData::Affine(a), Format::Affine { bits, group }) => {
                let (cols, group) = (weight.cols(), group as usize);
                let words = cols * bits.bits() / 8;
                let quants = &a.words[r * words..][..words];
                match bits {
                    AffineBits::Eight => self.quants.copy_from_slice(quants),
                    AffineBits::Four => {
                        for (pair, q) in self.quants.as_chunks_mut::<2>().0.iter_mut().zip(quants) {
                            *pair = [q & 15, q >> 4];
                        }
                    }
                }
                let scales = cols / group * a.scale_dtype.bytes();
                self.scales.extend_from_slice(&a.scales[r * scales..][..scales]);
                self.biases.extend_from_slice(&a.biases[r * scales..][..scales]);
            }
            (WeightData::Blocks(bytes), format) => {
                let len = bytes.len() / weight.rows();
                let (size, weights) = (format.block_bytes(), format.block_weights());
                let mut quants = std::mem::take(&mut self.quants);
                for (block, q) in bytes[r * len..][..len].chunks_exact(size).zip(quants.chunks_exact_mut(weights)) {
                    self.block(format, block, q);
                }
                self.quants = quants;
            }
            (WeightData::Affine(_), _) => {}
        }
    }

    fn block(&mut self, format: Format, block: &[u8], q: &mut [u8]) {
        match format {
            Format::Q8_0 => {
                self.scales.extend_from_slice(&block[..2]);
                q.iter_mut().zip(&block[2..]).for_each(|(q, b)| *q = b ^ 128);
            }
            Format::Q4_0 => self.nibbles(block, 2, None, q),
            Format::Q4_1 => self.nibbles(block, 4, None, q),
            Format::Q5_0 => self.nibbles(block, 2, Some(2), q),
            Format::Q5_1 => self.nibbles(block, 4, Some(4), q),
            Format::Q4K => self.sub_blocks(block, None, 16, q),
            Format::Q5K => self.sub_blocks(block, Some(16), 48, q),
            Format::Q6K => self.six_bits(block, q),
            Format::F32 | Format::F16 | Format::BF16 | Format::Affine { .. } => {}
        }
    }

    /// A block of 32: scale, a minimum when `scales` is 4 bytes, fifth bits at `high`, nibbles.
    fn nibbles(&mut self, block: &[u8], scales: usize, high: Option<usize>, q: &mut [u8]) {
        self.scales.extend_from_slice(&block[..2]);
        self.biases.extend_from_slice(&block[2..scales]);
        let bits = high.map_or(0, |at| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]));
        let fifth = |j: usize| ((bits >> j & 1) as u8) << 4;
        let nibbles = &block[high.map_or(scales, |at| at + 4)..];
        for (j, b) in nibbles.iter().enumerate() {
            q[j] = b & 15 | fifth(j);
            q[j + 16] = b >> 4 | fifth(j + 16);
        }
    }

    /// A super-block of eight sub-blocks of 32 with six-bit scales and minimums; fifth bits at `high`.
    fn sub_blocks(&mut self, block: &[u8], high: Option<usize>, nibbles: usize, q: &mut [u8]) {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        let packed = &block[4..16];
        for (j, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (sc, m) = if j < 4 {
                (packed[j] & 63, packed[j + 4] & 63)
            } else {
                let low = packed[j + 4];
                (low & 15 | (packed[j - 4] >> 6) << 4, low >> 4 | (packed[j] >> 6) << 4)
            };
            self.scales.extend((d * f32::from(sc)).to_le_bytes());
            self.biases.extend((-(dmin * f32::from(m))).to_le_bytes());
            for (l, (q, b)) in q.iter_mut().zip(&block[nibbles + j / 2 * 32..]).enumerate() {
                let fifth = high.map_or(0, |at| (block[at + l] >> j & 1) << 4);
                *q = b >> (j % 2 * 4) & 15 | fifth;
            }
        }
    }

    /// A super-block of sixteen sub-blocks of 16 with signed eight-bit scales.
    fn six_bits(&mut self, block: &[u8], q: &mut [u8]) {
        let d = half_at(block, 208);
        for (at, run) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, r) = (at / 4, at % 4);
            for l in 0..2 {
                let scale = f32::from(block[192 + half * 8 + r * 2 + l].cast_signed());
                self.scales.extend((d * scale).to_le_bytes());
            }
            for (l, q) in run.iter_mut().enumerate() {
                let low = block[half * 64 + r % 2 * 32 + l];
                let high = block[128 + half * 32 + l];
                *q = low >> (r / 2 * 4) & 15 | (high >> (2 * r) & 3) << 4;
            }
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
