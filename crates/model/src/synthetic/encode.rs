//! Random words into packed rows.
//!
//! An element is an integer level of 4, 8, 16 or 32 bits, uniform over its range; what it means is the format's
//! business. Values come of one multiplication and one rounding each, so every host writes the same bytes.

use half::{bf16, f16};
use std::num::NonZero;
use std::ops::Range;
use tare_core::{Affine, AffineBits, Blob, DType, Fault, Format, Weight};

use super::recipe::{MARKED, Mark, Recipe};

/// Standard deviation of a uniform level of 4 and 8 bits: `sqrt((4^bits - 1) / 12)`.
const LEVEL_STD: [f64; 2] = [4.609_772_228_646_444, 73.900_383_851_402_5];

/// Rows below this many bytes in all are written by one thread: starting a second one costs more.
const ALONE: usize = 1 << 20;

/// A matrix [rows, cols] in `format`, whose bytes are made when somebody looks at them.
///
/// # Errors
/// When `cols` is no multiple of the format's block.
pub(super) fn matrix(recipe: Recipe, format: Format, (rows, cols): (usize, usize)) -> Result<Weight, Fault> {
    let name = recipe.name();
    match format {
        Format::Affine { bits, group } => {
            let (word_row, scale_row) = (cols * bits.bits() / 8, cols / group as usize * 2);
            let (first, second) = (rows * word_row, rows * (word_row + scale_row));
            let end = second + rows * scale_row;
            let whole = Blob::made(end, move || {
                let mut bytes = vec![0; end];
                let (words, scales) = bytes.split_at_mut(first);
                let (scales, biases) = scales.split_at_mut(second - first);
                let rows_of = AffineRows { recipe: &recipe, bits, group: group as usize };
                let parts = [(words, word_row), (scales, scale_row), (biases, scale_row)];
                each_row(rows, parts, |row, [words, scales, biases]| rows_of.write(row, words, scales, biases));
                bytes
            });
            let part = |range: Range<usize>| {
                let outside = || Fault::new(&name, format!("a part of {end} bytes"), format!("{range:?}"));
                whole.slice(range.clone()).ok_or_else(outside)
            };
            let (words, scales, biases) = (part(0..first)?, part(first..second)?, part(second..end)?);
            let data = Affine { words, scales, biases, scale_dtype: DType::BF16 };
            Weight::affine(&name, bits, group, (rows, cols), data)
        }
        _ => {
            let row_bytes = format.row_bytes(cols).unwrap_or(0);
            let bytes = Blob::made(rows * row_bytes, move || {
                let mut bytes = vec![0; rows * row_bytes];
                let parts = [(&mut bytes[..], row_bytes), (&mut [][..], 0), (&mut [][..], 0)];
                each_row(rows, parts, |row, [out, ..]| match format.dtype() {
                    Some(dtype) => plain_row(&recipe, dtype, row, out),
                    None => block_row(&recipe, format, row, out),
                });
                bytes
            });
            Weight::blocks(&name, format, rows, cols, bytes)
        }
    }
}

/// A norm's gains [1, cols]: each its own gain times a spread of 0.75 to 1.25.
///
/// # Errors
/// When `format` is packed.
pub(super) fn vector(recipe: &Recipe, format: Format, cols: usize) -> Result<Weight, Fault> {
    let Some(dtype) = format.dtype() else {
        return Err(Fault::new(recipe.name(), "a plain format for a vector", format.to_string()));
    };
    let words = recipe.elements;
    let mut bytes = vec![0; cols * dtype.bytes()];
    for (col, out) in bytes.chunks_exact_mut(dtype.bytes()).enumerate() {
        let word = words.word(col as u64);
        let gain = recipe.gain(col) as f32 * spread(word, 0.25);
        put(if recipe.signed() && word & 1 == 1 { -gain } else { gain }, dtype, out);
    }
    Weight::blocks(&recipe.name(), format, 1, cols, Blob::from_vec(bytes))
}

