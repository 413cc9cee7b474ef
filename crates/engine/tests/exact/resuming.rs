//! A sequence that goes on from kept, rewound or imported KV is the one that was computed afresh.

use crate::rig::{PAGED, PLAIN, Rig, drain, prompts, run, sampled};
use tare_engine::Request;

const KINDS: [Rig; 4] = [PLAIN, PAGED, Rig { plan: "kv-cache", ..PLAIN }, Rig { page_tokens: 1, max_rows: 5, ..PAGED }];

fn keeping(request: Request) -> Request {
    Request { retain: true, ..request }
}

#[test]
fn resumed_is_fresh() {
    let prompt = &prompts()[2];
    for rig in KINDS {
        let mut engine = rig.engine();
        let first = run(&mut engine, keeping(sampled(prompt, 8, 1)));
        let next: Vec<u32> = prompt.iter().chain(&first.answer.tokens).copied().chain([9, 10, 11]).collect();
        let resumed = run(&mut engine, Request { resume: first.retained, ..sampled(&next, 10, 2) });
        let fresh = run(&mut rig.engine(), sampled(&next, 10, 2));
        assert!(resumed.answer == fresh.answer, "{rig:?}");
        // The last token drawn was never stored.
        assert_eq!(resumed.usage.cached_tokens, prompt.len() + 7, "{rig:?}");
        assert_eq!(engine.counters().pool.live, 0, "{rig:?}");
    }
}

#[test]
fn rewound_is_never_happened() {
    let prompt = &prompts()[2];
    for rig in KINDS {
        let mut engine = rig.engine();
        let first = run(&mut engine, keeping(sampled(prompt, 8, 1)));
        // Departs inside the prompt, and another time at its very end.
        for keep in [20, prompt.len() - 1] {
            let next: Vec<u32> = prompt[..keep].iter().copied().chain([500, 7]).collect();
            let kept = run(&mut engine, Request { resume: first.retained, ..keeping(sampled(&next, 6, 3)) });
            let fresh = run(&mut rig.engine(), sampled(&next, 6, 3));
            assert!(kept.answer == fresh.answer, "{rig:?} keeping {keep}");
            let expected = if keep == 20 { 20 } else { 0 };
            assert_eq!(kept.usage.cached_tokens, expected, "{rig:?}: a handle is spent by resuming it");
            engine.release_retained(kept.retained.unwrap());
        }
        // The same prompt again: one token is computed, to have its logits.
        let again = run(&mut engine, keeping(sampled(prompt, 8, 1)));
        let twice = run(&mut engine, Request { resume: again.retained, ..sampled(prompt, 8, 1) });
        assert!(twice.answer == first.answer, "{rig:?}");
        assert_eq!(twice.usage.cached_tokens, prompt.len() - 1, "{rig:?}");
    }
}

#[test]
fn imported_is_exported() {
    let prompt = &prompts()[2];
    for from in KINDS {
        let mut engine = from.engine();
        let first = run(&mut engine, keeping(sampled(prompt, 8, 1)));
        let exported = engine.export_retained(first.retained.unwrap()).unwrap();
        assert_eq!(exported.tokens.len(), prompt.len() + 7);
        let next: Vec<u32> = exported.tokens.iter().copied().chain([9]).collect();
        let fresh = run(&mut PLAIN.engine(), sampled(&next, 6, 2)).answer;
        for to in KINDS {
            let mut other = to.engine();
            let handle = other.import_retained(&exported).unwrap();
            assert_eq!(other.export_retained(handle).unwrap(), exported, "{from:?} to {to:?}");
            let resumed = run(&mut other, Request { resume: Some(handle), ..sampled(&next, 6, 2) });
            assert!(resumed.answer == fresh, "{from:?} to {to:?}");
            assert_eq!(resumed.usage.cached_tokens, exported.tokens.len());
        }
    }
}

#[test]
fn a_region_that_is_too_small_for_the_resumed_request_grows_and_says_so() {
    let prompt = &prompts()[2];
    let mut engine = PLAIN.engine();
    let first = run(&mut engine, keeping(sampled(prompt, 8, 1)));
    assert_eq!(engine.counters().copies.growth_copy(), 0);
    run(&mut engine, Request { resume: first.retained, ..sampled(prompt, 9, 2) });
    let token_bytes = 2 * 3 * 2 * 64 * 4;
    assert_eq!(engine.counters().copies.physical_growth_copy, (prompt.len() as u64 - 1) * token_bytes);
}

#[test]
fn kept_sequences_give_way_and_resuming_a_lost_one_is_only_slower() {
    let prompt = &prompts()[2];
    let mut engine = Rig { kv_tokens: 64, ..PAGED }.engine();
    let first = run(&mut engine, keeping(sampled(prompt, 8, 1)));
    assert_eq!(engine.counters().pool.live, 3);
    let other = run(&mut engine, sampled(&[5; 40], 4, 2));
    assert_eq!(other.usage.output_tokens, 4);
    assert_eq!((engine.counters().evictions, engine.counters().pool.live), (1, 0));
    let resumed = run(&mut engine, Request { resume: first.retained, ..sampled(prompt, 8, 1) });
    assert!(resumed.answer == first.answer);
    assert_eq!(resumed.usage.cached_tokens, 0);
}

#[test]
fn released_and_cancelled_storage_is_free_after_the_next_step() {
    let mut engine = PAGED.engine();
    let kept = run(&mut engine, keeping(sampled(&[5; 40], 4, 2))).retained.unwrap();
    engine.release_retained(kept);
    engine.release_retained(kept);
    let id = engine.submit(sampled(&[5; 40], 4, 2)).unwrap();
    engine.step().unwrap();
    assert_eq!(engine.counters().pool.live, 3);
    engine.cancel(id);
    engine.cancel(id);
    let ended = drain(&mut engine);
    assert_eq!(ended[&id].reason, Some(tare_engine::FinishReason::Cancelled));
    assert_eq!((engine.counters().pool.live, engine.has_work()), (0, false));
}
