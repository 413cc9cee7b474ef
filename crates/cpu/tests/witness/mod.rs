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
    /// Looks so far, where the late ones take turns.
    looks: Option<usize>,
}

impl Script {
    /// In which seven workers are late one after the other, each for three looks, beginning in the middle. They wait six tenths
    /// of the time: one of two would stay for half.
    #[allow(dead_code, reason = "one test names who is late")]
    pub(crate) fn by_turns(from: usize) -> Self {
        Self { looks: Some(from), ..Self::default() }
    }

    /// Makes these workers wait half of the time, and all others not at all.
    #[allow(dead_code, reason = "one test lets them take turns")]
    pub(crate) fn late(&self, workers: &[usize]) {
        *self.late.lock().unwrap() = workers.to_vec();
    }
}

impl Witness for Script {
    fn now_ns(&mut self) -> u64 {
        self.now_ns += TICK_NS;
        self.now_ns
    }

    fn waited_ns(&mut self, worker: usize) -> Result<u64, String> {
        let (late, tenths) = match &mut self.looks {
            Some(looks) => {
                *looks += usize::from(worker == 0);
                (*looks / 3 % 7 == worker, 6)
            }
            None => (self.late.lock().unwrap().contains(&worker), 5),
        };
        Ok(u64::from(late) * TICK_NS * tenths / 10)
    }
}
