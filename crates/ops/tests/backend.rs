//! The promises of the `Backend` trait, kept by the reference: what is refused, and that a refusal changes nothing.

mod decoder;

use std::sync::Arc;

use decoder::{BUCKET, KV, VOCAB};
use tare_core::DType;
use tare_ops::{
    Backend, Batch, Executable, KvId, KvShape, KvSpan, Op, OpError, ReferenceBackend, Row, SampleOrder, Sampler,
    SamplingParams, StepOutput, Table, TokenSource, Wants, WeightId,
};

const PAGES: usize = 4;
const PAGE_TOKENS: usize = 4;

struct World {
    backend: ReferenceBackend,
    exe: Executable,
    kv: KvId,
}

impl World {
    fn new() -> Self {
        let (mut backend, exe) = decoder::model();
        let kv = backend.alloc_kv(KV, PAGES, PAGE_TOKENS).unwrap();
        Self { backend, exe, kv }
    }

    /// `n` rows of one sequence that lies in pages 2 and 0.
    fn batch(&self, n: u32) -> Batch {
        let row = |i| Row {
            token: TokenSource::Id(i),
            position: i,
            table: 0,
            slot: i,
            context: i + 1,
            wants: if i + 1 == n { Wants::Logits } else { Wants::Nothing },
        };
        let tables = vec![Table { kv: self.kv, pages: vec![2, 0] }];
        Batch { rows: (0..n).map(row).collect(), tables, samplers: Vec::new() }
    }

    fn run(&mut self, batch: &Batch) -> Result<StepOutput, OpError> {
        let mut out = StepOutput::default();
        self.backend.run(self.exe, batch, &mut out).map(|()| out)
    }

    fn bytes(&mut self) -> Vec<Vec<u8>> {
        let span = |page| KvSpan { kv: self.kv, page, start: 0, tokens: PAGE_TOKENS };
        (0..PAGES as u32).map(span).map(|s| self.backend.read_kv(s).unwrap()).collect()
    }
}

fn sampler(params: SamplingParams) -> Sampler {
    Sampler { params: Arc::new(params), seed: 0, index: 0, prompt: Arc::new([]), output: Vec::new(), allowed: None }
}

#[test]
fn a_batch_that_does_not_fit_is_refused_and_nothing_changes() {
    let mut w = World::new();
    w.run(&w.batch(3)).unwrap();
    let before = w.bytes();
    type Break = fn(&mut Batch);
    let breaks: [(&str, Break); 19] = [
        ("batch rows", |b| b.rows.clear()),
        ("batch rows", |b| b.rows = vec![b.rows[0]; BUCKET.rows + 1]),
        ("rows that want something", |b| b.rows = vec![Row { wants: Wants::Logits, ..b.rows[0] }; BUCKET.selected + 1]),
        ("row 1: token", |b| b.rows[1].token = TokenSource::Id(VOCAB as u32)),
        ("row 1: token", |b| b.rows[1].token = TokenSource::Previous(1)),
        ("row 2: table", |b| b.rows[2].table = 1),
        ("row 2", |b| b.rows[2].slot = 8),
        ("row 2", |b| b.rows[2].context = 9),
        ("row 2", |b| b.rows[2].context = 0),
        ("row 2", |b| b.rows[2].slot = u32::MAX),
        ("slots", |b| b.rows[2].slot = b.rows[1].slot),
        ("slots", |b| b.tables[0].pages = vec![2, 2]),
        ("table 0", |b| b.tables[0].kv = KvId(99)),
        ("table 0", |b| b.tables[0].pages[1] = PAGES as u32),
        ("row 0", |b| b.tables[0].pages.clear()),
        ("row 2: sampler", |b| b.rows[2].wants = Wants::Token(0)),
        ("row 2: temperature", |b| {
            b.rows[2].wants = Wants::Token(0);
            b.samplers.push(sampler(SamplingParams { temperature: -1.0, ..SamplingParams::default() }));
        }),
        ("row 2: token history", |b| {
            b.rows[2].wants = Wants::Token(0);
            b.samplers.push(Sampler { output: vec![VOCAB as u32], ..sampler(SamplingParams::default()) });
        }),
        ("row 2: allowed", |b| {
            b.rows[2].wants = Wants::TokenAndLogits(0);
            b.samplers.push(Sampler { allowed: Some(Arc::new([1, 1])), ..sampler(SamplingParams::default()) });
        }),
    ];
    for (n, (at, damage)) in breaks.into_iter().enumerate() {
        let mut batch = w.batch(3);
        if at == "slots" {
            // Room for two rows at one place, whichever way they come there.
            batch.rows.push(Row { slot: 4, context: 5, ..batch.rows[0] });
        }
        damage(&mut batch);
        match w.run(&batch) {
            Err(OpError::Input(fault)) => assert!(fault.at.starts_with(at), "break {n}: {fault}"),
            other => panic!("break {n}: {other:?}"),
        }
        assert_eq!(w.bytes(), before, "break {n} changed the cache");
    }
    assert!(w.run(&w.batch(3)).is_ok());
}

