//! What a device can do at most, measured on it: the rates that floors are made of.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;
use tare_core::{Fault, Reading};
use tare_ops::{Isa, OpError};

use crate::device::{Device, Edge, Launch};
use crate::driver::{CudaConfig, Driver};
use crate::units::{Unit, tiles};

/// Chains of a thread, and threads of a block: those of the kernel.
const CHAINS: u64 = 16;
const THREADS: u64 = 512;
/// Blocks for each multiprocessor.
const BLOCKS_EACH: u64 = 4;
/// Threads of a block of products, its bytes of shared memory, and operations of one of its rounds: those of the kernel.
const PRODUCT_THREADS: u32 = 256;
const PRODUCT_SHARED: u32 = 48 << 10;
const PRODUCT_ROUND: u64 = 2 * 16 * 2 * 64 * 256 * 16;
/// Runs before the first that counts, and runs that count.
const RUNS: (usize, usize) = (2, 7);

/// How much is done in one run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes that are read.
    pub read_bytes: usize,
    /// Multiply-adds of one chain.
    pub rounds: u64,
    /// Rounds of products.
    pub product_rounds: u64,
}

impl Effort {
    /// Many times what any cache holds, and milliseconds of arithmetic.
    pub const FULL: Self = Self { read_bytes: 4 << 30, rounds: 1 << 14, product_rounds: 1 << 10 };
}

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
    /// Operations of products of BF16 numbers on tensor cores.
    pub products: Reading<Vec<Sample>>,
}

impl Ceilings {
    /// The samples of tensor cores, or why there are none.
    pub fn products(&self) -> Reading<&[Sample]> {
        match &self.products {
            Reading::Available(samples) => Reading::Available(samples),
            Reading::Unavailable { why } => Reading::unavailable(why.as_str()),
        }
    }

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

/// Measures the ceilings: about a tenth of a second, and 4 GiB of the device's memory.
///
/// # Errors
/// When the device cannot be used or has too little memory.
pub fn measure(config: &CudaConfig) -> Result<Ceilings, OpError> {
    let mut driver = Driver::open(CudaConfig { stepwise: false, ..config.clone() })?;
    of(&mut driver, Effort::FULL)
}

/// Measures the ceilings of `device`.
///
/// # Errors
/// When it fails, has too little memory or no clock.
pub fn of(device: &mut impl Device, effort: Effort) -> Result<Ceilings, OpError> {
    let Effort { read_bytes, rounds, product_rounds } = effort;
    let multiprocessors = u64::from(device.multiprocessors());
    let blocks = multiprocessors * BLOCKS_EACH;
    let words = device.alloc("what ceilings read", read_bytes)?;
    device.fill(words, read_bytes, 0)?;
    let out = device.alloc("what ceilings write", blocks as usize * size_of::<u32>())?;
    let args = |count| bytemuck::bytes_of(&Args { words: words.0, out: out.0, count }).to_vec();
    let plain = |kernel, count| Run {
        unit: Unit::ceilings(),
        kernel,
        blocks,
        threads: THREADS as u32,
        shared: 0,
        args: args(count),
    };
    let read = series(device, &plain("ceiling_read", read_bytes as u64 / 16), read_bytes as u64)?;
    let operations = blocks * THREADS * CHAINS * rounds * 2;
    let flops = series(device, &plain("ceiling_multiply_add", rounds), operations)?;
    let products = Run {
        unit: tiles::ceilings_wgmma(),
        kernel: "ceiling_products",
        blocks: multiprocessors,
        threads: PRODUCT_THREADS,
        shared: PRODUCT_SHARED,
        args: args(product_rounds),
    };
    let products = if device.isa().has(Isa::Hopper) {
        Reading::Available(series(device, &products, multiprocessors * product_rounds * PRODUCT_ROUND)?)
    } else {
        Reading::unavailable("the ceiling of tensor cores is measured by instructions that this device does not have")
    };
    device.free(words);
    device.free(out);
    Ok(Ceilings { read, working_set_bytes: read_bytes as u64, flops, products })
}

/// A kernel that is run again and again.
struct Run {
    unit: Unit,
    kernel: &'static str,
    blocks: u64,
    threads: u32,
    shared: u32,
    args: Vec<u8>,
}

/// The samples of a kernel that does `amount` in a run.
fn series(device: &mut impl Device, run: &Run, amount: u64) -> Result<Vec<Sample>, OpError> {
    let launch = Launch {
        shared: run.shared,
        kernel: device.kernel(&run.unit, run.kernel)?,
        key: run.kernel.to_string(),
        grid: (run.blocks as u32, 1),
        threads: run.threads,
        early: false,
        args: run.args.clone(),
    };
    let mut once = || -> Result<Sample, OpError> {
        device.tick(Edge::Begin)?;
        device.launch(&launch)?;
        device.tick(Edge::End)?;
        device.finish()?;
        let ns = device.ticked_ns()?.ok_or_else(|| Fault::new("device", "a clock of its own", "none"))?;
        Ok(Sample { amount, ns })
    };
    let samples: Result<Vec<Sample>, OpError> = (0..RUNS.0 + RUNS.1).map(|_| once()).collect();
    samples.map(|s| s[RUNS.0..].to_vec())
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
