//! Operators alone: every kernel answers as the reference, every order is run, guards are earned or refused by name.

use tare_core::Reading;
use tare_lab::LabError;
use tare_lab::Rig;
use tare_lab::ops_study::guard::{EndToEnd, Subject, crossovers, earned, written};
use tare_lab::ops_study::{Ahead, KernelTime, Measured, OpsStudy};
use tare_lab::replay::Warmth;
use tare_model::PlanSpec;
use tare_ops::{Class, OpName};
use tare_probe::Host;

use crate::scene::{Scene, made_up, small_host};

#[test]
fn every_operator_with_a_choice_is_judged_and_run_in_every_order() {
    for spec in ["synthetic:qwen3-tiny?format=w4g128", "synthetic:llama-tiny"] {
        let scene = Scene::new(spec, 0);
        let (rig, host, ceilings) = (scene.rig("paged"), Host::read(), made_up());
        let study = OpsStudy {
            rig: &rig,
            operators: Vec::new(),
            rows: vec![1, 5, 20],
            context: 40,
            passes: 2,
            warmth: Warmth::Warm,
            host: &host,
            ceilings: &ceilings,
        };
        let (mut measured, mut asked) = (Vec::new(), Vec::new());
        let mut ask = |next: Ahead<'_>| {
            asked.push((next.done, next.of, next.what.to_string()));
            true
        };
        study.run(&mut measured, &mut ask).unwrap();
        let questions = asked.len();
        asked.dedup();
        let all = asked.len();
        let samples: usize = measured.iter().flat_map(|m| &m.kernels).flat_map(|k| &k.passes_ns).map(Vec::len).sum();
        assert!(questions >= all + samples, "asked before each operator and each of its samples: {questions}");
        assert!(asked.iter().enumerate().all(|(n, (done, of, _))| (*done, *of) == (n, all)), "{asked:?}");
        let kinds =
            [OpName::Embedding, OpName::RmsNorm, OpName::Rope, OpName::Linear, OpName::Attention, OpName::SwiGlu];
        for op in kinds {
            assert!(measured.iter().any(|m| m.operator == op), "{spec} {op}");
        }
        for m in &measured {
            let count = m.kernels.len();
            let orders: usize = (1..=count).product();
            assert!(count >= 2 && m.kernels.iter().any(|k| k.kernel == m.chosen), "{m:?}");
            for k in &m.kernels {
                assert!(k.dispatched && k.stages.iter().any(|s| s.contains(&k.kernel)), "{k:?}");
                assert_eq!(k.passes_ns.iter().map(Vec::len).collect::<Vec<_>>(), [orders; 2], "whole orders only");
            }
            if m.operator == OpName::Attention {
                assert_eq!(m.context, 40);
            }
        }
        let mut kept = Vec::new();
        let stopped = study.run(&mut kept, &mut |next| !next.what.starts_with("linear"));
        assert!(matches!(stopped, Err(LabError::Interrupted)));
        let before = |m: &[Measured]| m.iter().map(|m| (m.operator, m.n, m.rows)).collect::<Vec<_>>();
        let first_linear = measured.iter().position(|m| m.operator == OpName::Linear).unwrap();
        assert!(!kept.is_empty(), "{spec}");
        assert_eq!(before(&kept), before(&measured[..first_linear]), "what was measured is kept");
        // Inside of the first linear, while it is made ready and while it is timed.
        for last in [2, 3, 12] {
            let (mut kept, mut of_linear) = (Vec::new(), 0);
            let stopped = study.run(&mut kept, &mut |next| {
                of_linear += usize::from(next.what.starts_with("linear"));
                of_linear < last
            });
            assert!(matches!(stopped, Err(LabError::Interrupted)));
            assert_eq!(before(&kept), before(&measured[..first_linear]));
            assert_eq!(of_linear, last, "it asks no more once it was told");
        }
        let wrong = OpsStudy { rows: vec![257], ..study }.run(&mut kept, &mut |_| true).unwrap_err().to_string();
        assert!(wrong.contains("1 to 256"), "{wrong}");
    }
}

