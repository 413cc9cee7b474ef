//! What a device can do at most, measured on it: the rates that floors are made of.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;
use tare_ops::OpError;

use crate::device::{Device, Launch};
use crate::driver::{CudaConfig, Driver};
use crate::units::Unit;

/// Bytes that are read: many times what any cache holds.
const READ_BYTES: usize = 4 << 30;
/// Multiply-adds of one chain.
const ROUNDS: u64 = 1 << 14;
/// Chains of a thread, and threads of a block: those of the kernel.
const CHAINS: u64 = 16;
const THREADS: u64 = 512;
/// Blocks for each multiprocessor.
const BLOCKS_EACH: u64 = 4;
/// Runs before the first that counts, and runs that count.
const RUNS: (usize, usize) = (2, 7);

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Bytes or operations done.
    pub amount: u64,
    /// Nanoseconds by the device's own clock.
    pub ns: u64,
}

/// The ceilings of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ceilings {
    /// Bytes read from memory.
    pub read: Vec<Sample>,
    /// Bytes of the memory that was read.
    pub working_set_bytes: u64,
    /// F32 operations, a multiply-add counted as two.
    pub flops: Vec<Sample>,
}

impl Ceilings {
    /// The median rate of some samples, a second.
    pub fn rate(samples: &[Sample]) -> Option<f64> {
        let mut rates: Vec<f64> = samples.iter().map(|s| s.amount as f64 * 1e9 / s.ns as f64).collect();
        rates.sort_unstable_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    words: u64,
    out: u64,
    count: u64,
}

/// Measures both ceilings: about a tenth of a second, and 4 GiB of the device's memory.
///
/// # Errors
/// When the device cannot be used or has too little memory.
pub fn measure(config: &CudaConfig) -> Result<Ceilings, OpError> {
    let mut driver = Driver::open(CudaConfig { stepwise: false, ..config.clone() })?;
    let blocks = u64::from(driver.info().multiprocessors) * BLOCKS_EACH;
    let words = driver.alloc("what ceilings read", READ_BYTES)?;
    driver.fill(words, READ_BYTES, 0)?;
    let out = driver.alloc("what ceilings write", blocks as usize * size_of::<u32>())?;
    let mut series = |kernel: &str, count: u64, amount: u64| {
        let args = Args { words: words.0, out: out.0, count };
        let launch = Launch {
            shared: 0,
            kernel: driver.kernel(&Unit::ceilings(), kernel)?,
            key: kernel.to_string(),
            grid: (blocks as u32, 1),
            threads: THREADS as u32,
            early: false,
            args: bytemuck::bytes_of(&args).to_vec(),
        };
        let runs = (0..RUNS.0 + RUNS.1).map(|_| Ok(Sample { amount, ns: driver.time(&launch)? }));
        let samples: Result<Vec<Sample>, OpError> = runs.collect();
        samples.map(|s| s[RUNS.0..].to_vec())
    };
    Ok(Ceilings {
        read: series("ceiling_read", READ_BYTES as u64 / 16, READ_BYTES as u64)?,
        working_set_bytes: READ_BYTES as u64,
        flops: series("ceiling_multiply_add", ROUNDS, blocks * THREADS * CHAINS * ROUNDS * 2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_rate_is_that_of_a_sample() {
        let sample = |ns| Sample { amount: 1000, ns };
        assert_eq!(Ceilings::rate(&[sample(500), sample(100), sample(1000)]), Some(2e9));
        assert_eq!(Ceilings::rate(&[]), None);
    }
}
