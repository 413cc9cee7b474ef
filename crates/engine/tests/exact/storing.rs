//! How KV is stored and how prompts are cut changes nothing.

use crate::rig::{PAGED, PLAIN, Rig, full, prompts, run};

#[test]
fn paged_is_contiguous() {
    let prompt = &prompts()[2];
    let want = run(&mut PLAIN.engine(), full(prompt, 12)).answer;
    assert_eq!(want.logits.len(), prompt.len() + 12);
    for plan in ["recompute", "kv-cache"] {
        let got = run(&mut Rig { plan, ..PLAIN }.engine(), full(prompt, 12)).answer;
        assert!(got == want, "{plan} differs");
    }
    for page_tokens in [1, 16, 64] {
        let got = run(&mut Rig { page_tokens, ..PAGED }.engine(), full(prompt, 12)).answer;
        assert!(got == want, "pages of {page_tokens} differ");
    }
}

#[test]
fn chunked_is_one_shot() {
    let prompt = &prompts()[2];
    let want = run(&mut PLAIN.engine(), full(prompt, 6)).answer;
    for max_rows in [1, 3, 7, 64] {
        for rig in [PLAIN, PAGED, Rig { plan: "kv-cache", ..PLAIN }, Rig { plan: "recompute", ..PLAIN }] {
            let got = run(&mut Rig { max_rows, ..rig }.engine(), full(prompt, 6)).answer;
            assert!(got == want, "{} in chunks of {max_rows} differs", rig.plan);
        }
    }
}

#[test]
fn copy_counters_follow_their_closed_forms() {
    // p prompt tokens in one chunk, then n - 1 decode rows: the last token drawn is never stored.
    let (p, n) = (33u64, 6u64);
    let prompt = &prompts()[2];
    let token_bytes = 2 * 3 * 2 * 64 * 4;
    for (rig, logical) in [
        (PLAIN, 0),
        (PAGED, 0),
        // Each decode row copies all that was stored before: p + (p + 1) + ... + (p + n - 2).
        (Rig { plan: "kv-cache", ..PLAIN }, (n - 1) * p + (n - 1) * (n - 2) / 2),
    ] {
        let mut engine = rig.engine();
        run(&mut engine, full(prompt, n as usize));
        let counters = engine.counters();
        assert_eq!(counters.copies.logical_copy, logical * token_bytes, "{}", rig.plan);
        assert_eq!(counters.copies.physical_growth_copy, 0, "{}", rig.plan);
        assert_eq!(counters.copies.slice_write, (p + n - 1) * token_bytes, "{}", rig.plan);
        assert_eq!((counters.layer_rows, counters.head_rows), (p + n - 1, p + n - 1), "{}", rig.plan);
        assert_eq!(counters.pool.live, 0, "{}", rig.plan);
    }
    let mut engine = Rig { plan: "recompute", ..PLAIN }.engine();
    run(&mut engine, full(prompt, n as usize));
    let counters = engine.counters();
    assert_eq!(counters.layer_rows, n * p + n * (n - 1) / 2);
    assert_eq!((counters.copies.growth_copy(), counters.pool.live), (0, 0));
}
