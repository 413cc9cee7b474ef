//! Decode steps on end, of sequences that come and go: tokens stay numbers, pages come back, memory does not grow, and a request
//! has the same logits at the end as at the beginning.

use crate::emulator::Emulator;
use crate::gpu;
use tare_cuda::{CudaBackend, Driver};
use tare_engine::{Engine, EngineConfig, Event, Request, RequestId};
use tare_model::{Model, PlanSpec, classes};
use tare_ops::Backend;

/// Sequences at once.
const SEQUENCES: usize = 3;
struct Soak {
    engine: Engine,
    /// Most tokens of a sequence.
    context: u32,
    vocab: u32,
    /// Requests so far: each has its own ids and lengths.
    asked: u32,
    /// Requests that have not ended.
    live: usize,
    /// Steps in which a sequence took a token after its first.
    decode_steps: usize,
}

impl Soak {
    fn new((model, class): (&str, &str), backend: Box<dyn Backend>, context: u32) -> Self {
        let model = Model::open(model).unwrap();
        let config = EngineConfig {
            plan: PlanSpec { page_tokens: Some(8), ..PlanSpec::find("paged").unwrap() },
            class: classes::choose(&model, Some(class)).unwrap(),
            context: context as usize,
            kv_tokens: SEQUENCES * context as usize,
            max_rows: 16,
            max_sequences: SEQUENCES,
            max_queue: SEQUENCES,
        };
        let vocab = model.config().vocab as u32;
        Self {
            engine: Engine::new(&model, backend, config).unwrap(),
            context,
            vocab,
            asked: 0,
            live: 0,
            decode_steps: 0,
        }
    }

    fn ids(&self, n: u32, seed: u32) -> Vec<u32> {
        (0..n).map(|i| (i * 37 + seed * 11) % self.vocab).collect()
    }

    /// Request `n` of many, none as long as may be.
    fn any(&self, n: u32) -> Request {
        Request::greedy(self.ids(1 + n * 7 % (self.context / 4), n), (2 + n * 29 % (self.context / 2)) as usize)
    }

    fn submit(&mut self, request: Request) -> RequestId {
        self.live += 1;
        self.engine.submit(request).unwrap()
    }

    /// One step; gives the logits that came.
    fn step(&mut self) -> Vec<(RequestId, Vec<u32>)> {
        let mut told = Vec::new();
        let mut decoded = false;
        for event in self.engine.step().unwrap().events {
            match event {
                Event::Token { request, index, token, logit, logprob, logits, .. } => {
                    assert!(
                        token < self.vocab && logit.is_finite() && logprob.is_finite(),
                        "{token}: {logit}, {logprob}"
                    );
                    decoded |= index > 0;
                    told.extend(logits.map(|l| (request, l.iter().map(|x| x.to_bits()).collect())));
                }
                Event::Finished { .. } => self.live -= 1,
                Event::PromptLogits { .. } => {}
            }
        }
        self.decode_steps += usize::from(decoded);
        told
    }

    /// The logits of one request, as bits, when nobody else asks.
    fn probe(&mut self) -> Vec<Vec<u32>> {
        let request = Request { token_logits: true, ..Request::greedy(self.ids(19, 1), 4) };
        let id = self.submit(request);
        let mut told = Vec::new();
        while self.engine.has_work() {
            told.extend(self.step().into_iter().filter(|(of, _)| *of == id).map(|(_, logits)| logits));
        }
        assert_eq!(told.len(), 4);
        told
    }

    /// As many sequences as there may be, each as long as one may be: nothing needs more memory.
    fn fill(&mut self) {
        for n in 0..SEQUENCES as u32 {
            self.submit(Request::greedy(self.ids(self.context - 3, n), 3));
        }
        self.run(0);
    }

    /// So many decode steps more, of as many sequences as there may be, and on until all have ended.
    fn run(&mut self, steps: usize) {
        let until = self.decode_steps + steps;
        while self.decode_steps < until || self.engine.has_work() {
            while self.decode_steps < until && self.live < SEQUENCES {
                self.asked += 1;
                let n = self.asked;
                let request = self.any(n);
                self.submit(request);
            }
            self.step();
        }
        assert_eq!(self.engine.counters().pool.live, 0, "every page came back");
    }

    fn bytes(&self) -> u64 {
        *self.engine.device_bytes().available().unwrap()
    }
}

/// `steps` decode steps between two runs of one request.
fn soak(what: (&str, &str), backend: Box<dyn Backend>, (steps, context): (usize, u32)) {
    let mut soak = Soak::new(what, backend, context);
    let before = soak.probe();
    soak.fill();
    let bytes = soak.bytes();
    soak.run(steps);
    assert_eq!(soak.bytes(), bytes, "memory grew");
    assert!(soak.decode_steps >= steps);
    assert!(soak.probe() == before, "one request, other logits, after {} steps", soak.decode_steps);
}

const CASES: [(&str, &str); 3] = [
    ("synthetic:qwen3-tiny?format=w4g128", "w4a16"),
    ("synthetic:qwen3-tiny?format=w4g128", "w4a16-free"),
    ("synthetic:qwen3-tiny?format=bf16", "bf16-free"),
];

#[test]
fn a_request_has_the_same_logits_after_many_steps_of_others() {
    soak(CASES[1], Box::new(CudaBackend::new(Emulator::default())), (12, 32));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_soak_of_ten_thousand_steps() {
    for case in CASES {
        soak(case, Box::new(CudaBackend::new(Driver::open(gpu(false)).unwrap())), (10_000, 256));
    }
}
