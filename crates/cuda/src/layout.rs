//! How a matrix lies in device memory: in the order in which half-warps read it.
//!
//! Rows are padded with zeros to chunks of 128 columns. Lane `l` of a half-warp owns columns `16 j + l` of a chunk and
//! finds its eight elements side by side, so that it loads them at once and neighbouring lanes load neighbouring bytes.
//! Five- and six-bit quants are kept in 8 bits, and the scales of super-blocks as the F32 products that the codecs form.

use std::fmt;
use std::ops::Range;

use tare_core::{AffineBits, DType, Format, Weight, WeightData};

use crate::quants;

/// Columns of a chunk.
pub(crate) const CHUNK: usize = 128;
/// Lanes of a half-warp.
pub(crate) const LANES: usize = 16;
/// Elements of one lane in a chunk.
const EACH: usize = CHUNK / LANES;

/// What the kernels of a format are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of an element or quant as it is kept: 32, 16, 8 or 4.
    pub(crate) bits: usize,
    /// 1 F32, 2 F16, 3 BF16; 0 for quants with scales.
    pub(crate) plain: u32,
    /// Columns that share a scale; a whole chunk for plain formats.
    pub(crate) group: usize,
    /// Subtracted from a quant before it is multiplied.
    pub(crate) centre: u32,
    /// Whether a bias is added after that.
    pub(crate) biased: bool,
}

impl Layout {
    /// The layout of a format.
    pub(crate) const fn of(format: Format) -> Self {
        match format {
            Format::F32 => Self::plain(32, 1),
            Format::F16 => Self::plain(16, 2),
            Format::BF16 => Self::plain(16, 3),
            Format::Q8_0 => Self::centred(8, 32, 128),
            Format::Q4_0 => Self::centred(4, 32, 8),
            Format::Q5_0 => Self::centred(8, 32, 16),
            Format::Q6K => Self::centred(8, 16, 32),
            Format::Q4_1 | Format::Q4K => Self::biased(4, 32),
            Format::Q5_1 | Format::Q5K => Self::biased(8, 32),
            Format::Affine { bits, group } => Self::biased(bits.bits(), group as usize),
        }
    }

    const fn plain(bits: usize, plain: u32) -> Self {
        Self { bits, plain, group: CHUNK, centre: 0, biased: false }
    }

    const fn centred(bits: usize, group: usize, centre: u32) -> Self {
        Self { bits, plain: 0, group, centre, biased: false }
    }

    const fn biased(bits: usize, group: usize) -> Self {
        Self { bits, plain: 0, group, centre: 0, biased: true }
    }

    /// Whether `gemv.cu` multiplies it: elements that are BF16, or quants in groups of at least two columns of a lane.
    pub(crate) const fn on_tensor_cores(&self) -> bool {
        self.plain == 3 || (self.plain == 0 && self.group >= 2 * LANES)
    }

    /// What `matrix.cuh` wants defined.
    pub(crate) fn macros(&self) -> String {
        let Self { bits, plain, group, centre, biased } = self;
        format!(
            "#define QUANT_BITS {bits}\n#define PLAIN {plain}\n#define GROUP {group}\n#define CENTRE {centre}\n\
             #define BIASED {}\n",
            u32::from(*biased)
        )
    }

    /// Bytes that a matrix takes: quants, scales, biases.
    pub(crate) fn sizes(&self, weight: &Weight) -> [usize; 3] {
        self.row_sizes(weight).map(|n| n * weight.rows())
    }

    fn row_sizes(&self, weight: &Weight) -> [usize; 3] {
        let cols = chunks(weight.cols()) * CHUNK;
        let scales = if self.plain == 0 { cols / self.group * scale_dtype(weight).bytes() } else { 0 };
        [cols * self.bits / 8, scales, if self.biased { scales } else { 0 }]
    }

    /// Packs some rows of `weight`: quants, scales and biases as [`Layout::sizes`] counts them.
    pub(crate) fn pack(&self, weight: &Weight, rows: Range<usize>) -> [Vec<u8>; 3] {
        let sizes = self.row_sizes(weight);
        let mut out = sizes.map(|n| vec![0; n * rows.len()]);
        let mut row = quants::Row::new(weight);
        for (i, r) in rows.enumerate() {
            let [q, s, b] = &mut out;
            let part = |v: &'_ Vec<u8>, n: usize| (i * n).min(v.len())..((i + 1) * n).min(v.len());
            let (at_q, at_s, at_b) = (part(q, sizes[0]), part(s, sizes[1]), part(b, sizes[2]));
            if self.plain == 0 {
                row.read(weight, r);
                self.place_quants(&row.quants, &mut q[at_q]);
                s[at_s][..row.scales.len()].copy_from_slice(&row.scales);
                b[at_b].iter_mut().zip(&row.biases).for_each(|(to, from)| *to = *from);
            } else {
                self.place_elements(plain_row(weight, r), &mut q[at_q]);
            }
        }
        out
    }

