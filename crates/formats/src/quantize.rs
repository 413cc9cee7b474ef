//! F32 rows to packed weights.

mod q6_k;

use half::{bf16, f16};
use std::num::NonZero;
use tare_core::digest::sha256_hex;
use tare_core::{Affine, AffineBits, Blob, DType, Fault, Format, Weight, WeightData};

use q6_k::q6_k;

/// Packs `values` (row-major, [rows, cols]) in `format`.
///
/// `scale_dtype` is the type of the scales and biases of the affine format (MLX uses the type of the source); the
/// other formats ignore it. F16 and BF16 round to nearest, ties to even. Q8_0 and Q4_0 follow ggml's reference
/// rounding, the affine formats follow `mx.quantize`; Q6_K is tare's own, by least squares.
///
/// # Errors
/// When the shape does not match `values` or the block, a value is not finite or larger than the format can hold
/// ([`most`]), or there is no quantizer for the format.
pub fn quantize(
    name: &str,
    rows: usize,
    cols: usize,
    values: &[f32],
    format: Format,
    scale_dtype: DType,
) -> Result<Weight, Fault> {
    quantize_from(name, (rows, cols), values, (format, scale_dtype), &|row, col| (row, col))
}

/// The same for values that were moved: `place` gives row and column that a value had in its file.
pub(crate) fn quantize_from(
    name: &str,
    (rows, cols): (usize, usize),
    values: &[f32],
    (format, scale_dtype): (Format, DType),
    place: &dyn Fn(usize, usize) -> (usize, usize),
) -> Result<Weight, Fault> {
    if rows.checked_mul(cols) != Some(values.len()) {
        return Err(Fault::new(name, format!("{rows} x {cols} values"), values.len().to_string()));
    }
    let block = format.block_weights();
    if !cols.is_multiple_of(block) {
        return Err(Fault::new(name, format!("columns in multiples of {block} ({format})"), cols.to_string())
            .remedy("keep this matrix in a plain format or choose a smaller group"));
    }
    let most = most(format, scale_dtype);
    if let Some(at) = values.iter().position(|v| !v.is_finite() || v.abs() > most) {
        let (row, col) = place(at / cols, at % cols);
        let found = format!("{:e} at [{row}, {col}], in block {} of its row", values[at], at % cols / block);
        let fault = Fault::new(name, format!("finite values of at most {most:e} ({format})"), found);
        let reaches_further = values[at].is_finite() && most < bf16::MAX.to_f32();
        return Err(if reaches_further { fault.remedy("bf16 and f32 hold larger values") } else { fault });
    }
    match format {
        Format::Affine { bits, group } => affine(name, (rows, cols), values, (bits, group), scale_dtype, place),
        Format::F32 => blocks::<1, 4>(name, format, (rows, cols), values, |v, o| *o = v[0].to_le_bytes()),
        Format::F16 => {
            blocks::<1, 2>(name, format, (rows, cols), values, |v, o| *o = f16::from_f32(v[0]).to_le_bytes())
        }
        Format::BF16 => {
            blocks::<1, 2>(name, format, (rows, cols), values, |v, o| *o = bf16::from_f32(v[0]).to_le_bytes())
        }
        Format::Q8_0 => blocks(name, format, (rows, cols), values, q8_0),
        Format::Q4_0 => blocks(name, format, (rows, cols), values, q4_0),
        Format::Q6K => blocks(name, format, (rows, cols), values, q6_k),
        other => {
            Err(Fault::new(name, "a format that tare can write: f32, f16, bf16, q8_0, q4_0, q6_k, w4gN or w8gN", {
                other.to_string()
            }))
        }
    }
}

