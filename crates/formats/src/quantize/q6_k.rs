//! F32 to Q6_K, by least squares. ggml's own encoder weighs errors by the square of the value; this one counts every
//! error alike, so that its blocks have the same form and not the same bytes.
//!
//! A block is 16 groups of 16 weights, `w = (d * sc) * (q - 32)`: F16 `d`, signed 8-bit `sc`, codes `q` from 0 to 63. A
//! step `d * sc` may be negative: the grid reaches 32 steps to one side of zero and 31 to the other, and the side with
//! the larger value takes the longer one.

use half::f16;

use super::inverse;
use crate::codec::kquant::SUPER;

/// Weights of a group.
const GROUP: usize = 16;
/// How many steps the value largest in magnitude may lie from zero when a fit begins. More than 32 clips it, which pays
/// where one value stands alone; fewer leave codes unused, which pays where another grid meets more values.
const REACHES: [f32; 5] = [-34.0, -33.0, -32.0, -31.0, -30.0];

/// One block. The group with the widest step takes the scale -128; every other one the scale, of the three nearest to
/// its wish, whose squared error is least. Values of which even the largest is below a half of `2^-24 * 4096`, the least
/// F16 that scales can be multiples of, become zeros. No value is larger than [`super::most`]: where a fit clips it so that
/// its step would be beyond F16, the largest F16 takes its place, which holds the value still.
pub(super) fn q6_k(values: &[f32; SUPER], out: &mut [u8; 210]) {
    let groups = values.as_chunks::<GROUP>().0;
    let mut wanted = [0.0f32; SUPER / GROUP];
    for (step, group) in wanted.iter_mut().zip(groups) {
        *step = fit(group);
    }
    let widest = wanted.iter().fold(0.0f32, |m, &s| if m.abs() < s.abs() { s } else { m });
    let reach = f16::MAX.to_f32();
    let d = f16::from_f32((widest / -128.0).clamp(-reach, reach));
    out[208..].copy_from_slice(&d.to_le_bytes());
    let d = d.to_f32();
    let mut codes = [0; SUPER];
    for (g, (group, codes)) in groups.iter().zip(codes.as_chunks_mut::<GROUP>().0).enumerate() {
        let wish = (wanted[g] * inverse(d)).round().clamp(-128.0, 127.0);
        let near = [wish, wish - 1.0, wish + 1.0].map(|sc| sc.clamp(-128.0, 127.0));
        let sc = near.into_iter().reduce(|a, b| if error(group, d * b) < error(group, d * a) { b } else { a });
        let sc = sc.unwrap_or_default();
        out[192 + g] = (sc as i8).cast_unsigned();
        *codes = coded(group, d * sc);
    }
    pack(&codes, out);
}

/// The signed step of a group whose squared error is least, of those tried: each reach, and what least squares make of
/// the codes that it gives. 0 for a group of zeros.
fn fit(values: &[f32; GROUP]) -> f32 {
    let edge = values.iter().fold(0.0f32, |m, &v| if m.abs() < v.abs() { v } else { m });
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for reach in REACHES {
        let first = edge / reach;
        for step in [first, refined(values, first)] {
            let e = error(values, step);
            if e < least {
                (best, least) = (step, e);
            }
        }
    }
    best
}

/// The step with the least squared error for the codes that `step` gives: `<v, q> / <q, q>`.
fn refined(values: &[f32; GROUP], step: f32) -> f32 {
    let (mut vq, mut qq) = (0.0f32, 0.0f32);
    for (v, q) in values.iter().zip(coded(values, step)) {
        let q = f32::from(q) - 32.0;
        vq += v * q;
        qq += q * q;
    }
    vq * inverse(qq)
}

/// Codes on the grid of `step`, halves upwards, clipped at its ends.
fn coded(values: &[f32; GROUP], step: f32) -> [u8; GROUP] {
    let per_step = inverse(step);
    values.map(|v| ((v * per_step + 32.5) as u8).min(63))
}

/// Squared error of a group on the grid of `step`.
fn error(values: &[f32; GROUP], step: f32) -> f32 {
    let codes = coded(values, step);
    values.iter().zip(codes).map(|(v, q)| (v - step * (f32::from(q) - 32.0)).powi(2)).sum()
}

/// Puts 256 codes where [`crate::codec::kquant::q6_k_codes`] reads them: low nibbles, then upper two bits.
fn pack(codes: &[u8; SUPER], out: &mut [u8; 210]) {
    out[..192].fill(0);
    for (at, run) in codes.as_chunks::<32>().0.iter().enumerate() {
        let (half, r) = (at / 4, at % 4);
        for (l, &q) in run.iter().enumerate() {
            out[half * 64 + r % 2 * 32 + l] |= (q & 15) << (r / 2 * 4);
            out[128 + half * 32 + l] |= (q >> 4) << (2 * r);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::kquant::{q6_k as decoded, q6_k_codes};

    #[test]
    fn codes_are_read_where_they_were_put() {
        let codes = std::array::from_fn(|i| (i * 37 % 64) as u8);
        let mut block = [0xff; 210];
        pack(&codes, &mut block);
        assert_eq!(q6_k_codes(&block), codes);
    }

    #[test]
    fn values_on_the_grid_come_back() {
        // The group's largest value lies 32 steps below zero, so that its step is met exactly; d is a power of two.
        let code = |i: usize| if i.is_multiple_of(GROUP) { 0 } else { i * 7 % 64 };
        let values: [f32; SUPER] = std::array::from_fn(|i| code(i) as f32 - 32.0);
        let (mut block, mut back) = ([0; 210], [0.0; SUPER]);
        q6_k(&values, &mut block);
        decoded(&block, &mut back);
        assert_eq!(back, values);
    }

    #[test]
    fn the_largest_values_have_a_scale() {
        let most = crate::quantize::most(tare_core::Format::Q6K, tare_core::DType::F32);
        let spread = |i: usize| most * (1.0 - (i % 7) as f32 / 3.0);
        for values in [[most; SUPER], [-most; SUPER], std::array::from_fn(spread)] {
            let (mut block, mut back) = ([0; 210], [0.0; SUPER]);
            q6_k(&values, &mut block);
            decoded(&block, &mut back);
            for (v, b) in values.iter().zip(back) {
                assert!((v - b).abs() <= most / 16.0, "{v:e} became {b:e}");
            }
        }
    }

    #[test]
    fn zeros_and_what_no_scale_reaches_are_zeros() {
        for value in [0.0, -0.0, 1e-30, f32::MIN_POSITIVE] {
            let (mut block, mut back) = ([0xff; 210], [f32::NAN; SUPER]);
            q6_k(&[value; SUPER], &mut block);
            decoded(&block, &mut back);
            assert_eq!(back, [0.0; SUPER], "{value:e}");
        }
    }
}
