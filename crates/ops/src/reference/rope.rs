//! Rotary position embedding (Su et al., arXiv 2104.09864) and the frequencies of its scalings.

use std::f64::consts::PI;

use tare_formats::config::RopeScaling;

use crate::plan::{RopeStyle, RopeTable};

/// Sine and cosine of the E / 2 angles of one position, computed in F64 and rounded to F32 once.
///
/// `cos[i] = factor * cos(position * inv_freq[i])`, and the sine alike. F32 angles would be off by 2e-3 at position
/// 40,959.
///
/// # Panics
/// When `cos` or `sin` is not E / 2 long.
pub fn angles(table: &RopeTable, position: u32, cos: &mut [f32], sin: &mut [f32]) {
    let pairs = table.inv_freq.len();
    assert_eq!((cos.len(), sin.len()), (pairs, pairs), "one sine and cosine a pair");
    let factor = f64::from(table.factor);
    for (i, f) in table.inv_freq.iter().enumerate() {
        let (s, c) = (f64::from(position) * f).sin_cos();
        cos[i] = (factor * c) as f32;
        sin[i] = (factor * s) as f32;
    }
}

/// Rotates each head of `x` in place: `(a, b) -> (a cos - b sin, b cos + a sin)`. x [heads * E]
///
/// The order: `a' = fma(a, cos, -(b * sin))`, `b' = fma(b, cos, a * sin)`.
///
/// # Panics
/// When `x` is no whole number of heads.
pub fn rotate(x: &mut [f32], style: RopeStyle, cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    assert!(x.len().is_multiple_of(2 * pairs), "x is a whole number of heads");
    for head in x.chunks_exact_mut(2 * pairs) {
        for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
            let (at_a, at_b) = match style {
                RopeStyle::HalfSplit => (i, i + pairs),
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (head[at_a], head[at_b]);
            head[at_a] = a.mul_add(*c, -(b * s));
            head[at_b] = b.mul_add(*c, a * s);
        }
    }
}

/// Radians a position of each of the E / 2 pairs, and the factor on sine and cosine: `theta^(-2i / E)` changed by the
/// scaling, as Hugging Face transformers defines each, in F64.
///
/// # Panics
/// When the scaling is a list of factors that has not E / 2 entries.
pub fn frequencies(head_size: usize, theta: f64, scaling: &RopeScaling) -> (Vec<f64>, f32) {
    let plain = (0..head_size / 2).map(|i| theta.powf(-((2 * i) as f64) / head_size as f64));
    match scaling {
        RopeScaling::None => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            let band = Llama3 {
                factor: *factor,
                low: *low_freq_factor,
                high: *high_freq_factor,
                original: *original_positions as f64,
            };
            (plain.map(|f| band.scale(f)).collect(), 1.0)
        }
        RopeScaling::Yarn { factor, original_positions, attention_factor, beta_fast, beta_slow } => {
            let original = *original_positions as f64;
            // The pair, counted in half dimensions, that turns `rotations` times over the original context.
            let pair =
                |rotations: f64| head_size as f64 * (original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
            let low = pair(*beta_fast).floor().max(0.0);
            let high = pair(*beta_slow).ceil().min(head_size as f64 - 1.0);
            let width = if high == low { 0.001 } else { high - low };
            let ramp = |i: usize| ((i as f64 - low) / width).clamp(0.0, 1.0);
            let mixed = plain.enumerate().map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i))).collect();
            (mixed, attention_factor.unwrap_or(0.1 * factor.ln() + 1.0) as f32)
        }
        RopeScaling::Factors(divisors) => {
            assert_eq!(divisors.len(), head_size / 2, "one rope factor a pair");
            (plain.zip(divisors).map(|(f, d)| f / f64::from(*d)).collect(), 1.0)
        }
    }
}

/// Llama 3: long wavelengths divided by `factor`, short ones kept, a ramp between.
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    fn scale(&self, f: f64) -> f64 {
        let wavelength = 2.0 * PI / f;
        if wavelength < self.original / self.high {
            f
        } else if wavelength > self.original / self.low {
            f / self.factor
        } else {
            let kept = (self.original / wavelength - self.low) / (self.high - self.low);
            (1.0 - kept) * f / self.factor + kept * f
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_divide_pair_by_pair() {
        let (plain, _) = frequencies(8, 1e4, &RopeScaling::None);
        let (scaled, factor) = frequencies(8, 1e4, &RopeScaling::Factors(vec![1.0, 2.0, 4.0, 8.0]));
        assert_eq!(factor, 1.0);
        for (i, (p, s)) in plain.iter().zip(&scaled).enumerate() {
            assert_eq!(*s, p / f64::from(1 << i), "pair {i}");
        }
    }

    #[test]
    fn yarn_takes_the_factor_of_the_file() {
        let yarn = |attention_factor| RopeScaling::Yarn {
            factor: 4.0,
            original_positions: 32768,
            attention_factor,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        assert_eq!(frequencies(128, 1e6, &yarn(Some(1.25))).1, 1.25);
        assert_eq!(frequencies(128, 1e6, &yarn(None)).1, (0.1 * 4f64.ln() + 1.0) as f32);
    }

    #[test]
    fn position_zero_turns_nothing() {
        let table = RopeTable { inv_freq: vec![1.0, 0.1], factor: 1.0, style: RopeStyle::HalfSplit };
        let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
        angles(&table, 0, &mut cos, &mut sin);
        let mut x = [1.0, -2.0, 3.0, 4.0];
        rotate(&mut x, table.style, &cos, &sin);
        assert_eq!(x, [1.0, -2.0, 3.0, 4.0]);
    }
}