/// The largest magnitude that a value can have in a format that tare writes: beyond it a scale, or the value itself, is
/// infinite in its type. Scales of Q8_0, Q4_0 and Q6_K are F16; those of the affine formats `scale_dtype`.
pub fn most(format: Format, scale_dtype: DType) -> f32 {
    let of = |dtype| match dtype {
        DType::F16 => f16::MAX.to_f32(),
        DType::BF16 => bf16::MAX.to_f32(),
        _ => f32::MAX,
    };
    match format {
        Format::F16 => of(DType::F16),
        Format::BF16 => of(DType::BF16),
        Format::Q8_0 => 127.0 * of(DType::F16),
        Format::Q4_0 => 8.0 * of(DType::F16),
        Format::Q6K => 128.0 * 32.0 * of(DType::F16),
        // The end of the range that lies farther from zero is the bias.
        Format::Affine { .. } => of(scale_dtype),
        _ => f32::MAX,
    }
}

/// What tells this encoder of `format` from one that packs otherwise: the digest of the bytes that it makes of fixed values.
///
/// # Errors
/// When there is no quantizer for the format.
pub fn encoder(format: Format) -> Result<String, Fault> {
    let packed = quantize("probe", PROBE.0, PROBE.1, &probe(), format, DType::F32)?;
    Ok(match packed.data() {
        WeightData::Blocks(bytes) => sha256_hex(bytes),
        WeightData::Affine(a) => sha256_hex(&[&a.words[..], &a.scales, &a.biases].concat()),
    })
}

/// Rows and columns of the values that encoders are told apart by.
const PROBE: (usize, usize) = (16, 512);

/// Values of many sizes side by side, some alone among small ones, and a row of zeros.
fn probe() -> Vec<f32> {
    let value = |i: usize| {
        let drawn = (i as u32).wrapping_add(1).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b) >> 8;
        let unit = drawn as f32 / (1u32 << 23) as f32 - 1.0;
        let size = 2f32.powi((i / 16 % 9) as i32 - 6);
        let alone = if i.is_multiple_of(97) { 5.0 } else { 1.0 };
        if i < PROBE.1 { 0.0 } else { unit * size * alone }
    };
    (0..PROBE.0 * PROBE.1).map(value).collect()
}

/// Below this many values one thread packs alone: starting a second one costs more.
const ALONE: usize = 1 << 18;

/// Packs blocks of W weights into B bytes each, every processor its share of them.
fn blocks<const W: usize, const B: usize>(
    name: &str,
    format: Format,
    (rows, cols): (usize, usize),
    values: &[f32],
    block: impl Fn(&[f32; W], &mut [u8; B]) + Sync,
) -> Result<Weight, Fault> {
    let mut bytes = vec![0; values.len() / W * B];
    let threads = if values.len() < ALONE { 1 } else { std::thread::available_parallelism().map_or(1, NonZero::get) };
    let share = (values.len() / W).div_ceil(threads).max(1);
    let block = &block;
    std::thread::scope(|scope| {
        for (values, bytes) in values.chunks(share * W).zip(bytes.chunks_mut(share * B)) {
            let mut pack = move || {
                let blocks = values.as_chunks::<W>().0.iter().zip(bytes.as_chunks_mut::<B>().0);
                blocks.for_each(|(v, o)| block(v, o));
            };
            if threads == 1 {
                pack();
            } else {
                scope.spawn(pack);
            }
        }
    });
    Weight::blocks(name, format, rows, cols, Blob::from_vec(bytes))
}

/// The inverse of a scale; 0 for a block of zeros.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// d = max |w| / 127, q = w / d rounded to nearest, halves away from zero (ggml's reference).
fn q8_0(values: &[f32; 32], out: &mut [u8; 34]) {
    let d = values.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (o, v) in out[2..].iter_mut().zip(values) {
        *o = ((v * id).round() as i8).cast_unsigned();
    }
}

/// d = (the value largest in magnitude, the first of equals) / -8, q = trunc(w / d + 8.5) up to 15 (ggml's reference).
fn q4_0(values: &[f32; 32], out: &mut [u8; 18]) {
    let edge = values.iter().fold(0.0f32, |edge, &v| if edge.abs() < v.abs() { v } else { edge });
    let d = edge / -8.0;
    let id = inverse(d);
    let quant = |v: f32| ((v * id + 8.5) as u8).min(15);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for j in 0..16 {
        out[2 + j] = quant(values[j]) | quant(values[j + 16]) << 4;
    }
}

