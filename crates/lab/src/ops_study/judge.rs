//! Whether the kernels of an operator answer rightly, before any of them is timed.

use tare_core::Fault;
use tare_engine::Forward;
use tare_ops::exact::Bounds;
use tare_ops::{Backend, Batch, Order, ReferenceBackend, StepOutput, Variant};

use super::operator::{Feeds, Operator, PAGE_TOKENS, Stand, token};
use super::{Arm, Bench};
use crate::LabError;
use crate::operators::{TakenStep, alone, take_apart};
use crate::rig::Rig;

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
        self.reference.clear();
        let reference = Answers::of(of, &mut self.reference)?;
        let mut out = StepOutput::default();
        for arm in arms {
            self.tap.with(|cpu| cpu.run(arm.wholes[0], batch, &mut out))?;
            let got = Stand::outputs(of, batch, &out.rows);
            let bounds = reference.bounds(of, (self.study.rig, self.tap.variants()), &arm.kernel)?;
            if let Some(i) = astray(&bounds, &got) {
                let place = |of: usize| format!("at {i} of {of} values");
                let (value, limit) = (bounds.value.get(i), bounds.limit.get(i));
                let want = format!("{value:?} within {limit:?} {}", place(bounds.value.len()));
                let where_ = format!("{} of {} on {} rows", arm.kernel, stand.plan.name, of.rows);
                return Err(Fault::new(where_, want, format!("{:?} {}", got.get(i), place(got.len()))).into());
            }
        }
        Ok(())
    }
}

/// The first value that is not what it should be.
fn astray(bounds: &Bounds, got: &[f32]) -> Option<usize> {
    let same = |i: usize| match bounds.limit[i] {
        0.0 => (bounds.value[i] as f32).to_bits() == got[i].to_bits(),
        _ => bounds.off(i, got[i]) <= 1.0,
    };
    if got.len() == bounds.value.len() { (0..got.len()).find(|i| !same(*i)) } else { Some(0) }
}

/// The judged rows of an operator on the reference, call by call.
struct Answers {
    stand: Stand,
    step: TakenStep,
}

impl Answers {
    fn of(of: &Operator<'_>, feeds: &mut Feeds) -> Result<Self, LabError> {
        let mut reference = ReferenceBackend::new();
        let stand = of.stand(&mut reference, feeds)?;
        let exe = reference.compile(&stand.plan)?;
        let (batch, mut out, mut steps) = (stand.asked(of), StepOutput::default(), Vec::new());
        let forward = Forward { plan: 0, exe, batch: &batch, page_tokens: &[PAGE_TOKENS], out: &mut out };
        take_apart(&mut reference, forward, (stand.plan.kv, &[0]), &mut steps)?;
        let step = steps.pop().ok_or_else(|| Fault::new("reference", "a step taken apart", "none"))?;
        Ok(Self { stand, step })
    }

    /// What the operator gives on `kernel`, one judged row after the other: what the reference gave, or exact results and
    /// the limits of a kernel with an order of its own.
    fn bounds(
        &self,
        of: &Operator<'_>,
        (rig, variants): (&Rig<'_>, &[Variant]),
        kernel: &str,
    ) -> Result<Bounds, LabError> {
        if variants.iter().all(|v| v.key != kernel || v.order == Order::Reference) {
            return Ok(Bounds::exactly(&Stand::outputs(of, &self.step.batch, &self.step.answers)));
        }
        let (plan, sequence) = (self.stand.on(kernel), (0..of.context).map(token).collect::<Vec<u32>>());
        let rows = alone((rig, variants), (&plan, self.stand.call), &self.step, &[sequence])?;
        let (value, limit) = rows.into_iter().map(|row| (row.value, row.limit)).unzip::<_, _, Vec<_>, Vec<_>>();
        Ok(Bounds { value: value.concat(), limit: limit.concat() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::On;
    use crate::ops_study::operator::takers;
    use tare_cpu::{CpuConfig, detect_isa};
    use tare_model::{Model, PlanSpec};
    use tare_ops::{Class, OpName};

    /// Every kernel that a study of a free class may time has a judge that takes its answer and no other one.
    #[test]
    fn every_operator_of_a_free_class_is_judged() {
        let model = Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap();
        let rig = Rig {
            model: &model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find("paged").unwrap(),
            class: Class::by_name("w4a16-free").unwrap(),
            context: 64,
            sequences: 1,
            max_rows: 32,
            delay: None,
        };
        let engine = rig.engine().unwrap();
        let largest = engine.resolved().last().unwrap();
        let mut free = Vec::new();
        for choice in &largest.choices {
            if matches!(choice.op, OpName::KvAppend | OpName::SelectRows | OpName::Sample) {
                continue;
            }
            let of = Operator { model: &model, plan: &largest.plan, call: choice.calls[0], rows: 5, context: 40 };
            let answers = Answers::of(&of, &mut Feeds::new()).unwrap();
            let mut tap = rig.tap().unwrap();
            let stand = of.stand(&mut tap, &mut Feeds::new()).unwrap();
            for kernel in takers(&tap, of.op(), &of.shape()) {
                let (exe, batch) = (stand.compile(&mut tap, &kernel).unwrap(), stand.timed(&of));
                let mut out = StepOutput::default();
                tap.run(exe, &batch, &mut out).unwrap();
                let right = Stand::outputs(&of, &batch, &out.rows);
                let mut turned = right.clone();
                turned.rotate_left(1);
                let bounds = answers.bounds(&of, (&rig, tap.variants()), &kernel).unwrap();
                assert_eq!(astray(&bounds, &right), None, "{kernel}");
                assert!(astray(&bounds, &turned).is_some(), "{kernel}: each value is that of its neighbour");
                assert_eq!(astray(&bounds, &right[1..]), Some(0), "{kernel}: a value lacks");
                if tap.variants().iter().any(|v| v.key == kernel && v.order == Order::Free) {
                    free.push(choice.op);
                }
            }
        }
        assert!([OpName::Linear, OpName::Attention].iter().all(|op| free.contains(op)), "{free:?}");
    }
}