/// Calls `write` with every row of up to three buffers, given with their bytes a row.
fn each_row<'b, F>(rows: usize, parts: [(&'b mut [u8], usize); 3], write: F)
where
    F: Fn(usize, [&mut [u8]; 3]) + Sync,
{
    let bytes: usize = parts.iter().map(|(b, _)| b.len()).sum();
    let threads = if bytes < ALONE { 1 } else { std::thread::available_parallelism().map_or(1, NonZero::get) };
    let share = rows.div_ceil(threads).max(1);
    let widths = parts.each_ref().map(|(_, w)| *w);
    let mut rest = parts.map(|(b, _)| b);
    let write = &write;
    std::thread::scope(|scope| {
        for first in (0..rows).step_by(share) {
            let count = share.min(rows - first);
            let mut mine: [&'b mut [u8]; 3] = [&mut [], &mut [], &mut []];
            for i in 0..3 {
                let (head, tail) = std::mem::take(&mut rest[i]).split_at_mut(count * widths[i]);
                (mine[i], rest[i]) = (head, tail);
            }
            let mut work = move || {
                for n in 0..count {
                    let mut at = 0;
                    let row = mine.each_mut().map(|b| {
                        let w = widths[at];
                        at += 1;
                        &mut b[n * w..][..w]
                    });
                    write(first + n, row);
                }
            };
            if share >= rows { work() } else { drop(scope.spawn(work)) }
        }
    });
}

/// `1 - width` to `1 + width` from the upper bits of a word. `width` is a power of two.
fn spread(word: u64, width: f32) -> f32 {
    // 23 bits: exact in F32.
    (1.0 - width) + (word >> 41) as f32 * (2.0 * width / 8_388_608.0)
}

/// A scale within an eighth of `base`, of either sign.
fn scale(base: f64, word: u64) -> f32 {
    let s = base as f32 * spread(word, 0.125);
    if word & 1 == 1 { -s } else { s }
}

/// `level` of `bits` bits as `mark` wants it. The random bits that are left keep lines apart.
fn marked(level: u32, bits: u32, mark: Mark) -> u32 {
    let (sixteenth, rest) = ((1u64 << bits) / 16, u64::from(level) >> 4);
    let at = match mark {
        Mark::High => 15 * sixteenth + rest,
        Mark::Low if bits == 4 => 7 + u64::from(level >> 3),
        Mark::Low => 15 * sixteenth / 2 + rest,
    };
    at as u32
}

/// The mirror image of a level when its scale is negative: a high value stays high.
fn oriented(level: u32, bits: u32, negative: bool) -> u32 {
    if negative { (u32::MAX >> (32 - bits)) - level } else { level }
}

struct AffineRows<'a> {
    recipe: &'a Recipe,
    bits: AffineBits,
    group: usize,
}

impl AffineRows<'_> {
    /// `w = s * level + b` with `b = -s * (2^bits - 1) / 2`: symmetric around 0 but for the rounding of `b`.
    fn write(&self, row: usize, words: &mut [u8], scales: &mut [u8], biases: &mut [u8]) {
        let bits = self.bits.bits() as u32;
        self.recipe.elements.fill((row * words.len() / 8) as u64, words);
        let groups = scales.len() / 2;
        let (level_std, middle) = match self.bits {
            AffineBits::Four => (LEVEL_STD[0], 7.5),
            AffineBits::Eight => (LEVEL_STD[1], 127.5),
        };
        let base = self.recipe.row_std(row) / level_std;
        let mut signs = [false; MARKED];
        for g in 0..groups {
            let s = bf16::from_f32(scale(base, self.recipe.scales.word((row * groups + g) as u64)));
            let b = bf16::from_f32(-middle * s.to_f32());
            scales[2 * g..][..2].copy_from_slice(&s.to_le_bytes());
            biases[2 * g..][..2].copy_from_slice(&b.to_le_bytes());
            let marked_here = (g * self.group..MARKED).take(self.group);
            marked_here.for_each(|col| signs[col] = s.to_f32() < 0.0);
        }
        for (col, negative) in signs.into_iter().enumerate() {
            let Some(mark) = self.recipe.mark(row, col) else { continue };
            match self.bits {
                AffineBits::Four => {
                    let nibble = Nibble::new(col / 2, col % 2 == 1);
                    nibble.set(words, oriented(marked(nibble.get(words), bits, mark), bits, negative));
                }
                AffineBits::Eight => {
                    words[col] = oriented(marked(u32::from(words[col]), bits, mark), bits, negative) as u8;
                }
            }
        }
    }
}

/// Four bits of a byte.
struct Nibble {
    byte: usize,
    shift: u32,
}

impl Nibble {
    fn new(byte: usize, high: bool) -> Self {
        Self { byte, shift: if high { 4 } else { 0 } }
    }

