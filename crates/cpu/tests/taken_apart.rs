//! Parts of an executable and planted delays: the same answers, the same stages, nothing when off.

mod decoder;

use decoder::World;
use std::ops::Range;
use std::time::Instant;
use tare_cpu::{CpuBackend, CpuConfig, Dispatch, Dose, Split, detect_isa};
use tare_ops::{Backend, Executable, Launched, ReferenceBackend, Rounding, RowOutput, StepOutput, TokenSource};

/// Calls of the test's decoder: an embedding, a layer of 15 and one of 16, three at the end.
const CALLS: usize = 1 + 15 + 16 + 3;
/// Calls that run together: rotations and append of the first layer, with the norms before them in the second.
const TOGETHER: [Range<usize>; 2] = [6..9, 20..25];

fn world(threads: usize, rounding: Rounding) -> World<CpuBackend> {
    World::new(
        CpuBackend::new(CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false }).unwrap(),
        rounding,
    )
}

fn answer(w: &mut World<CpuBackend>, exe: Executable) -> StepOutput {
    let (batch, mut out) = (w.batch(0, 9), StepOutput::default());
    w.backend.run(exe, &batch, &mut out).unwrap();
    out
}

#[test]
fn parts_run_one_after_the_other_are_the_step() {
    for (threads, rounding) in [(1, Rounding::F32), (2, Rounding::Bf16), (3, Rounding::Bf16)] {
        let mut w = world(threads, rounding);
        let whole = w.exe;
        let want = answer(&mut w, whole);
        for cuts in [vec![0, 7, 20, CALLS], (0..=CALLS).collect::<Vec<_>>()] {
            let parts: Vec<Executable> =
                cuts.windows(2).map(|c| w.backend.part(w.exe, &(c[0]..c[1]).collect::<Vec<_>>()).unwrap()).collect();
            let mut last = StepOutput::default();
            for part in parts {
                last = answer(&mut w, part);
            }
            assert_eq!(last.rows, want.rows, "{threads} threads, {rounding:?}: parts share the buffers of the whole");
        }
    }
}

/// A chunk and a step on its token, call by call.
fn apart<B: Backend>(w: &mut World<B>) -> Vec<(Vec<Launched>, Vec<RowOutput>)> {
    let mut steps = Vec::new();
    for (from, to, rows) in [(0, 9, vec![0, 4, 8]), (9, 10, vec![0])] {
        let mut batch = w.batch(from, to);
        if from > 0 {
            batch.rows[0].token = TokenSource::Previous(0);
        }
        let (mut launched, mut out) = (Vec::new(), StepOutput::default());
        w.backend.run_apart(w.exe, &batch, &rows, &mut out, &mut launched).unwrap();
        steps.push((launched, out.rows));
    }
    steps
}

/// Launches of single calls as those of a backend that runs some of them together: of each buffer what the last call left.
fn together(launched: Vec<Launched>) -> Vec<Launched> {
    let mut merged: Vec<Launched> = Vec::new();
    for mut l in launched {
        match merged.last_mut() {
            Some(m) if TOGETHER.iter().any(|t| t.contains(&l.calls.start) && t.contains(&m.calls.start)) => {
                m.calls.end = l.calls.end;
                m.left.retain(|left| l.left.iter().all(|new| new.buffer != left.buffer));
                m.left.append(&mut l.left);
            }
            _ => merged.push(l),
        }
    }
    merged
}

#[test]
fn a_step_call_by_call_leaves_what_the_reference_leaves() {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let want = apart(&mut World::new(ReferenceBackend::new(), rounding));
        assert_eq!(want[0].0.len(), CALLS);
        let want: Vec<_> = want.into_iter().map(|(launched, rows)| (together(launched), rows)).collect();
        assert_eq!(apart(&mut world(2, rounding)), want, "{rounding:?}");
        let mut w = world(2, rounding);
        let batch = w.batch(0, 9);
        let (whole, mut launched) = (w.exe, Vec::new());
        let answers = answer(&mut w, whole).rows;
        let mut out = StepOutput::default();
        w.backend.run_apart(whole, &batch, &[8], &mut out, &mut launched).unwrap();
        assert_eq!(out.rows, answers, "{rounding:?}: the answers are those of the step");
    }
}