/// Bytes of `v` in a plain type.
fn push(out: &mut Vec<u8>, v: f32, dtype: DType) {
    match dtype {
        DType::F16 => out.extend(f16::from_f32(v).to_le_bytes()),
        DType::BF16 => out.extend(bf16::from_f32(v).to_le_bytes()),
        _ => out.extend(v.to_le_bytes()),
    }
}

fn affine(
    name: &str,
    shape: (usize, usize),
    values: &[f32],
    (bits, group): (AffineBits, u16),
    scale_dtype: DType,
    place: &dyn Fn(usize, usize) -> (usize, usize),
) -> Result<Weight, Fault> {
    let groups = values.len() / group as usize;
    let mut words = Vec::with_capacity(values.len() * bits.bits() / 8);
    let mut scales = Vec::with_capacity(groups * scale_dtype.bytes());
    let mut biases = Vec::with_capacity(groups * scale_dtype.bytes());
    for (g, values) in values.chunks_exact(group as usize).enumerate() {
        let fit = Fit::of(values, bits);
        if !fit.scale.is_finite() {
            let first = g * group as usize;
            let (row, col) = place(first / shape.1, first % shape.1);
            let block = first % shape.1 / group as usize;
            let found = format!("a wider group from [{row}, {col}] on, block {block} of its row");
            return Err(Fault::new(name, format!("groups whose range is at most {:e}", f32::MAX), found));
        }
        push(&mut scales, fit.scale, scale_dtype);
        push(&mut biases, fit.bias, scale_dtype);
        match bits {
            AffineBits::Four => {
                words.extend(values.as_chunks::<2>().0.iter().map(|p| fit.quant(p[0]) | fit.quant(p[1]) << 4));
            }
            AffineBits::Eight => words.extend(values.iter().map(|&v| fit.quant(v))),
        }
    }
    let [words, scales, biases] = [words, scales, biases].map(Blob::from_vec);
    Weight::affine(name, bits, group, shape, Affine { words, scales, biases, scale_dtype })
}

/// Scale and bias of one group, as `mx.quantize` chooses them on the CPU: the end of the range that lies farther from
/// zero is hit exactly and zero is on the grid, so the scale is often negative and never 0. The quants are computed
/// with these F32 values, before they are rounded to the type of the source.
struct Fit {
    scale: f32,
    bias: f32,
    top: f32,
}

impl Fit {
    fn of(values: &[f32], bits: AffineBits) -> Self {
        let top = ((1u32 << bits.bits()) - 1) as f32;
        let (min, max) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)));
        let step = ((max - min) / top).max(1e-7);
        let (edge, step) = if min.abs() > max.abs() { (min, step) } else { (max, -step) };
        let q0 = (edge / step).round_ties_even();
        let (scale, bias) = if q0 == 0.0 { (step, 0.0) } else { (edge / q0, edge) };
        Self { scale, bias, top }
    }

    fn quant(&self, v: f32) -> u8 {
        ((v - self.bias) / self.scale).round_ties_even().clamp(0.0, self.top) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_are_told_apart_by_what_they_make_of_every_block() {
        let writes = |format: &Format| encoder(*format).ok();
        let all: Vec<String> = Format::ALL.iter().filter_map(writes).collect();
        assert_eq!(all.len(), 12);
        let mut apart = all.clone();
        apart.sort_unstable();
        apart.dedup();
        assert_eq!((apart.len(), Format::ALL.iter().filter_map(writes).collect()), (all.len(), all));
        // Every code of the widest grid below F16 is there, so that an encoder that takes another one is noticed.
        let packed = quantize("probe", PROBE.0, PROBE.1, &probe(), Format::Q8_0, DType::F32).unwrap();
        let WeightData::Blocks(bytes) = packed.data() else { panic!("Q8_0 has blocks") };
        let codes: std::collections::BTreeSet<u8> = bytes.chunks(34).flat_map(|block| block[2..].to_vec()).collect();
        assert_eq!(codes.len(), 255, "-127 to 127");
    }
}