#[test]
fn every_operator_of_a_free_class_is_held_against_what_its_kernels_promise() {
    let scene = Scene::new("synthetic:qwen3-tiny?format=w4g128", 0);
    let (host, ceilings) = (Host::read(), made_up());
    let rig = Rig { class: Class::by_name("w4a16-free").unwrap(), ..scene.rig("paged") };
    let study = OpsStudy {
        rig: &rig,
        operators: Vec::new(),
        rows: vec![1, 5, 20],
        context: 40,
        passes: 1,
        warmth: Warmth::Warm,
        host: &host,
        ceilings: &ceilings,
    };
    let mut measured = Vec::new();
    study.run(&mut measured, &mut |_| true).unwrap();
    let of = |op: OpName| measured.iter().filter(move |m| m.operator == op);
    for op in [OpName::RmsNorm, OpName::Rope, OpName::Linear, OpName::Attention, OpName::SwiGlu] {
        assert!(of(op).next().is_some(), "{op}");
    }
    for m in of(OpName::Linear) {
        assert!([".i16.", ".tiles."].iter().any(|way| m.chosen.contains(way)), "{}", m.chosen);
    }
    for m in of(OpName::Attention) {
        let own = |kernel: &str| [".spans.", ".columns.", ".tiles."].iter().any(|way| kernel.contains(way));
        assert!(m.kernels.iter().any(|k| own(&k.kernel)), "{} rows: {}", m.rows, m.chosen);
    }
}

#[test]
fn cold_operators_rotate_over_copies() {
    let scene = Scene::tiny();
    let (rig, host, ceilings) = (scene.rig("paged"), small_host(), made_up());
    let study = OpsStudy {
        rig: &rig,
        operators: vec![OpName::Linear],
        rows: vec![1],
        context: 1,
        passes: 1,
        warmth: Warmth::Cold,
        host: &host,
        ceilings: &ceilings,
    };
    let mut measured = Vec::new();
    study.run(&mut measured, &mut |_| true).unwrap();
    assert!(measured.iter().all(|m| m.warmth == Warmth::Cold && m.copies > 1), "{measured:?}");
}

/// Two kernels over three passes; the last two are alike.
fn measured(rows: usize, warmth: Warmth, plan_ns: [f64; 2], other_ns: [f64; 2]) -> Measured {
    let time = |kernel: &str, [first, rest]: [f64; 2]| KernelTime {
        kernel: kernel.into(),
        ns: (first + rest) / 2.0,
        passes_ns: [first, rest, rest].map(|p| vec![p, p]).to_vec(),
        ratio: (plan_ns[0] + plan_ns[1]) / (first + rest),
        percent_of_floor: Reading::unavailable("made up"),
        stages: vec![format!("kernel of {kernel}")],
        dispatched: true,
    };
    Measured {
        of: "w".into(),
        operator: OpName::Linear,
        n: 64,
        k: 32,
        rows,
        context: rows,
        warmth,
        copies: 1,
        threads: 2,
        sat_out: 0,
        chosen: "linear.q4_0.avx2".into(),
        kernels: vec![time("linear.q4_0.avx2", plan_ns), time("linear.q4_0.portable", other_ns)],
    }
}

/// The other kernel wins at 1 and 4 rows in every pass, at 16 in one of three.
fn table(warmth: Warmth) -> Vec<Measured> {
    vec![
        measured(1, warmth, [10.0, 10.0], [8.0, 9.0]),
        measured(4, warmth, [10.0, 10.0], [9.0, 9.5]),
        measured(16, warmth, [10.0, 10.0], [9.0, 10.5]),
        measured(64, warmth, [10.0, 10.0], [11.0, 12.0]),
    ]
}

fn subject() -> Subject {
    Subject { shape: "tiny".into(), class: "w4a16".into() }
}

/// A study in which the candidate alone ran the other kernel, in the buckets of 1 and 4 rows.
fn study() -> EndToEnd {
    let arm = |kernel: &str| vec![(1, vec![kernel.to_string()]), (4, vec![kernel.to_string()])];
    EndToEnd {
        id: "study-1".into(),
        keeps: true,
        shape: "tiny".into(),
        class: "w4a16".into(),
        candidate: arm("linear.q4_0.portable"),
        baseline: arm("linear.q4_0.avx2"),
    }
}