#[test]
fn unknown_handles_are_refused() {
    let mut w = World::new();
    let span = KvSpan { kv: KvId(77), page: 0, start: 0, tokens: 1 };
    assert!(w.backend.free_kv(KvId(77)).is_err());
    assert!(w.backend.read_kv(span).is_err());
    assert!(w.backend.write_kv(span, &[]).is_err());
    assert!(w.backend.copy_kv(span, span).is_err());
    let batch = w.batch(1);
    w.backend.free_kv(w.kv).unwrap();
    assert!(w.run(&batch).is_err(), "a pool that was given back");
    w.backend.release(w.exe);
    assert!(w.run(&batch).unwrap_err().to_string().contains("executable"));
}

#[test]
fn plans_that_do_not_fit_are_refused() {
    let mut backend = ReferenceBackend::new();
    let good = decoder::plan(&mut backend);
    assert!(backend.compile(&good).is_ok());
    let mut refused = |what: &str, damage: &dyn Fn(&mut tare_ops::ForwardPlan)| {
        let mut plan = good.clone();
        damage(&mut plan);
        let error = backend.compile(&plan).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    };
    refused("linear.f32.avx9", &|p| p.calls[2].kernel = "linear.f32.avx9".into());
    refused("kernel", &|p| p.calls[2].kernel = "linear.q4_0.reference".into());
    refused("kernel", &|p| p.calls[2].kernel = "rope.f32.reference".into());
    refused("packed format", &|p| {
        let linear = p
            .calls
            .iter_mut()
            .find_map(|c| if let Op::Linear { rounding, .. } = &mut c.op { Some(rounding) } else { None });
        *linear.unwrap() = tare_ops::Rounding::Int8;
    });
    refused("width", &|p| p.buffers[1].width += 1);
    refused("above 0", &|p| p.buffers[1].width = 0);
    refused("a weight of this plan", &|p| p.weights[0].id = WeightId(999));
    refused("a handle", &|p| {
        p.weights[0].id = WeightId(999);
        if let Op::Embedding { table, .. } = &mut p.calls[0].op {
            *table = WeightId(999);
        }
    });
    refused("[20, 24]", &|p| p.weights[0].rows += 1);
    refused("below 2", &|p| {
        for call in &mut p.calls {
            if let Op::KvAppend { layer, .. } = &mut call.op {
                *layer = 2;
            }
        }
    });
    refused("both", &|p| {
        if let Op::RmsNorm { x, out, .. } = &mut p.calls[1].op {
            *out = *x;
        }
    });
}

