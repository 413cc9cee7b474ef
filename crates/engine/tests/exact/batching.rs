//! A request gives the same wherever and with whomever it runs.

use crate::rig::{Answer, PAGED, PLAIN, Rig, collect, drain, full, prompts, run, sampled};
use std::collections::BTreeMap;

#[test]
fn a_batch_of_n_is_each_alone() {
    let prompts = prompts();
    let requests = || {
        let greedy = prompts.iter().map(|p| full(p, 9));
        greedy.chain(prompts.iter().enumerate().map(|(i, p)| sampled(p, 9, 7 + i as u64)))
    };
    let alone: Vec<Answer> = requests().map(|r| run(&mut PLAIN.engine(), r).answer).collect();
    assert_ne!(alone[2].tokens, alone[5].tokens, "sampling draws something else than the most likely tokens");
    for (plan, max_rows) in [("paged", 64), ("paged", 5), ("capacity-cache", 16), ("kv-cache", 16), ("recompute", 48)] {
        let mut engine = Rig { plan, max_rows, max_sequences: 6, ..PAGED }.engine();
        let ids: Vec<_> = requests().map(|r| engine.submit(r).unwrap()).collect();
        let ended = drain(&mut engine);
        for (i, id) in ids.iter().enumerate() {
            assert!(ended[id].answer == alone[i], "{plan}, {max_rows} rows: request {i} differs");
        }
    }
}

#[test]
fn arrivals_and_cancels_around_it_change_nothing() {
    let prompts = prompts();
    let alone = run(&mut PLAIN.engine(), full(&prompts[2], 12)).answer;
    let mut engine = Rig { max_rows: 8, ..PAGED }.engine();
    let mut ended = BTreeMap::new();
    let watched = engine.submit(full(&prompts[2], 12)).unwrap();
    let mut others = Vec::new();
    for step in 0..40 {
        if step % 2 == 0 {
            others.push(engine.submit(sampled(&prompts[step % 3], 5, step as u64)).unwrap());
        }
        if step % 5 == 0 {
            engine.cancel(others.swap_remove(step % others.len()));
        }
        collect(engine.step().unwrap(), &mut ended);
    }
    while engine.has_work() {
        collect(engine.step().unwrap(), &mut ended);
    }
    assert!(ended[&watched].answer == alone);
    assert!(ended.values().all(|e| e.reason.is_some()));
    assert_eq!(engine.counters().pool.live, 0);
}
