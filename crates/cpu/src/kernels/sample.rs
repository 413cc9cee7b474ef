//! Logits to tokens.
//!
//! math: the largest logit and its log-probability for plain greedy rows; everything else as `tare_ops::reference::sample`
//! shapes: logits [selected, V]
//! layout: rows padded to 32 columns
//! precision: exponentials and their 16 lanes in F32, the logarithm in F64
//! preconditions: samplers checked
//! cost: two passes over V logits that are in cache
//! tolerance: bit-identical to the reference
//! wins: greedy decoding, which copies no logits and allocates nothing
//! loses: one row uses one worker; filtered sampling runs the scalar reference
//! fallback: `tare_ops::reference::sample::sample_row`, also when a logit is not a number
//! evidence: none yet
//! source: none
//!
//! Workers take contiguous runs of selected rows.

use tare_core::Fault;
use tare_ops::reference::sample::sample_row;
use tare_ops::{Batch, RowOutput, Sampler, Wants};

use crate::lanes::{Kernel, LANES, Lanes, exp};
use crate::pool::Region;
use crate::rows::Rows;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// [selected, V]
    pub logits: Rows,
}

/// The outputs of a step: each worker fills the rows of its share.
#[derive(Clone, Copy, Debug)]
pub struct Outputs(pub *mut RowOutput);

// SAFETY: workers write disjoint entries.
unsafe impl Send for Outputs {}
// SAFETY: as above.
unsafe impl Sync for Outputs {}

/// Runs one worker's share: call, batch, selected rows in order, outputs, where we are.
///
/// # Errors
/// When the logits of a row are not numbers.
///
/// # Safety
/// `logits` and the outputs hold an entry for each selected row.
pub type SampleFn = unsafe fn(&Sample, &Batch, &[u32], Outputs, Region) -> Result<(), Fault>;

/// The kernel on instruction set `L`.
pub fn kernel<L: Lanes>() -> SampleFn {
    run::<L>
}

/// # Safety
/// That of [`SampleFn`].
unsafe fn run<L: Lanes>(
    call: &Sample,
    batch: &Batch,
    selected: &[u32],
    out: Outputs,
    region: Region,
) -> Result<(), Fault> {
    let Some(l) = L::detect() else { return Ok(()) };
    for i in region.share(selected.len(), 1) {
        // SAFETY: entry i is this worker's alone, and row i holds V logits.
        let (out, logits) =
            unsafe { (&mut *out.0.add(i), std::slice::from_raw_parts(call.logits.row(i), call.logits.width)) };
        let wants = batch.rows[selected[i] as usize].wants;
        out.row = selected[i];
        out.logits.clear();
        if matches!(wants, Wants::Logits | Wants::TokenAndLogits(_)) {
            out.logits.extend_from_slice(logits);
        }
        let sampler = match wants {
            Wants::Token(n) | Wants::TokenAndLogits(n) => Some(&batch.samplers[n as usize]),
            Wants::Nothing | Wants::Logits => None,
        };
        if !(is_greedy(sampler) && l.vectorize(Greedy { logits, out })) {
            sample_row(logits, sampler, out).map_err(|f| f.within(format!("row {}", selected[i])))?;
        }
    }
    Ok(())
}

/// Whether the token is the largest logit and nothing else is asked for.
fn is_greedy(sampler: Option<&Sampler>) -> bool {
    sampler.is_none_or(|s| s.params.is_plain_greedy() && s.allowed.is_none() && s.params.top_logprobs == 0)
}

/// The first of `x` that equals `most`. Runs are compared whole, which compilers turn into vectors.
#[inline(always)]
fn first(x: &[f32], most: f32) -> Option<usize> {
    const RUN: usize = 256;
    let run = x.chunks(RUN).position(|run| run.iter().fold(false, |found, x| found | (*x == most)))?;
    x[RUN * run..].iter().position(|x| *x == most).map(|at| RUN * run + at)
}

/// Fills the output; gives false when a logit is NaN or infinite above, or none is above negative infinity.
struct Greedy<'a> {
    logits: &'a [f32],
    out: &'a mut RowOutput,
}

impl Kernel for Greedy<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let (x, n) = (self.logits.as_ptr(), self.logits.len());
        let (whole, part) = (n / LANES * LANES, n % LANES);
        let mut most = l.splat(f32::NEG_INFINITY);
        // Stays 0 while every logit is a number below infinity: x - x is then 0, else NaN, and NaN stays.
        let mut odd = l.splat(0.0);
        let low = l.splat(f32::MIN);
        // SAFETY: n logits lie at x.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                let v = l.load(x.add(i));
                most = l.max(most, v);
                // Negative infinity is allowed: a mask puts it there.
                let v = l.if_less(v, low, low, v);
                odd = l.add(odd, l.sub(v, v));
            }
            if part > 0 {
                let v = l.load_part(x.add(whole), part, f32::NEG_INFINITY);
                most = l.max(most, v);
                let v = l.if_less(v, low, low, v);
                odd = l.add(odd, l.sub(v, v));
            }
        }
        let most = l.max_lane(most);
        if l.sum(odd) != 0.0 || most == f32::NEG_INFINITY {
            return false;
        }
        let Some(token) = first(self.logits, most) else { return false };
        // The reference subtracts the logit itself, whose zero may have another sign than `most`.
        let most = self.logits[token];
        let m = l.splat(most);
        let mut sums = l.splat(0.0);
        // SAFETY: as above.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                sums = l.add(sums, exp(l, l.sub(l.load(x.add(i)), m)));
            }
            if part > 0 {
                let mut last = [-0.0f32; LANES];
                let e = exp(l, l.sub(l.load_part(x.add(whole), part, 0.0), m));
                l.store_part(last.as_mut_ptr(), part, e);
                sums = l.add(sums, l.load(last.as_ptr()));
            }
        }
        let log_sum = f64::from(l.sum(sums)).ln();
        self.out.token = token as u32;
        self.out.logit = most;
        self.out.logprob = (f64::from(most) - f64::from(most) - log_sum) as f32;
        self.out.top.clear();
        true
    }
}
