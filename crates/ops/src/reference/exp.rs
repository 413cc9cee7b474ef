//! The exponential that every kernel shares, and the logistic unit made of it.
//!
//! `e^x = 2^n e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`; `r` is found with ln 2 in two parts (Cody and
//! Waite, Software Manual for the Elementary Functions, 1980), `e^r = 1 + r + r^2 q(r)` with `q` of degree 4, fitted
//! here for the least largest error (3.4e-9 of `e^r`), and `2^n` is an integer addition to the exponent. Each line is
//! one elementwise operation on F32 or its bits, so that a vector version gives the same bits.

/// 1 / ln 2.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Added and taken away again it rounds to an integer, which its low bits then hold: 1.5 * 2^23.
pub const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in its upper nine bits, so that `n * LN2_HIGH` is exact.
pub const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 - [`LN2_HIGH`].
pub const LN2_LOW: f32 = -2.121_944_4e-4;
/// Coefficients of `q`, of r^0 first.
pub const Q: [f32; 5] = [0.5, 0.166_665_12, 0.041_666_187, 0.008_369_599, 0.001_395_172];
/// Below this the result is 0: ln of the least normal number, so that no result is denormal.
pub const LEAST: f32 = -87.336_54;
/// Above this the result is infinite: ln of the largest number.
pub const MOST: f32 = 88.722_83;

/// `e^x`: 0 below [`LEAST`], infinity above [`MOST`], NaN for NaN, else within 1.1 units in the last place.
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let q = Q[4].mul_add(r, Q[3]);
    let q = q.mul_add(r, Q[2]);
    let q = q.mul_add(r, Q[1]);
    let q = q.mul_add(r, Q[0]);
    let y = q.mul_add(r * r, r) + 1.0;
    // The bits of `shifted` are those of ROUNDER plus n, and ROUNDER's own are shifted out.
    let scaled = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < LEAST {
        0.0
    } else if x > MOST {
        f32::INFINITY
    } else if x.is_nan() {
        f32::NAN
    } else {
        scaled
    }
}

/// `x / (1 + e^-x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error in units in the last place of the true value.
    fn ulps(x: f32) -> f64 {
        let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
        let unit = 2f64.powi(want.log2().floor() as i32 - 23);
        (got - want).abs() / unit
    }

    #[test]
    fn within_about_one_unit_in_the_last_place() {
        let mut worst = (0.0, 0.0);
        for i in 0..2_000_000u32 {
            let x = LEAST + (MOST - LEAST) * (i as f32 / 2e6);
            worst = if ulps(x) > worst.0 { (ulps(x), x) } else { worst };
        }
        for i in 0..200_000u32 {
            let x = (i as f32 - 1e5) * 1e-5;
            worst = if ulps(x) > worst.0 { (ulps(x), x) } else { worst };
        }
        assert!(worst.0 <= 1.1, "{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    fn edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(1e-30), 1.0);
        assert_eq!(exp(f32::from_bits(1)), 1.0);
        for x in [f32::NEG_INFINITY, f32::MIN, -1e4, -88.0, LEAST.next_down()] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
        assert!(exp(LEAST) > 0.0 && exp(LEAST) < 1.2e-38);
        for x in [f32::INFINITY, f32::MAX, 1e4, 89.0, MOST.next_up()] {
            assert_eq!(exp(x), f32::INFINITY, "{x}");
        }
        assert!(exp(MOST).is_finite() && exp(MOST) > 3.4e38);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::from_bits(0x7fc0_0123)).is_nan(), "whatever the payload");
    }

    #[test]
    fn never_falls_while_its_argument_rises() {
        let mut last = 0.0;
        for i in 0..400_000 {
            let y = exp(-20.0 + i as f32 * 1e-4);
            assert!(y >= last, "{i}");
            last = y;
        }
    }

    #[test]
    fn silu_at_its_ends() {
        assert_eq!(silu(0.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
        assert_eq!(silu(-200.0), -0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-7);
    }
}
