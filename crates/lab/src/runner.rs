//! What runs the request of one arm: the engine under test, or another engine behind a shim.
//!
//! A request is run in turns, so that two arms that live side by side can hand a baton to and fro. A whole request is
//! one turn. Several sequences of one length may run together: then a step draws one token of each. Clocks are read where
//! the work is done, in the process that does it.

use std::fmt;

use crate::LabError;
use crate::work::ClockedRequest;
use tare_core::Reading;
use tare_evidence::samples::RowTokens;

/// Runs one request at a time, in turns; or several together, of equal lengths.
pub trait Runner: fmt::Debug {
    /// Puts the prefixes in the cache off the clock, then runs the prompts on it; ends with the first token of each
    /// sequence on the host, which is one step in `out`. Gives the nanoseconds of handing the request over.
    ///
    /// # Errors
    /// When the engine refuses or fails, did not start at the depth that was asked for, or does not run as many together.
    fn prefill(&mut self, requests: &[ClockedRequest], out: &mut Drawn) -> Result<u64, LabError>;

    /// Draws `steps` more tokens of each sequence, and appends them to `out`.
    ///
    /// # Errors
    /// When the engine fails or ends the request early.
    fn decode(&mut self, steps: usize, out: &mut Drawn) -> Result<(), LabError>;

    /// Ends the request and releases its storage.
    ///
    /// # Errors
    /// When the engine fails.
    fn finish(&mut self) -> Result<Ended, LabError>;

    /// Lets the processors go until the next call: no thread of this arm may spin while another arm has its turn.
    ///
    /// # Errors
    /// When the engine cannot be reached.
    fn rest(&mut self) -> Result<(), LabError>;
}

/// What was drawn, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawn {
    /// `[steps][sequences]`: in each step the sequences in the order of their requests.
    pub tokens: Vec<Token>,
    /// `[steps]`.
    pub steps: Vec<Step>,
}

/// A token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its F32 logit; none when the engine does not give it out.
    pub logit: Option<f32>,
}

/// How long a token of each sequence took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From the step before it, or from the start of this turn when it is the first of a turn; of the first step of all,
    /// the prefill.
    pub ns: u64,
    /// The forwards that led to it by the device's own clock; none where nothing has one.
    pub device_ns: Option<u64>,
}

impl Drawn {
    /// Nothing yet, with room for `steps` of `sequences`: nothing is allocated while they are timed.
    pub fn with_room(steps: usize, sequences: usize) -> Self {
        Self { tokens: Vec::with_capacity(steps * sequences), steps: Vec::with_capacity(steps) }
    }

    /// The tokens of each sequence, `[sequences]`, with the logits that were given.
    pub fn rows(&self) -> Vec<RowTokens> {
        let sequences = self.tokens.len().checked_div(self.steps.len()).unwrap_or(0);
        let of = |n: usize| self.tokens.iter().skip(n).step_by(sequences);
        let row = |n| RowTokens { ids: of(n).map(|t| t.id).collect(), logits: of(n).filter_map(|t| t.logit).collect() };
        (0..sequences).map(row).collect()
    }
}

/// What was counted over the whole request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// From the last token until nothing was left to do.
    pub release_ns: u64,
    /// Processor time of the thread that drives the engine, over all turns.
    pub main_thread_cpu_ns: Reading<u64>,
    /// The most bytes that were allocated at once during the request.
    pub allocator_peak_bytes: Reading<u64>,
    /// Rows that went through the layers and through the head.
    pub rows: Reading<(u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_steps_are_told_apart_by_sequence() {
        let token = |id, logit| Token { id, logit };
        let step = Step { ns: 1, device_ns: None };
        let drawn = Drawn {
            tokens: vec![token(1, Some(0.5)), token(2, Some(1.5)), token(3, Some(2.5)), token(4, None)],
            steps: vec![step; 2],
        };
        let rows = drawn.rows();
        assert_eq!((&rows[0].ids[..], &rows[0].logits[..]), (&[1, 3][..], &[0.5, 2.5][..]));
        assert_eq!(
            (&rows[1].ids[..], &rows[1].logits[..]),
            (&[2, 4][..], &[1.5][..]),
            "one is missing, as the gate sees"
        );
        assert!(Drawn::default().rows().is_empty());
    }
}