#[test]
fn previous_is_the_token_of_the_step_before() {
    let mut w = World::new();
    let first = w.run(&w.batch(3)).unwrap().rows.remove(0);
    let logits_of = |w: &mut World, token| {
        let mut next = w.batch(4);
        next.rows.drain(..3);
        next.rows[0].token = token;
        w.run(&next).unwrap().rows.remove(0).logits
    };
    let device = logits_of(&mut w, TokenSource::Previous(0));
    assert_eq!(device, logits_of(&mut w, TokenSource::Id(first.token)));
    assert_ne!(device, logits_of(&mut w, TokenSource::Id((first.token + 1) % VOCAB as u32)));
}

#[test]
fn a_copied_or_exported_cache_is_the_cache() {
    let mut w = World::new();
    w.run(&w.batch(5)).unwrap();
    let mut next = w.batch(6);
    next.rows.drain(..5);
    let want = w.run(&next).unwrap();

    let span = |kv, page, tokens| KvSpan { kv, page, start: 0, tokens };
    let other = w.backend.alloc_kv(KV, 3, PAGE_TOKENS).unwrap();
    w.backend.copy_kv(span(w.kv, 2, 4), span(other, 1, 4)).unwrap();
    let exported = w.backend.read_kv(span(w.kv, 0, 1)).unwrap();
    assert_eq!(exported.len(), KV.token_bytes());
    w.backend.write_kv(span(other, 2, 1), &exported).unwrap();
    next.tables[0] = Table { kv: other, pages: vec![1, 2] };
    assert_eq!(w.run(&next).unwrap().rows, want.rows);

    let wide = w.backend.alloc_kv(KvShape { dtype: DType::F32, ..KV }, 1, PAGE_TOKENS).unwrap();
    assert!(w.backend.copy_kv(span(other, 1, 1), span(wide, 0, 1)).is_err(), "another element type");
    assert!(w.backend.copy_kv(span(other, 1, 2), span(w.kv, 0, 1)).is_err(), "another number of tokens");
    assert!(w.backend.copy_kv(span(other, 1, 5), span(w.kv, 0, 5)).is_err(), "more than a page");
    next.tables[0] = Table { kv: wide, pages: vec![0] };
    assert!(w.run(&next).is_err(), "a pool of another shape than the plan's");
}

#[test]
fn rewound_is_never_happened() {
    let mut w = World::new();
    w.run(&w.batch(4)).unwrap();
    let mut next = w.batch(5);
    next.rows.drain(..4);
    let want = w.run(&next).unwrap();
    // Two other tokens run from position 3 on; then the sequence is taken back and runs as before.
    let mut astray = w.batch(5);
    astray.rows.drain(..3);
    astray.rows.iter_mut().for_each(|r| r.token = TokenSource::Id(17));
    assert_ne!(w.run(&astray).unwrap().rows, want.rows);
    let mut again = w.batch(4);
    again.rows.drain(..3);
    w.run(&again).unwrap();
    assert_eq!(w.run(&next).unwrap().rows, want.rows);
}

#[test]
fn a_request_draws_the_same_tokens_in_any_slot_and_company() {
    let params = SamplingParams { temperature: 1.5, order: SampleOrder::Hf, ..SamplingParams::default() };
    let draw = |company: u32| {
        let mut w = World::new();
        let mut batch = w.batch(1);
        batch.rows[0].wants = Wants::Token(company);
        batch.samplers =
            (0..=company).map(|n| Sampler { seed: 500 - u64::from(n), ..sampler(params.clone()) }).collect();
        batch.samplers[company as usize].seed = 11;
        let mine = batch.rows[0];
        for n in 0..company {
            let others = Row { table: n + 1, token: TokenSource::Id(n + 3), wants: Wants::Token(n), ..mine };
            batch.rows.insert(0, others);
            batch.tables.push(Table { kv: w.kv, pages: vec![[0, 1, 3][n as usize]] });
        }
        let out = w.run(&batch).unwrap();
        let row = out.rows.last().unwrap();
        (row.token, row.logprob.to_bits())
    };
    let alone = draw(0);
    assert_eq!(draw(1), alone);
    assert_eq!(draw(3), alone);
}