    fn get(&self, bytes: &[u8]) -> u32 {
        u32::from(bytes[self.byte] >> self.shift) & 15
    }

    fn set(&self, bytes: &mut [u8], level: u32) {
        let b = &mut bytes[self.byte];
        *b = (*b & !(15 << self.shift)) | ((level as u8) << self.shift);
    }
}

/// Blocks of 32: an F16 scale, for Q4_1 an F16 minimum, then the levels.
fn block_row(recipe: &Recipe, format: Format, row: usize, out: &mut [u8]) {
    let (size, levels) = (format.block_bytes(), if format == Format::Q8_0 { 32 } else { 16 });
    let base = recipe.row_std(row) / if format == Format::Q8_0 { LEVEL_STD[1] } else { LEVEL_STD[0] };
    let blocks = out.len() / size;
    for (b, block) in out.chunks_exact_mut(size).enumerate() {
        let index = (row * blocks + b) as u64;
        let d = f16::from_f32(scale(base, recipe.scales.word(index)));
        let (head, levels) = block.split_at_mut(size - levels);
        head[..2].copy_from_slice(&d.to_le_bytes());
        if format == Format::Q4_1 {
            head[2..].copy_from_slice(&f16::from_f32(-7.5 * d.to_f32()).to_le_bytes());
        }
        recipe.elements.fill(index * (levels.len() / 8) as u64, levels);
        for col in (b * 32..MARKED).take(32) {
            let Some(mark) = recipe.mark(row, col) else { continue };
            let negative = d.to_f32() < 0.0;
            if format == Format::Q8_0 {
                levels[col] = oriented(marked(u32::from(levels[col]), 8, mark), 8, negative) as u8;
            } else {
                let nibble = Nibble::new(col % 16, col >= 16);
                nibble.set(levels, oriented(marked(nibble.get(levels), 4, mark), 4, negative));
            }
        }
        if format == Format::Q8_0 {
            // Level 128 is 0; level 0 would be -128, which no quantizer writes.
            levels.iter_mut().for_each(|l| *l = (*l).max(1) ^ 0x80);
        }
    }
}

/// Uniform values of variance `row_std^2`: `(2 level + 1 - 2^bits) / 2^bits * sqrt(3) * row_std`.
///
/// A level has 16 bits in the 16-bit types. In F32 it is the upper 24 of the element's 32: what F32 holds exactly.
fn plain_row(recipe: &Recipe, dtype: DType, row: usize, out: &mut [u8]) {
    let amplitude = (recipe.row_std(row) * 3f64.sqrt()) as f32;
    recipe.elements.fill((row * out.len() / 8) as u64, out);
    for (col, element) in out.chunks_exact_mut(dtype.bytes()).take(MARKED).enumerate() {
        let Some(mark) = recipe.mark(row, col) else { continue };
        match element {
            [a, b] => [*a, *b] = (marked(u16::from_le_bytes([*a, *b]).into(), 16, mark) as u16).to_le_bytes(),
            [_, b, c, d] => [*b, *c, *d, _] = marked(u32::from_le_bytes([*b, *c, *d, 0]), 24, mark).to_le_bytes(),
            _ => {}
        }
    }
    let sixteen = |level: u16| (2 * i32::from(level) - 65_535) as f32 * (amplitude / 65_536.0);
    match dtype {
        DType::BF16 => each(out, |e| finite_bf16(sixteen(u16::from_le_bytes(e))).to_le_bytes()),
        DType::F16 => each(out, |e| f16::from_f32(sixteen(u16::from_le_bytes(e))).to_le_bytes()),
        _ => each(out, |e| {
            let level = (u32::from_le_bytes(e) >> 8) as i32;
            ((2 * level - 16_777_215) as f32 * (amplitude / 16_777_216.0)).to_le_bytes()
        }),
    }
}

/// The bits of a finite value in BF16, to nearest, ties to even. Without a case for NaN the loop becomes vector code.
fn finite_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// Replaces every element of N bytes. A plain loop over arrays, which the compiler turns into vector code.
fn each<const N: usize>(out: &mut [u8], value: impl Fn([u8; N]) -> [u8; N]) {
    out.as_chunks_mut::<N>().0.iter_mut().for_each(|e| *e = value(*e));
}

fn put(value: f32, dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        _ => out.copy_from_slice(&value.to_le_bytes()),
    }
}
