//! Whether the kernels of an operator answer rightly, before any of them is timed.

use tare_core::Fault;
use tare_formats::codec::dequantize;
use tare_ops::exact::{self, Bounds, Taken};
use tare_ops::{Backend, Batch, BufId, Launched, Op, Order, ReferenceBackend, Slack, StepOutput};

use super::operator::{Operator, Stand};
use super::{Arm, Bench};
use crate::LabError;

impl Bench<'_> {
    /// On the rows that are timed every kernel must answer as the reference does, bit for bit; one with an order of its own
    /// within the limits of [`tare_ops::exact`], on what the reference was fed with.
    pub(super) fn judge(
        &mut self,
        of: &Operator<'_>,
        stand: &Stand,
        arms: &[Arm],
        batch: &Batch,
    ) -> Result<(), LabError> {
        let mut judge = ReferenceBackend::new();
        self.reference.clear();
        let asked = of.stand(&mut judge, &mut self.reference)?;
        let exe = judge.compile(&asked.plan)?;
        let (mut out, mut left) = (StepOutput::default(), Vec::new());
        let questions = asked.asked(of);
        let rows: Vec<usize> = (0..questions.rows.len()).collect();
        judge.run_apart(exe, &questions, &rows, &mut out, &mut left)?;
        let want = Stand::outputs(of, &questions, &out.rows);
        for arm in arms {
            self.tap.with(|cpu| cpu.run(arm.wholes[0], batch, &mut out))?;
            let got = Stand::outputs(of, batch, &out.rows);
            let promise = self.tap.variants().iter().find(|v| v.key == arm.kernel).map(|v| (v.order, v.slack));
            let bounds = match promise {
                Some((Order::Free, slack)) => Some(exactly(of, &asked, &left[..asked.call], slack)?),
                _ => None,
            };
            let same = |i: usize| match &bounds {
                Some(bounds) => bounds.off(i, got[i]) <= 1.0,
                None => got[i].to_bits() == want[i].to_bits(),
            };
            let off = if got.len() == want.len() { (0..got.len()).find(|i| !same(*i)) } else { Some(0) };
            if let Some(i) = off {
                let say = |v: &[f32]| format!("{:?} at {i} of {} values", v.get(i), v.len());
                let where_ = format!("{} of {} on {} rows", arm.kernel, stand.plan.name, of.rows);
                return Err(Fault::new(where_, say(&want), say(&got)).into());
            }
        }
        Ok(())
    }
}

/// What the operator gives exactly on what the calls before it left, row by row.
fn exactly(of: &Operator<'_>, asked: &Stand, left: &[Launched], slack: Slack) -> Result<Bounds, LabError> {
    let (Op::Linear { x, out, .. }, Op::Linear { weight, bias, accumulate, rounding, .. }) =
        (&asked.plan.calls[asked.call].op, of.op())
    else {
        let expected = "a linear, whose limits in any order this study knows";
        let fault = Fault::new("operator", expected, of.op().name().to_string());
        return Err(fault.remedy("ask for linears alone, or take a class in the reference's order").into());
    };
    let fed = |id: BufId| -> Vec<Bounds> {
        let width = asked.plan.buffer(id).width;
        let last = left.iter().flat_map(|l| &l.left).rfind(|l| l.buffer == id);
        last.map_or_else(Vec::new, |l| l.values.chunks_exact(width).map(Bounds::exactly).collect())
    };
    let (_, weight) = of.weight(*weight)?;
    let x: Vec<Taken> = fed(*x).iter().map(|row| Taken::new(row, *rounding, slack)).collect();
    let mut rows = exact::products(&weight, slack, 0..weight.rows(), &x);
    if let Some(bias) = bias {
        let bias = Bounds::exactly(&dequantize(&of.weight(*bias)?.1));
        rows.iter_mut().for_each(|row| row.add(&bias));
    }
    if *accumulate {
        rows.iter_mut().zip(fed(*out)).for_each(|(row, before)| row.add(&before));
    }
    let (value, limit) = rows.into_iter().map(|row| (row.value, row.limit)).unzip::<_, _, Vec<_>, Vec<_>>();
    Ok(Bounds { value: value.concat(), limit: limit.concat() })
}
