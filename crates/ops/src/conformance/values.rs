//! Numbers for cases: noise from a seed, rows that are hard on arithmetic, and random weights in any format.

use half::{bf16, f16};
use tare_core::{Affine, Blob, DType, Format, Weight};

/// Uniform numbers in [-1, 1) and bytes, a function of the seed (SplitMix64, Steele et al., 2014).
#[derive(Clone, Debug)]
pub(super) struct Noise(u64);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub(super) fn row(&mut self, width: usize) -> Vec<f32> {
        (0..width).map(|_| self.number()).collect()
    }
}

/// What a row of inputs is like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Noise of size 1.
    Plain,
    /// All zero, of both signs.
    Zeros,
    /// Numbers below the least normal one.
    Denormals,
    /// 1e30 beside 1e-30.
    Wide,
    /// Large numbers that cancel.
    Cancelling,
    /// Noise of size 150: exponentials overflow and vanish.
    Far,
}

/// Kinds whose sums and squares stay finite, in the order in which the rows of a case take them.
pub(super) const KINDS: [Kind; 6] =
    [Kind::Plain, Kind::Zeros, Kind::Denormals, Kind::Cancelling, Kind::Far, Kind::Plain];

/// The same with numbers whose squares overflow.
pub(super) const WIDE_KINDS: [Kind; 6] =
    [Kind::Plain, Kind::Wide, Kind::Zeros, Kind::Denormals, Kind::Cancelling, Kind::Far];

/// `rows` rows that take the kinds in turn. [rows, width]
pub(super) fn table(noise: &mut Noise, kinds: &[Kind], rows: usize, width: usize) -> Vec<f32> {
    (0..rows).flat_map(|t| row(noise, kinds[t % kinds.len()], width)).collect()
}

fn row(noise: &mut Noise, kind: Kind, width: usize) -> Vec<f32> {
    let alternate = |i: usize, even: f32, odd: f32| if i.is_multiple_of(2) { even } else { odd };
    let shape = |i: usize, x: f32| match kind {
        Kind::Plain => x,
        Kind::Zeros => x.signum() * 0.0,
        Kind::Denormals => x * 1e-39,
        Kind::Wide => x * alternate(i, 1e30, 1e-30),
        Kind::Cancelling => alternate(i, 1e6, -1e6) + x,
        Kind::Far => x * 150.0,
    };
    noise.row(width).into_iter().enumerate().map(|(i, x)| shape(i, x)).collect()
}

/// An F32 weight of these values. [values / cols, cols]
///
/// # Panics
/// When the values are no whole number of rows: a mistake in the table of cases.
pub(super) fn f32_weight(name: &str, cols: usize, values: &[f32]) -> Weight {
    plain(name, Format::F32, cols, values)
}

/// A weight in a plain format.
pub(super) fn plain(name: &str, format: Format, cols: usize, values: &[f32]) -> Weight {
    let bytes: Vec<u8> = match format {
        Format::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        Format::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    Weight::blocks(name, format, values.len() / cols, cols, Blob::from_vec(bytes)).expect("whole rows")
}

/// A random weight: random bits under small scales, some of which are 0, negative or denormal.
///
/// # Panics
/// When `cols` is no multiple of the format's block: a mistake in the table of cases.
pub(super) fn weight(noise: &mut Noise, name: &str, format: Format, (rows, cols): (usize, usize)) -> Weight {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => plain(name, format, cols, &noise.row(rows * cols)),
        Format::Affine { bits, group } => {
            let groups = rows * cols / group as usize;
            let dtype = [DType::BF16, DType::F16, DType::F32][noise.bits() as usize % 3];
            let mut scales = |size: f32| {
                let values = (0..groups).map(|i| edge(i, noise.number()) * size);
                Blob::from_vec(values.flat_map(|x| element(dtype, x)).collect())
            };
            let (scales, biases) = (scales(0.05), scales(0.3));
            let words = Blob::from_vec(bytes(noise, rows * cols * bits.bits() / 8));
            let data = Affine { words, scales, biases, scale_dtype: dtype };
            Weight::affine(name, bits, group, (rows, cols), data).expect("whole groups")
        }
        _ => {
            let mut all = bytes(noise, rows * format.row_bytes(cols).expect("whole blocks"));
            for (i, block) in all.chunks_exact_mut(format.block_bytes()).enumerate() {
                for at in scale_offsets(format) {
                    let scale = f16::from_f32(edge(i, noise.number()) * 0.05);
                    block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            Weight::blocks(name, format, rows, cols, Blob::from_vec(all)).expect("whole blocks")
        }
    }
}

/// Every 7 scales: two that are 0 and denormal in F16, the rest as they are (of both signs).
fn edge(i: usize, x: f32) -> f32 {
    match i % 7 {
        3 => 0.0,
        5 => x * 1e-4,
        _ => x,
    }
}

/// Where a block keeps its F16 scale and minimum.
fn scale_offsets(format: Format) -> &'static [usize] {
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q6K => &[208],
        Format::F32 | Format::F16 | Format::BF16 | Format::Affine { .. } => &[],
    }
}

fn bytes(noise: &mut Noise, n: usize) -> Vec<u8> {
    (0..n).map(|_| noise.bits() as u8).collect()
}

fn element(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}
