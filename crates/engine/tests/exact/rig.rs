//! An engine over the tiny Qwen3 and the reference backend, and what a request gave, bit for bit.

use std::collections::BTreeMap;
use tare_engine::{Engine, EngineConfig, Event, FinishReason, Request, RequestId, Retained, StepReport, Usage};
use tare_model::{Model, PlanSpec};
use tare_ops::{Backend, Class, ReferenceBackend};

/// What differs between the engines of these tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rig {
    pub(crate) plan: &'static str,
    /// Only for `paged`.
    pub(crate) page_tokens: usize,
    pub(crate) kv_tokens: usize,
    pub(crate) max_rows: usize,
    pub(crate) max_sequences: usize,
}

/// One prompt at a time in one chunk, in one region: the plainest way to run.
pub(crate) const PLAIN: Rig =
    Rig { plan: "capacity-cache", page_tokens: 16, kv_tokens: 1024, max_rows: 64, max_sequences: 1 };

/// Pages and room for a few sequences.
pub(crate) const PAGED: Rig = Rig { plan: "paged", page_tokens: 16, kv_tokens: 1024, max_rows: 64, max_sequences: 4 };

impl Rig {
    pub(crate) fn engine(&self) -> Engine {
        self.engine_on(Box::new(ReferenceBackend::new()))
    }

    pub(crate) fn engine_on(&self, backend: Box<dyn Backend>) -> Engine {
        let path = tare_testkit::goldens().join("models/qwen3-tiny");
        let model = Model::open(path.to_str().expect("a path in UTF-8")).expect("the tiny model opens");
        let mut plan = PlanSpec::find(self.plan).expect("the plan exists");
        if self.plan == "paged" {
            plan.page_tokens = Some(self.page_tokens);
        }
        let config = EngineConfig {
            plan,
            class: Class::by_name("f32").expect("class f32"),
            context: 128,
            kv_tokens: self.kv_tokens,
            max_rows: self.max_rows,
            max_sequences: self.max_sequences,
            max_queue: 64,
        };
        Engine::new(&model, backend, config).expect("the engine starts")
    }
}

/// Everything a request gave. Floats are compared as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    /// Logits of each prompt position that was reported, then of each token.
    pub(crate) logits: Vec<Vec<u32>>,
    pub(crate) logprobs: Vec<u32>,
}

/// An answer and how it ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) usage: Usage,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) retained: Option<Retained>,
}

/// Collects what a report says.
pub(crate) fn collect(report: StepReport, into: &mut BTreeMap<RequestId, Ended>) {
    let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    for event in report.events {
        match event {
            Event::PromptLogits { request, first_position, logits } => {
                let answer = &mut into.entry(request).or_default().answer;
                assert!(answer.tokens.is_empty(), "prompt logits come before tokens");
                // With `PromptLogits::Last` the only position reported is not the first.
                assert!(answer.logits.is_empty() || answer.logits.len() == first_position, "logits come in order");
                answer.logits.extend(logits.iter().map(bits));
            }
            Event::Token { request, index, token, logprob, logits, .. } => {
                let answer = &mut into.entry(request).or_default().answer;
                assert_eq!(answer.tokens.len(), index, "tokens come in order");
                answer.tokens.push(token);
                answer.logprobs.push(logprob.to_bits());
                answer.logits.extend(logits.as_ref().map(bits));
            }
            Event::Finished { request, reason, usage, retained } => {
                let ended = into.entry(request).or_default();
                assert_eq!(ended.reason, None, "a request ends once");
                (ended.reason, ended.usage, ended.retained) = (Some(reason), usage, retained);
            }
        }
    }
}

/// Steps until nothing is left to do.
pub(crate) fn drain(engine: &mut Engine) -> BTreeMap<RequestId, Ended> {
    let mut ended = BTreeMap::new();
    for _ in 0..20_000 {
        if !engine.has_work() {
            return ended;
        }
        collect(engine.step().expect("the step runs"), &mut ended);
    }
    panic!("the engine does not come to an end");
}

/// One request to its end.
pub(crate) fn run(engine: &mut Engine, request: Request) -> Ended {
    let id = engine.submit(request).expect("the request is taken");
    drain(engine).remove(&id).expect("the request ended")
}

/// The three prompts of the golden file: 1, 7 and 33 tokens.
pub(crate) fn prompts() -> Vec<Vec<u32>> {
    let golden = tare_testkit::json(tare_testkit::goldens().join("models/qwen3-tiny/golden.json"));
    serde_json::from_value(golden["prompts"].clone()).expect("lists of ids")
}

/// A greedy request that brings the logits of every prompt position and of every token.
pub(crate) fn full(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt_logits: tare_engine::PromptLogits::All,
        token_logits: true,
        ..Request::greedy(prompt.to_vec(), max_tokens)
    }
}

/// A sampled request that brings the logits of every token.
pub(crate) fn sampled(prompt: &[u32], max_tokens: usize, seed: u64) -> Request {
    let sampling = tare_ops::SamplingParams {
        temperature: 1.0,
        top_p: 0.95,
        frequency_penalty: 0.3,
        ..tare_ops::SamplingParams::default()
    };
    Request { sampling, seed, token_logits: true, ..Request::greedy(prompt.to_vec(), max_tokens) }
}
