//! Runs a small model on the reference backend: one sequence in one page, no engine.

use std::ops::Range;
use tare_core::DType;
use tare_model::{Model, PackedModel, PlanSpec, Target, classes, resolve};
use tare_ops::reference::ReferenceBackend;
use tare_ops::{
    Backend, Batch, Bucket, BufId, Buffer, Executable, ForwardPlan, KvId, KvSpan, Op, OpCall, Row, RowSpace,
    StepOutput, Table, TokenSource, Wants,
};

/// Tokens of the one page.
const PAGE: usize = 128;

pub(crate) struct Runner {
    backend: ReferenceBackend,
    plan: ForwardPlan,
    exe: Executable,
    kv: KvId,
}

impl Runner {
    /// `model` in the class called `class`, with room for [`PAGE`] tokens.
    pub(crate) fn new(model: &Model, class: &str) -> Self {
        let mut backend = ReferenceBackend::new();
        let packed = PackedModel::pack(model, &mut backend).expect("the model packs");
        let class = classes::choose(model, Some(class)).expect("the model runs in the class");
        let bucket = Bucket { rows: PAGE, selected: PAGE };
        let spec = PlanSpec::find("capacity-cache").expect("the plan is built in");
        let resolved = resolve(&spec, &packed, &backend, Target { class, bucket, context: PAGE }).expect("it resolves");
        let plan = resolved.plan;
        let exe = backend.compile(&plan).expect("it compiles");
        let kv = backend.alloc_kv(plan.kv, 1, PAGE).expect("one page fits");
        Self { backend, plan, exe, kv }
    }

    /// Logits [n, V] of all positions of `ids`.
    pub(crate) fn logits(&mut self, ids: &[u32]) -> Vec<f32> {
        self.rows(self.exe, ids)
    }

    /// `count` tokens after `ids`, each the most likely one, from a KV cache.
    pub(crate) fn greedy(&mut self, ids: &[u32], count: usize) -> Vec<u32> {
        let mut out = StepOutput::default();
        let mut step = |start: usize, ids: &[u32]| {
            self.backend.run(self.exe, &batch(self.kv, start, ids), &mut out).expect("the step runs");
            out.rows.last().expect("rows were asked for").token
        };
        let mut tokens = vec![step(0, ids)];
        while tokens.len() < count {
            let last = tokens[tokens.len() - 1];
            tokens.push(step(ids.len() + tokens.len() - 1, &[last]));
        }
        tokens
    }

    /// The buffer called `name` [n, width] for every position of `ids`, as it is after `calls` calls of the plan.
    pub(crate) fn buffer(&mut self, ids: &[u32], name: &str, calls: usize) -> Vec<f32> {
        let mut plan = self.plan.clone();
        plan.calls.truncate(calls);
        plan.calls.retain(|c| !matches!(c.op, Op::Sample { .. }));
        let at = plan.buffers.iter().position(|b| b.name == name).expect("a buffer of the plan");
        let mut tapped = BufId(at as u16);
        if plan.buffers[at].rows == RowSpace::All {
            let selected = Buffer { rows: RowSpace::Selected, ..plan.buffers[at].clone() };
            plan.buffers.push(selected);
            let out = BufId((plan.buffers.len() - 1) as u16);
            plan.calls.push(self.call(Op::SelectRows { x: tapped, out }));
            tapped = out;
        }
        plan.calls.push(self.call(Op::Sample { logits: tapped }));
        let exe = self.backend.compile(&plan).expect("the cut plan compiles");
        let rows = self.rows(exe, ids);
        self.backend.release(exe);
        rows
    }

    /// `op` with the kernel that the whole plan uses for it.
    fn call(&self, op: Op) -> OpCall {
        let like = self.plan.calls.iter().find(|c| c.op.name() == op.name()).expect("every plan has it");
        OpCall { kernel: like.kernel.clone(), op, layer: None }
    }

    /// Where in the plan the first call after `layer`'s last one is.
    pub(crate) fn end_of_layer(&self, layer: u32) -> usize {
        1 + self.plan.calls.iter().rposition(|c| c.layer == Some(layer)).expect("a layer of the model")
    }

    /// Where in the plan the first attention is.
    pub(crate) fn first_attention(&self) -> usize {
        self.plan.calls.iter().position(|c| matches!(c.op, Op::Attention { .. })).expect("there is one")
    }

    /// Keys [n, K, E] of the first layer as the last step left them, in class f32.
    pub(crate) fn first_keys(&mut self, tokens: usize) -> Vec<f32> {
        assert_eq!(self.plan.kv.dtype, DType::F32);
        let span = KvSpan { kv: self.kv, page: 0, start: 0, tokens };
        let bytes = self.backend.read_kv(span).expect("the span is in the page");
        let keys = &bytes[..tokens * self.plan.kv.kv_heads * self.plan.kv.head_size * 4];
        keys.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// Logits [V] of the last of `ids`, the others being cached, while the tokens in `lost` are gone from the cache.
    pub(crate) fn last_logits_without(&mut self, ids: &[u32], lost: Range<usize>) -> Vec<f32> {
        let (last, before) = ids.split_last().expect("at least one id");
        let span = KvSpan { kv: self.kv, page: 0, start: lost.start, tokens: lost.len() };
        let kept = self.backend.read_kv(span).expect("the span is in the page");
        self.backend.write_kv(span, &vec![0; kept.len()]).expect("the span is in the page");
        let mut out = StepOutput::default();
        self.backend.run(self.exe, &batch(self.kv, before.len(), &[*last]), &mut out).expect("the step runs");
        self.backend.write_kv(span, &kept).expect("the span is in the page");
        out.rows.swap_remove(0).logits
    }

    fn rows(&mut self, exe: Executable, ids: &[u32]) -> Vec<f32> {
        let mut out = StepOutput::default();
        self.backend.run(exe, &batch(self.kv, 0, ids), &mut out).expect("the step runs");
        out.rows.into_iter().flat_map(|r| r.logits).collect()
    }
}

fn batch(kv: KvId, start: usize, ids: &[u32]) -> Batch {
    let row = |(i, id): (usize, &u32)| {
        let at = (start + i) as u32;
        Row { token: TokenSource::Id(*id), position: at, table: 0, slot: at, context: at + 1, wants: Wants::Logits }
    };
    let tables = vec![Table { kv, pages: vec![0] }];
    Batch { rows: ids.iter().enumerate().map(row).collect(), tables, samplers: Vec::new() }
}
