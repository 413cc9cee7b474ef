//! What is refused is refused before anything changes; what is preempted comes back as if nothing had happened.

use crate::rig::{Answer, PAGED, PLAIN, Rig, drain, full, prompts, run, sampled};
use tare_engine::{Refused, Request};
use tare_ops::SamplingParams;

#[test]
fn preempted_is_undisturbed() {
    let prompts = prompts();
    let requests = || (0..4).map(|i| if i % 2 == 0 { full(&prompts[2], 10) } else { sampled(&prompts[1], 24, i) });
    let alone: Vec<Answer> = requests().map(|r| run(&mut PLAIN.engine(), r).answer).collect();
    for plan in ["paged", "kv-cache", "recompute"] {
        // Room for about two of the four at their longest.
        let rig = Rig { plan, page_tokens: 4, kv_tokens: 80, max_rows: 24, max_sequences: 4 };
        let mut engine = rig.engine();
        let ids: Vec<_> = requests().map(|r| engine.submit(r).unwrap()).collect();
        let ended = drain(&mut engine);
        assert!(engine.counters().preemptions > 0, "{plan}: the pool was meant to be too small");
        for (i, id) in ids.iter().enumerate() {
            assert!(ended[id].answer == alone[i], "{plan}: request {i} differs");
        }
        assert_eq!(engine.counters().pool.live, 0, "{plan}");
        assert!(engine.counters().pool.peak <= engine.counters().pool.capacity, "{plan}");
    }
}

#[test]
fn what_can_never_run_is_refused_with_its_numbers() {
    let mut engine = Rig { kv_tokens: 40, ..PAGED }.engine();
    let refused = |engine: &mut tare_engine::Engine, r| engine.submit(r).unwrap_err();
    assert_eq!(refused(&mut engine, Request::greedy(vec![], 1)), Refused::PromptEmpty);
    assert_eq!(
        refused(&mut engine, Request::greedy(vec![1; 128], 1)),
        Refused::ContextExceeded { prompt_tokens: 128, output_tokens: 1, context_tokens: 128 }
    );
    // 33 tokens stored need three pages of 16, the pool has two.
    assert_eq!(
        refused(&mut engine, Request::greedy(vec![1; 30], 4)),
        Refused::NeverFits { needed_tokens: 48, capacity_tokens: 32 }
    );
    let outside = refused(&mut engine, Request { stop_tokens: vec![0, 512], ..Request::greedy(vec![1], 1) });
    assert_eq!(outside, Refused::OutOfVocabulary { place: "stop_tokens[1]".into(), token: 512, vocabulary: 512 });
    assert!(!engine.has_work());
    assert!(engine.submit(Request::greedy(vec![1; 30], 3)).is_ok());
    let most = engine.capacity();
    for _ in 1..most {
        engine.submit(Request::greedy(vec![1], 1)).unwrap();
    }
    assert_eq!(refused(&mut engine, Request::greedy(vec![1], 1)), Refused::QueueFull { waiting: most });
    assert_eq!(drain(&mut engine).len(), most);
}

/// In a step they would fail every request that runs beside, again and again.
#[test]
fn parameters_that_no_step_could_use_are_refused() {
    let mut engine = PAGED.engine();
    let plain = SamplingParams::default;
    let everything = |bias| (0..512).map(|token| (token, bias)).collect::<Vec<_>>();
    let faulty = [
        ("temperature", SamplingParams { temperature: -0.5, ..plain() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..plain() }),
        ("top_p", SamplingParams { top_p: 0.0, ..plain() }),
        ("min_p", SamplingParams { min_p: 1.5, ..plain() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..plain() }),
        ("presence_penalty", SamplingParams { presence_penalty: f32::INFINITY, ..plain() }),
        ("top_logprobs", SamplingParams { top_logprobs: 513, ..plain() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(3, f32::NAN)], ..plain() }),
        ("logit_bias and stop_tokens", SamplingParams { logit_bias: everything(f32::NEG_INFINITY), ..plain() }),
    ];
    for (at, sampling) in faulty {
        let refused = engine.submit(Request { sampling, ..Request::greedy(vec![1], 1) }).unwrap_err();
        assert!(matches!(&refused, Refused::Sampling(fault) if fault.at == at), "{at}: {refused}");
    }
    let stops = Request { stop_tokens: (0..512).collect(), min_tokens: 1, ..Request::greedy(vec![1], 1) };
    assert!(matches!(engine.submit(stops).unwrap_err(), Refused::Sampling(_)));
    assert!(!engine.has_work());
    let mut bias = everything(f32::NEG_INFINITY);
    bias[77].1 = 0.0;
    let only = SamplingParams { logit_bias: bias, ..plain() };
    assert_eq!(run(&mut engine, Request { sampling: only, ..Request::greedy(vec![1], 2) }).answer.tokens, [77, 77]);
}

#[test]
fn the_context_ends_a_request() {
    let ended = run(&mut PAGED.engine(), Request::greedy(vec![1; 120], 100));
    assert_eq!(ended.reason, Some(tare_engine::FinishReason::Context));
    assert_eq!(ended.usage.output_tokens, 8);
}

#[test]
fn a_prompt_alone_gives_its_last_logits() {
    let prompt = &prompts()[1];
    let all = run(&mut PAGED.engine(), full(prompt, 0)).answer;
    let last = run(&mut PAGED.engine(), Request::greedy(prompt.clone(), 0)).answer;
    assert_eq!((all.logits.len(), last.logits.len(), last.tokens.len()), (prompt.len(), 1, 0));
    assert!(last.logits[0] == all.logits[prompt.len() - 1]);
}
