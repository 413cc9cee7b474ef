//! A script in the place of what the system says of time and waits.

use std::sync::{Arc, Mutex};

use tare_cpu::pool::Witness;

/// What passes each time that the clock is read: a region takes as long, so that each is looked at.
pub(crate) const TICK_NS: u64 = 16_000_000;

/// Who is late from now on. Clones share it: one stays with the test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    late: Arc<Mutex<Vec<usize>>>,
    now_ns: u64,
    seed: Option<u32>,
}

impl Script {
    /// In which a worker is late now and then, as it happens.
    pub(crate) fn noise(seed: u32) -> Self {
        Self { seed: Some(seed), ..Self::default() }
    }

    /// Makes these workers wait half of the time, and all others not at all.
    #[allow(dead_code, reason = "not every test has a say")]
    pub(crate) fn late(&self, workers: &[usize]) {
        *self.late.lock().unwrap() = workers.to_vec();
    }

    pub(crate) fn boxed(&self) -> Box<dyn Witness> {
        Box::new(self.clone())
    }
}

impl Witness for Script {
    fn now_ns(&mut self) -> u64 {
        self.now_ns += TICK_NS;
        self.now_ns
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        let late = match &mut self.seed {
            Some(seed) => {
                *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *seed >> 30 == 0
            }
            None => self.late.lock().unwrap().contains(&worker),
        };
        Ok(u64::from(late) * TICK_NS / 2)
    }
}
