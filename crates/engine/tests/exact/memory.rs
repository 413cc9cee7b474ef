//! What is refused is refused before anything changes; what is preempted comes back as if nothing had happened.

use crate::rig::{Answer, PAGED, PLAIN, Rig, drain, full, prompts, run, sampled};
use tare_engine::{Refused, Request};

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
    for _ in 1..64 {
        engine.submit(Request::greedy(vec![1], 1)).unwrap();
    }
    assert_eq!(refused(&mut engine, Request::greedy(vec![1], 1)), Refused::QueueFull { waiting: 64 });
    assert_eq!(drain(&mut engine).len(), 64);
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