#[test]
fn a_crossover_ends_where_one_pass_is_lost() {
    let found = crossovers(&table(Warmth::Warm));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].rows, found[0].kernel.as_str()), ([1, 4], "linear.q4_0.portable"));
    assert!((found[0].ratio - 20.0 / 18.5).abs() < 1e-9, "the smallest of the ratios: {}", found[0].ratio);
}

#[test]
fn neighbours_of_another_weight_make_no_crossover_together() {
    let mut table = table(Warmth::Warm);
    table[1].of = "v".into();
    let rows: Vec<_> = crossovers(&table).iter().map(|c| (c.of.clone(), c.rows)).collect();
    assert_eq!(rows, [("w".to_string(), [1, 1]), ("v".to_string(), [4, 4])]);
}

#[test]
fn a_guard_needs_all_of_them_and_a_refusal_names_the_one_that_lacks() {
    let (warm, cold) = (table(Warmth::Warm), table(Warmth::Cold));
    let crossover = &crossovers(&warm)[0];
    let earn = |warm: &[Measured], cold: &[Measured], study: Option<&EndToEnd>| {
        earned(crossover, &subject(), (warm, cold), (study, "0123"))
    };
    let good = study();
    let guard = earn(&warm, &cold, Some(&good)).unwrap();
    assert_eq!((guard.n, guard.k, guard.rows), (64, 32, [1, 4]), "of the shape that was measured alone");
    assert_eq!(guard.evidence, "study-1, tables sha256:0123");

    let lost = vec![measured(1, Warmth::Cold, [10.0, 10.0], [8.0, 11.0]), cold[1].clone()];
    let mut astray = warm.clone();
    astray[0].kernels[1].dispatched = false;
    let mut unknown = warm.clone();
    unknown[1].kernels[0].stages.clear();
    let mut once = warm.clone();
    once[0].kernels.iter_mut().for_each(|k| k.passes_ns.truncate(1));
    let not_kept = EndToEnd { keeps: false, ..study() };
    let elsewhere = EndToEnd { shape: "large".into(), ..study() };
    let both = EndToEnd { baseline: study().candidate, ..study() };
    let other_rows = EndToEnd { candidate: vec![(16, vec!["linear.q4_0.portable".into()])], ..study() };
    let refusals = [
        (earn(&warm, &cold, None), "no a study of whole requests"),
        (earn(&warm, &cold, Some(&not_kept)), "study-1 does not"),
        (earn(&warm, &cold, Some(&elsewhere)), "study-1 is of large in w4a16"),
        (earn(&warm, &cold, Some(&both)), "whose candidate alone ran it"),
        (earn(&warm, &cold, Some(&other_rows)), "whose candidate alone ran it"),
        (earn(&warm, &[], Some(&good)), "a win in every one of 3 passes, cold"),
        (earn(&warm, &lost, Some(&good)), "a win in every one of 3 passes, cold"),
        (earn(&once, &cold, Some(&good)), "a win in every one of 3 passes, warm"),
        (earn(&warm, &warm, Some(&good)), "a table with cold weights"),
        (earn(&astray, &cold, Some(&good)), "a warm trace"),
        (earn(&unknown, &cold, Some(&good)), "the warm launch geometry"),
    ];
    for (refused, reason) in refusals {
        let e = refused.unwrap_err().to_string();
        assert!(e.contains(reason), "{e} lacks {reason}");
    }
}

#[test]
fn a_guard_is_written_behind_what_a_person_wrote() {
    let (warm, cold) = (table(Warmth::Warm), table(Warmth::Cold));
    let guard = earned(&crossovers(&warm)[0], &subject(), (&warm, &cold), (Some(&study()), "0123")).unwrap();
    let file = tare_testkit::workspace().join("plans/paged.toml");
    let plan = std::fs::read_to_string(file).unwrap();
    let text = written(&plan, &guard).unwrap();
    assert!(text.starts_with(plan.trim_end()), "comments and order stay");
    assert_eq!(PlanSpec::parse(&text).unwrap().guards, std::slice::from_ref(&guard));
    assert!(written(&text, &guard).is_err(), "the same rows twice");
}
