//! What wraps a backend hands every call on: what was asked arrives, and what was answered comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tare_core::{Blob, Format, PageUse, Reading, Weight};
use tare_ops::{
    Backend, BackendInfo, Batch, Benched, Executable, ForwardPlan, KvId, KvShape, KvSpan, Launched, OpError,
    ReferenceBackend, RowOutput, StepOutput, Variant, WeightId, conformance, hand_on,
};

/// Notes what it is asked, and answers each question in a way of its own.
#[derive(Clone)]
struct Noted {
    asked: Arc<Mutex<Vec<(&'static str, String)>>>,
    variants: Vec<Variant>,
}

impl Noted {
    fn new() -> Self {
        Self { asked: Arc::default(), variants: ReferenceBackend::new().variants()[..2].to_vec() }
    }
    fn note(&self, method: &'static str, with: impl std::fmt::Debug) {
        self.asked.lock().unwrap().push((method, format!("{with:?}")));
    }
}

impl Backend for Noted {
    fn describe(&self) -> BackendInfo {
        self.note("describe", ());
        BackendInfo {
            name: "noted".into(),
            device: "none".into(),
            threads: 3,
            isa: ReferenceBackend::new().describe().isa,
        }
    }
    fn variants(&self) -> &[Variant] {
        self.note("variants", ());
        &self.variants
    }
    fn device_bytes(&self) -> Reading<u64> {
        self.note("device_bytes", ());
        Reading::Available(4)
    }
    fn pack(&mut self, weight: &Weight) -> Result<WeightId, OpError> {
        self.note("pack", weight.name());
        Ok(WeightId(5))
    }
    fn alloc_kv(&mut self, shape: KvShape, pages: usize, page_tokens: usize) -> Result<KvId, OpError> {
        self.note("alloc_kv", (shape, pages, page_tokens));
        Ok(KvId(6))
    }
    fn free_kv(&mut self, kv: KvId) -> Result<(), OpError> {
        self.note("free_kv", kv);
        Ok(())
    }
    fn copy_kv(&mut self, from: KvSpan, to: KvSpan) -> Result<(), OpError> {
        self.note("copy_kv", (from, to));
        Ok(())
    }
    fn read_kv(&mut self, span: KvSpan) -> Result<Vec<u8>, OpError> {
        self.note("read_kv", span);
        Ok(vec![7])
    }
    fn write_kv(&mut self, span: KvSpan, bytes: &[u8]) -> Result<(), OpError> {
        self.note("write_kv", (span, bytes));
        Ok(())
    }
    fn rest(&mut self) {
        self.note("rest", ());
    }
    fn benched(&self) -> Reading<Benched> {
        self.note("benched", ());
        Reading::Available(Benched { regions: 23, short: 24, most: 25 })
    }
    fn pages(&self) -> Reading<BTreeMap<String, PageUse>> {
        self.note("pages", ());
        Reading::unavailable("noted")
    }
    fn compile(&mut self, plan: &ForwardPlan) -> Result<Executable, OpError> {
        self.note("compile", &plan.name);
        Ok(Executable(8))
    }
    fn release(&mut self, exe: Executable) {
        self.note("release", exe);
    }
    fn run(&mut self, exe: Executable, batch: &Batch, out: &mut StepOutput) -> Result<(), OpError> {
        self.note("run", (exe, batch));
        out.rows = vec![RowOutput { row: 9, ..RowOutput::default() }];
        Ok(())
    }
    fn run_apart(
        &mut self,
        exe: Executable,
        batch: &Batch,
        rows: &[usize],
        out: &mut StepOutput,
        launched: &mut Vec<Launched>,
    ) -> Result<(), OpError> {
        self.note("run_apart", (exe, batch, rows));
        out.rows = vec![RowOutput { row: 10, ..RowOutput::default() }];
        launched.push(Launched { calls: 11..12, left: Vec::new() });
        Ok(())
    }
}

struct Field<B>(B);

impl<B: Backend> Backend for Field<B> {
    hand_on!(
        this => this.0;
        describe, variants, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages,
        compile, release, run, run_apart
    );
}

struct Guarded<B>(Mutex<B>, Vec<Variant>);

impl<B: Backend> Backend for Guarded<B> {
    hand_on!(
        this => this.0.lock().unwrap();
        describe, device_bytes, pack, alloc_kv, free_kv, copy_kv, read_kv, write_kv, rest, benched, pages, compile,
        release, run, run_apart
    );

    fn variants(&self) -> &[Variant] {
        let _ = self.0.lock().unwrap().variants();
        &self.1
    }
}

/// Asks everything, and gives what came back.
fn answers(of: &mut dyn Backend) -> Vec<String> {
    let weight = Weight::blocks("w", Format::F32, 1, 1, Blob::from_vec(vec![0; 4])).unwrap();
    let plan = &conformance::cases()[0].plan;
    let shape = plan.kv;
    let span = |page| KvSpan { kv: KvId(1), page, start: 2, tokens: 3 };
    let batch = Batch { tables: vec![tare_ops::Table { kv: KvId(2), pages: vec![4] }], ..Batch::default() };
    let (mut out, mut apart, mut launched) = (StepOutput::default(), StepOutput::default(), Vec::new());
    of.rest();
    of.release(Executable(12));
    vec![
        format!("{:?}", of.describe()),
        format!("{:?}", of.variants()),
        format!("{:?}", of.device_bytes()),
        format!("{:?}", of.benched()),
        format!("{:?}", of.pages()),
        format!("{:?}", of.pack(&weight)),
        format!("{:?}", of.alloc_kv(shape, 13, 14)),
        format!("{:?}", of.free_kv(KvId(15))),
        format!("{:?}", of.copy_kv(span(16), span(17))),
        format!("{:?}", of.read_kv(span(18))),
        format!("{:?}", of.write_kv(span(19), &[20])),
        format!("{:?}", of.compile(plan)),
        format!("{:?} {:?}", of.run(Executable(21), &batch, &mut out), out.rows),
        format!(
            "{:?} {:?} {launched:?}",
            of.run_apart(Executable(22), &batch, &[23], &mut apart, &mut launched),
            apart.rows
        ),
    ]
}

/// The methods of the trait, by its own text.
fn methods() -> BTreeSet<&'static str> {
    let text = include_str!("../src/backend.rs");
    let body = text.split("pub trait Backend").nth(1).and_then(|t| t.split("\n}\n").next()).unwrap();
    body.lines().filter_map(|l| l.trim_start().strip_prefix("fn ")?.split('(').next()).collect()
}

#[test]
fn every_method_is_handed_on() {
    let alone = Noted::new();
    let want = answers(&mut alone.clone());
    let asked = alone.asked.lock().unwrap().clone();
    let names: BTreeSet<&str> = asked.iter().map(|(method, _)| *method).collect();
    assert_eq!(names, methods(), "this test asks everything");
    assert_eq!(names.len(), asked.len(), "and each once");
    let wrapped: [fn(Noted) -> Box<dyn Backend>; 3] = [
        |noted| Box::new(Box::new(noted)),
        |noted| Box::new(Field(noted)),
        |noted| Box::new(Guarded(Mutex::new(noted.clone()), noted.variants)),
    ];
    for wrap in wrapped {
        let noted = Noted::new();
        assert_eq!(answers(&mut *wrap(noted.clone())), want);
        assert_eq!(*noted.asked.lock().unwrap(), asked);
    }
}
