//! The conformance table itself: complete, answered by the reference, and able to find faults.

use std::collections::BTreeSet;

use tare_core::Format;
use tare_ops::conformance::{Case, Closeness, cases, check, run, uncovered};
use tare_ops::{Backend, Batch, Executable, ForwardPlan, OpError, OpName, ReferenceBackend, StepOutput};

#[test]
fn names_are_unique() {
    let all = cases();
    let names: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
}

#[test]
fn every_operator_and_format_has_a_case() {
    let all = cases();
    assert_eq!(uncovered(&all), Vec::<String>::new());
    let without = |gone: fn(&Case) -> bool| uncovered(&all.iter().filter(|c| !gone(c)).cloned().collect::<Vec<_>>());
    assert_eq!(without(|c| c.op() == OpName::SwiGlu), ["swiglu"], "a missing operator is noticed");
    let q6_k = |c: &Case| c.op() == OpName::Linear && c.format() == Some(Format::Q6K);
    assert_eq!(without(q6_k), ["linear.q6_k"], "a missing format is noticed");
}

#[test]
fn the_reference_answers_every_case() {
    let all = cases();
    let report = check(&mut ReferenceBackend::new(), &all, Closeness::Bitwise);
    assert!(report.differences.is_empty(), "{report}");
    assert_eq!(report.compared, all.len());
}

#[test]
fn no_result_is_poisoned() {
    for case in cases().iter().filter(|c| c.cache.is_none()) {
        let values = run(&mut ReferenceBackend::new(), case).unwrap();
        assert!(!values.is_empty() && values.iter().all(|x| x.is_finite()), "{}", case.name);
    }
}

/// A fault planted between the caller and a right backend.
#[derive(Clone, Copy)]
enum Plant {
    /// The last logit of the last row is off by one unit in the last place.
    LastBit,
    /// The last row gives what the row before it gave.
    LastRowUnwritten,
    /// Rotary positions are one too far.
    Position,
    /// One token more than the context is seen.
    MaskOffByOne,
    /// One token less is seen.
    TokenMissed,
    /// Two pages of a table are swapped.
    PagesSwapped,
    /// Rows store one place too early.
    SlotOffByOne,
    /// The first kv head serves every query head.
    WrongHead,
    /// What was in the output stays.
    AlwaysAccumulates,
    /// The bias is left out.
    BiasDropped,
    /// The temperature is ignored.
    Greedy,
}

struct Planted {
    inner: ReferenceBackend,
    plant: Plant,
}

impl Planted {
    fn plan(&self, plan: &ForwardPlan) -> ForwardPlan {
        let mut plan = plan.clone();
        for call in &mut plan.calls {
            match (self.plant, &mut call.op) {
                (Plant::WrongHead, tare_ops::Op::Attention { kv_of_head, .. }) => kv_of_head.fill(0),
                (Plant::AlwaysAccumulates, tare_ops::Op::Linear { accumulate, .. }) => *accumulate = true,
                (Plant::BiasDropped, tare_ops::Op::Linear { bias, .. }) => *bias = None,
                _ => {}
            }
        }
        plan
    }

    fn batch(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        for row in &mut batch.rows {
            match self.plant {
                Plant::Position => row.position += 1,
                Plant::MaskOffByOne => row.context += 1,
                Plant::TokenMissed => row.context = (row.context - 1).max(1),
                Plant::SlotOffByOne => row.slot = row.slot.saturating_sub(1),
                _ => {}
            }
        }
        if let Plant::PagesSwapped = self.plant {
            batch.tables.iter_mut().for_each(|t| t.pages.reverse());
        }
        if let Plant::Greedy = self.plant {
            for s in &mut batch.samplers {
                let params = (*s.params).clone();
                s.params = tare_ops::SamplingParams { temperature: 0.0, ..params }.into();
            }
        }
        batch
    }

    fn output(&self, out: &mut StepOutput) {
        match self.plant {
            Plant::LastBit => {
                if let Some(x) = out.rows.last_mut().and_then(|r| r.logits.last_mut()) {
                    *x = if *x == 0.0 { f32::MIN_POSITIVE } else { x.next_up() };
                }
            }
            Plant::LastRowUnwritten => {
                if let [.., before, last] = &mut out.rows[..] {
                    last.logits.clone_from(&before.logits);
                }
            }
            _ => {}
        }
    }
}

impl Backend for Planted {
    tare_ops::hand_on!(
        this => this.inner;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages,
        release, run_apart
    );

    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        self.inner.compile(&self.plan(plan))
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        let batch = self.batch(batch);
        self.inner.run(exe, &batch, out)?;
        self.output(out);
        Ok(())
    }
}

/// Cases of an operator that a plant fails, and how many there are.
fn caught(plant: Plant, op: OpName, closeness: Closeness) -> (usize, usize) {
    let all: Vec<Case> = cases().into_iter().filter(|c| c.op() == op).collect();
    let report = check(&mut Planted { inner: ReferenceBackend::new(), plant }, &all, closeness);
    (report.differences.len(), all.len())
}

#[test]
fn planted_faults_are_caught() {
    let plants = [
        (Plant::LastRowUnwritten, OpName::Linear),
        (Plant::LastRowUnwritten, OpName::SelectRows),
        (Plant::Position, OpName::Rope),
        (Plant::MaskOffByOne, OpName::Attention),
        (Plant::TokenMissed, OpName::Attention),
        (Plant::PagesSwapped, OpName::Attention),
        (Plant::PagesSwapped, OpName::KvAppend),
        (Plant::SlotOffByOne, OpName::KvAppend),
        (Plant::WrongHead, OpName::Attention),
        (Plant::AlwaysAccumulates, OpName::Linear),
        (Plant::BiasDropped, OpName::Linear),
        (Plant::Greedy, OpName::Sample),
    ];
    for (plant, op) in plants {
        let (failed, of) = caught(plant, op, Closeness::Within { abs: 1e-5, rel: 1e-4 });
        assert!(failed > 0, "{op}: no case of {of} noticed the fault");
    }
}

#[test]
fn one_bit_is_a_difference_only_where_bits_are_asked_for() {
    for op in [OpName::Linear, OpName::Attention, OpName::RmsNorm, OpName::SwiGlu] {
        let (failed, of) = caught(Plant::LastBit, op, Closeness::Bitwise);
        assert_eq!(failed, of, "{op}: every case looks at its last element");
        assert_eq!(caught(Plant::LastBit, op, Closeness::Within { abs: 1e-30, rel: 1e-6 }).0, 0, "{op}");
    }
}

#[test]
fn a_report_names_case_kernel_and_the_first_difference() {
    let all: Vec<Case> = cases().into_iter().filter(|c| c.name == "linear.q4_0.t1_n1_k32").collect();
    let report =
        check(&mut Planted { inner: ReferenceBackend::new(), plant: Plant::LastBit }, &all, Closeness::Bitwise);
    let text = report.to_string();
    assert!(text.contains("linear.q4_0.t1_n1_k32 on linear.q4_0.reference: 1 of 1 values; first at 0"), "{text}");
}