#[test]
fn the_stages_of_disjoint_parts_are_those_of_the_whole() {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let mut w = world(2, rounding);
        let batch = w.batch(0, 9);
        let whole = w.backend.dispatches(w.exe, &batch).unwrap();
        let mut merged = Vec::new();
        for rest in 0..3 {
            // Calls that run together belong to one part.
            let first = |c: usize| TOGETHER.iter().find(|t| t.contains(&c)).map_or(c, |t| t.start);
            let calls: Vec<usize> = (0..CALLS).filter(|c| first(*c) % 3 == rest).collect();
            let part = w.backend.part(w.exe, &calls).unwrap();
            merged.extend(w.backend.dispatches(part, &batch).unwrap());
        }
        merged.sort_by_key(|d| d.call);
        assert_eq!(merged, whole);
        let rounds = whole.iter().filter(|d| d.stage == "round").count();
        assert_eq!(rounds > 0, rounding == Rounding::Bf16);
    }
}

#[test]
fn a_dispatch_says_who_does_what() {
    let mut w = world(3, Rounding::F32);
    let batch = w.batch(0, 9);
    let ran = w.backend.dispatches(w.exe, &batch).unwrap();
    let head = ran.iter().rev().find(|d| d.kernel.starts_with("linear.")).unwrap();
    assert_eq!(head.rows, 1, "one row is selected");
    assert_eq!(
        head.split,
        Split::Fixed { unit: "weight rows", items: 100, chunk: 16, of_worker: vec![32, 32, 36] },
        "the vocabulary in runs of 16"
    );
    let attention = ran.iter().find(|d| d.kernel.starts_with("attention.")).unwrap();
    assert_eq!(attention.split, Split::Taken { unit: "runs of heads", items: 18 }, "9 rows of two runs");
}

#[test]
fn a_planted_delay_changes_no_bit_and_is_gone_when_it_was_not_planted() {
    for dose in [Dose::Nanoseconds(1000), Dose::Percent(50.0)] {
        let mut w = world(2, Rounding::Bf16);
        let batch = w.batch(0, 9);
        let whole = w.exe;
        let want = answer(&mut w, whole);
        let plain = w.backend.dispatches(w.exe, &batch).unwrap();
        let calls: Vec<usize> = (0..CALLS).collect();
        let delayed = w.backend.part(w.exe, &calls).unwrap();
        w.backend.plant(delayed, &[2, 5], dose).unwrap();
        assert_eq!(answer(&mut w, delayed).rows, want.rows, "{dose:?}");
        assert_eq!(w.backend.dispatches(w.exe, &batch).unwrap(), plain, "the whole has no stage more");
        let with = w.backend.dispatches(delayed, &batch).unwrap();
        let planted = |d: &&Dispatch| matches!(d.stage, "planted delay" | "mark");
        assert!(with.iter().filter(planted).all(|d| d.call == 2 || d.call == 5));
        let spins = with.iter().filter(|d| d.stage == "planted delay").count();
        // Call 2 is a linear that rounds its input first: two stages are stretched, one time is added.
        assert_eq!(spins, if matches!(dose, Dose::Percent(_)) { 3 } else { 2 }, "{dose:?}");
        let rest: Vec<Dispatch> = with.iter().filter(|d| !planted(d)).cloned().collect();
        assert_eq!(rest, plain, "nothing else moved");
    }
}

#[test]
fn a_part_alone_leaves_what_it_reads_as_it_was() {
    let mut w = world(2, Rounding::Bf16);
    let whole = w.exe;
    let want = answer(&mut w, whole);
    // The second layer's gated unit is call 30, in place; behind it the residual and the end of the step.
    let before = w.backend.part(whole, &(0..30).collect::<Vec<_>>()).unwrap();
    let unit = w.backend.part(whole, &[30]).unwrap();
    let unit_alone = w.backend.part_alone(whole, &[30]).unwrap();
    let after = w.backend.part(whole, &(31..CALLS).collect::<Vec<_>>()).unwrap();
    let mut run = |times: usize, part| {
        answer(&mut w, before);
        (0..times).for_each(|_| drop(answer(&mut w, part)));
        answer(&mut w, unit);
        answer(&mut w, after)
    };
    assert_eq!(run(3, unit_alone).rows, want.rows, "runs of the unit alone left the gate as it was");
    assert_ne!(run(3, unit).rows, want.rows, "in place each run works on what the last one left");
}

