//! Launches that start early: the emulated device hides from them what they may not count on.

use tare_cuda::device::{Address, Device, Launch};
use tare_cuda::units::Unit;
use tare_ops::OpError;

use crate::emulator::Emulator;

/// Kernels of one warp. `to` and `from` have a number for each thread.
const KERNELS: &str = r"
struct Args {
    const float* from;
    float* to;
};
KERNEL(writes, Args, 32) { a.to[threadIdx.x] = 1.0f; }
KERNEL(waits, Args, 32) {
    await_previous();
    a.to[threadIdx.x] = a.from[threadIdx.x] + 1.0f;
}
KERNEL(waits_late, Args, 32) {
    float x = a.from[threadIdx.x];
    await_previous();
    a.to[threadIdx.x] = x + 1.0f;
}
KERNEL(waits_never, Args, 32) {}
";
const THREADS: usize = 32;

struct Chain {
    device: Emulator,
    memory: Address,
}

impl Chain {
    fn new() -> Self {
        let mut device = Emulator::default();
        let memory = device.alloc("numbers", 4 * THREADS * 4).unwrap();
        device.fill(memory, 4 * THREADS * 4, 0).unwrap();
        Self { device, memory }
    }

    /// Launches a kernel that reads the numbers in place `from` and writes those in place `to`.
    fn launch(&mut self, kernel: &str, (from, to): (usize, usize), early: bool) -> Result<(), OpError> {
        let shared = [include_str!("../../kernels/tare.cuh"), include_str!("../../kernels/free.cuh"), KERNELS].concat();
        let kernels = &["writes", "waits", "waits_late", "waits_never"];
        let unit = Unit { name: "early".into(), text: shared, kernels, hopper: false };
        let at = |place: usize| self.memory.plus(place * THREADS * 4).0.to_le_bytes();
        let args = [at(from), at(to)].concat();
        let id = self.device.kernel(&unit, kernel)?;
        let threads = THREADS as u32;
        self.device.launch(&Launch { kernel: id, key: kernel.into(), grid: (1, 1), threads, shared: 0, early, args })
    }

    fn number(&mut self, place: usize) -> f32 {
        let mut bytes = [0; 4];
        self.device.download(self.memory.plus(place * THREADS * 4 + 4), &mut bytes).unwrap();
        f32::from_le_bytes(bytes)
    }
}

#[test]
fn what_waits_sees_what_was_written_before() {
    let mut chain = Chain::new();
    chain.launch("writes", (0, 0), false).unwrap();
    chain.launch("waits", (0, 1), true).unwrap();
    chain.launch("waits", (1, 2), true).unwrap();
    assert_eq!((chain.number(1), chain.number(2)), (2.0, 3.0));
}

#[test]
fn what_reads_before_it_waits_misses_what_was_written_before() {
    let mut chain = Chain::new();
    chain.launch("writes", (0, 0), false).unwrap();
    chain.launch("waits_late", (0, 1), true).unwrap();
    assert!(chain.number(1).is_nan());
    // Also what the launch before the one before wrote: that one may have begun early itself.
    chain.launch("waits", (0, 2), true).unwrap();
    chain.launch("waits_late", (0, 3), true).unwrap();
    assert!(chain.number(3).is_nan());
    // What does not start early finds all there.
    chain.launch("waits_late", (0, 3), false).unwrap();
    assert_eq!(chain.number(3), 2.0);
}

#[test]
fn what_starts_early_and_never_waits_is_refused() {
    let mut chain = Chain::new();
    chain.launch("writes", (0, 0), false).unwrap();
    let refused = chain.launch("waits_never", (0, 1), true).unwrap_err();
    assert!(refused.to_string().contains("starts early and waits for nothing"), "{refused}");
}
