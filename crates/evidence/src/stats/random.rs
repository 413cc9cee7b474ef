//! The random numbers of the statistics.

/// The generator of G. L. Steele, D. Lea and C. H. Flood (2014). Figures of old records must come out the same with
/// every later version of every dependency, so its twelve lines live here.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between 0 and 1, both ends left out.
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A place among `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n - 1)
    }

    /// A standard normal value, after G. E. P. Box and M. E. Muller (1958).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_its_published_first_values() {
        let mut r = SplitMix64(1_234_567);
        assert_eq!([r.next(), r.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn normal_values_have_mean_0_and_deviation_1() {
        let mut r = SplitMix64(5);
        let values: Vec<f64> = (0..20_000).map(|_| r.normal()).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let deviation = super::super::standard_deviation(&values).unwrap();
        assert!(mean.abs() < 0.03 && (deviation - 1.0).abs() < 0.03, "{mean} {deviation}");
    }
}