#[test]
fn a_planted_delay_takes_at_least_its_time() {
    let mut w = world(2, Rounding::F32);
    let delayed = w.backend.part(w.exe, &(0..CALLS).collect::<Vec<_>>()).unwrap();
    w.backend.plant(delayed, &[1, 2, 3], Dose::Nanoseconds(2_000_000)).unwrap();
    let start = Instant::now();
    answer(&mut w, delayed);
    assert!(start.elapsed().as_millis() >= 6, "three times two milliseconds");
    let spun = w.backend.spun_ns(delayed).unwrap();
    assert!(spun >= 6_000_000, "{spun} ns were really spun");
}

#[test]
fn calls_that_run_together_run_with_their_last_one() {
    let mut w = world(2, Rounding::F32);
    let carried = w.backend.carried(w.exe).unwrap();
    let several: Vec<Range<usize>> = carried.iter().filter(|c| c.len() > 1).cloned().collect();
    assert_eq!(several, TOGETHER);
    assert!(carried.windows(2).all(|c| c[0].end == c[1].start) && carried.last().unwrap().end == CALLS);
    let batch = w.batch(0, 9);
    for (calls, stages) in [(vec![20, 21, 22, 23], 0), (vec![24], 1)] {
        let part = w.backend.part(w.exe, &calls).unwrap();
        assert_eq!(w.backend.dispatches(part, &batch).unwrap().len(), stages, "{calls:?}");
    }
    let delayed = w.backend.part(w.exe, &(0..CALLS).collect::<Vec<_>>()).unwrap();
    w.backend.plant(delayed, &[21, 22], Dose::Nanoseconds(1)).unwrap();
    let ran = w.backend.dispatches(delayed, &batch).unwrap();
    let spins: Vec<usize> = ran.iter().filter(|d| d.stage == "planted delay").map(|d| d.call).collect();
    assert_eq!(spins, [24], "once, behind what carries them");
}

/// A stage is called by all the calls that it carries.
#[test]
fn a_stage_names_the_kernels_of_all_its_calls() {
    let mut w = world(2, Rounding::F32);
    let (whole, batch) = (w.exe, w.batch(0, 9));
    let ran = w.backend.dispatches(whole, &batch).unwrap();
    let carried = w.backend.carried(whole).unwrap();
    assert!(ran.iter().all(|d| carried.contains(&(d.first_call..d.call + 1))), "{ran:?}");
    let of = |call: usize| ran.iter().find(|d| d.call == call && d.stage == "kernel").unwrap().kernel.as_str();
    let operators = |call| of(call).split('+').map(|key| key.split('.').next().unwrap()).collect::<Vec<_>>();
    assert_eq!(operators(TOGETHER[0].end - 1), ["rope", "kv_append"]);
    assert_eq!(operators(TOGETHER[1].end - 1), ["head_norm", "rope", "kv_append"]);
    assert_eq!(operators(0), ["embedding"]);
}

#[test]
fn a_call_that_is_not_there_is_refused() {
    let mut w = world(1, Rounding::F32);
    let e = w.backend.part(w.exe, &[CALLS]).unwrap_err().to_string();
    assert!(e.contains("below 35"), "{e}");
    assert!(w.backend.plant(w.exe, &[CALLS], Dose::Nanoseconds(1)).is_err());
    assert!(w.backend.part(Executable(999), &[0]).is_err());
    let batch = w.batch(0, 9);
    let empty = w.backend.part(w.exe, &[]).unwrap();
    assert!(w.backend.dispatches(empty, &batch).unwrap().is_empty(), "no call, no stage");
}