    /// Four quants of 8 bits to a word, or eight of 4: those of even `j` in its low half, those of odd `j` in its high half.
    fn place_quants(&self, quants: &[u8], out: &mut [u8]) {
        for (k, quant) in quants.iter().enumerate() {
            let (lane, j) = (place(k) / EACH * EACH, place(k) % EACH);
            if self.bits == 4 {
                let nibble = j % 2 * 4 + j / 2;
                out[(lane + nibble) / 2] |= quant << (nibble % 2 * 4);
            } else {
                out[lane + j / 4 * 4 + j % 2 * 2 + j % 4 / 2] = *quant;
            }
        }
    }

    fn place_elements(&self, elements: &[u8], out: &mut [u8]) {
        let size = self.bits / 8;
        for (k, element) in elements.chunks_exact(size).enumerate() {
            out[place(k) * size..][..size].copy_from_slice(element);
        }
    }
}

impl fmt::Display for Layout {
    /// `bf16`, or bits, group and what makes a weight of a quant: `q4g128b` adds a bias, `q8g32c128` has a centre.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.plain, self.biased) {
            (0, true) => write!(f, "q{}g{}b", self.bits, self.group),
            (0, false) => write!(f, "q{}g{}c{}", self.bits, self.group, self.centre),
            (1, _) => f.write_str("f32"),
            (2, _) => f.write_str("f16"),
            _ => f.write_str("bf16"),
        }
    }
}

/// Chunks of a row of `cols` columns.
pub(crate) const fn chunks(cols: usize) -> usize {
    cols.div_ceil(CHUNK)
}

/// Where column `k` of a row lies, counted in elements.
const fn place(k: usize) -> usize {
    (k / CHUNK * LANES + k % LANES) * EACH + k % CHUNK / LANES
}

/// Element type in which the scales of a weight are kept: the file's, or F32 for the products of super-blocks.
pub(crate) fn scale_dtype(weight: &Weight) -> DType {
    match (weight.data(), weight.format()) {
        (WeightData::Affine(a), _) => a.scale_dtype,
        (_, Format::Q4K | Format::Q5K | Format::Q6K) => DType::F32,
        _ => DType::F16,
    }
}

fn plain_row(weight: &Weight, row: usize) -> &[u8] {
    match weight.data() {
        WeightData::Blocks(bytes) => {
            let len = bytes.len() / weight.rows();
            &bytes[row * len..][..len]
        }
        WeightData::Affine(_) => &[],
    }
}

/// Whether a format is kept in more bits than it has: `None` when it is not, else what it costs.
pub(crate) fn wider_than_the_file(format: Format) -> Option<&'static str> {
    match format {
        Format::Q5_0 | Format::Q5_1 => Some("five-bit quants are kept in 8 bits on the device"),
        Format::Q5K | Format::Q6K => {
            Some("five- and six-bit quants are kept in 8 bits and scales in F32 on the device")
        }
        Format::Q4K => Some("the scales of its sub-blocks are kept in F32 on the device"),
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_0 | Format::Q4_0 | Format::Q4_1 => None,
        Format::Affine { bits: AffineBits::Four | AffineBits::Eight, .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_a_place_of_its_own_and_lanes_are_side_by_side() {
        let mut seen: Vec<usize> = (0..3 * CHUNK).map(place).collect();
        assert_eq!((place(0), place(16), place(1), place(128)), (0, 1, 8, 128));
        seen.sort_unstable();
        assert_eq!(seen, (0..3 * CHUNK).collect::<Vec<_>>());
    }

    #[test]
    fn a_format_is_kept_in_at_least_its_own_bits() {
        for f in Format::ALL {
            let l = Layout::of(f);
            assert!(l.bits >= f.value_bits(), "{f}");
            assert!(l.plain > 0 || (CHUNK.is_multiple_of(l.group) && f.block_weights().is_multiple_of(l.group)), "{f}");
            let widened = l.bits > f.value_bits() || f == Format::Q4K;
            assert_eq!(wider_than_the_file(f).is_some(), widened, "{f}");
        }
    }
}
