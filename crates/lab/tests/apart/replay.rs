//! Replay: groups divide every plan, parts run what the step runs, floors add up, delays show.

use std::collections::BTreeSet;
use tare_cpu::{CpuBackend, CpuConfig};
use tare_cuda::CudaConfig;
use tare_lab::floor::{FLOP_CEILING, StepRows, call_costs, demands};
use tare_lab::groups::{Group, groups};
use tare_lab::replay::{Doing, Replaying, TakenApart, Warmth};
use tare_lab::sensitivity::Probe;
use tare_lab::specimen::{Phase, Specimen};
use tare_lab::tap::Tap;
use tare_lab::{Delay, LabError, On, Rig};
use tare_ops::{Cost, Op};
use tare_probe::Host;

use crate::scene::{Scene, made_up, small_host};
use crate::witness::Script;

/// A plan for each way to keep keys and values.
const STORAGES: [&str; 4] = ["recompute", "kv-cache", "capacity-cache", "paged"];

/// Every family that the goldens have, and a synthetic one.
fn families() -> Vec<String> {
    let folder = tare_testkit::goldens().join("models");
    let mut specs: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("config.json").exists())
        .map(|p| p.to_string_lossy().into_owned())
        .collect();
    assert!(specs.len() >= 5, "{specs:?}");
    specs.push("synthetic:llama-tiny".into());
    specs
}

#[test]
fn groups_take_every_call_of_every_family_and_plan_exactly_once() {
    for spec in families() {
        let scene = Scene::new(&spec, 0);
        for plan in STORAGES {
            let engine = scene.rig(plan).engine().unwrap();
            for resolved in engine.resolved() {
                let groups = groups(&resolved.plan).unwrap();
                let mut calls: Vec<usize> = groups.iter().flat_map(|(_, calls)| calls.clone()).collect();
                calls.sort_unstable();
                assert_eq!(calls, (0..resolved.plan.calls.len()).collect::<Vec<_>>(), "{spec} {plan}");
                let layers = scene.model.config().layers;
                let count = |g: Group| groups.iter().find(|(of, _)| *of == g).map_or(0, |(_, c)| c.len());
                assert_eq!(
                    (count(Group::Qkv), count(Group::O), count(Group::GateUp)),
                    (3 * layers, layers, 2 * layers)
                );
                assert_eq!((count(Group::Down), count(Group::Head), count(Group::Attention)), (layers, 1, layers));
            }
        }
    }
}

#[test]
fn a_call_of_no_group_is_an_error() {
    let scene = Scene::tiny();
    let mut plan = scene.rig("paged").engine().unwrap().resolved()[0].plan.clone();
    // A projection from the residual stream onto itself is none of the decoder's.
    for call in &mut plan.calls {
        if let Op::Linear { x, out, .. } = &mut call.op {
            *x = *out;
        }
    }
    let e = groups(&plan).unwrap_err().to_string();
    assert!(e.contains("a projection of attention, MLP or head"), "{e}");
}

#[test]
fn the_groups_of_a_step_run_what_the_step_runs() {
    for spec in families() {
        for plan in STORAGES {
            let scene = Scene::new(&spec, 0);
            for phase in [Phase::Prefill, Phase::Decode] {
                let r = scene.replay(&scene.rig(plan), phase, 1, Warmth::Warm);
                assert!(r.coverage.complete, "{spec} {plan} {phase}: {:?}", r.coverage.reason);
                assert_eq!(r.coverage.step_sha256, r.coverage.groups_sha256);
                assert!(r.remainder.available().is_some());
                let again = plan == "recompute" || phase == Phase::Prefill;
                assert_eq!(r.rows, if again { 20 + usize::from(phase == Phase::Decode) } else { 1 }, "{plan} {phase}");
            }
        }
    }
}

#[test]
fn a_step_is_reached_at_the_depth_that_was_asked_for() {
    let scene = Scene::new("synthetic:qwen3-tiny?format=w4g128", 40);
    let specimen = Specimen::take(&scene.rig("paged"), &scene.request, Phase::Prefill).unwrap();
    assert_eq!(specimen.rows(), StepRows { all: 20, selected: 1, first_slot: 40 });
    specimen.confirm(specimen.exe).unwrap();
    let decode = Specimen::take(&scene.rig("capacity-cache"), &scene.request, Phase::Decode).unwrap();
    assert_eq!(decode.rows(), StepRows { all: 1, selected: 1, first_slot: 60 });
}

#[test]
fn another_answer_than_the_engines_is_refused() {
    let scene = Scene::tiny();
    let specimen = Specimen::take(&scene.rig("paged"), &scene.request, Phase::Decode).unwrap();
    let calls: Vec<usize> = (0..specimen.plan.calls.len()).filter(|c| *c != 4).collect();
    let lacking = specimen.tap().with(|cpu| cpu.part(specimen.exe, &calls)).unwrap();
    let e = specimen.confirm(lacking).unwrap_err().to_string();
    assert!(e.contains("run again"), "{e}");
}

#[test]
fn what_the_calls_of_all_steps_need_is_what_the_request_needs() {
    let scene = Scene::new("synthetic:qwen3-tiny?format=w4g128", 7);
    let plan = scene.rig("paged").engine().unwrap().resolved()[0].plan.clone();
    let demands = demands(&plan, std::slice::from_ref(&scene.request), FLOP_CEILING);
    let sum = |rows| -> Cost {
        let costs = call_costs(&plan, rows);
        groups(&plan).unwrap().iter().flat_map(|(_, calls)| calls.clone()).map(|c| costs[c]).sum()
    };
    let prefill = sum(StepRows { all: 20, selected: 1, first_slot: 7 });
    let decode: Cost = (0..3).map(|i| sum(StepRows { all: 1, selected: 1, first_slot: 27 + i })).sum();
    for (got, want) in [(prefill, &demands.prefill), (decode, &demands.decode)] {
        let want = want.available().unwrap();
        assert_eq!((u128::from(got.bytes), got.flops), (want.bytes(), want.flops));
    }
}

#[test]
fn cold_copies_take_turns_and_give_the_same_answer() {
    let scene = Scene::tiny();
    let r = scene.replay(&scene.rig("paged"), Phase::Decode, 2, Warmth::Cold);
    assert!(r.copies.count > 1, "{:?}", r.copies);
    assert!(r.groups.iter().filter(|g| g.bytes > 0).all(|g| g.cache.starts_with("cold")));
    assert!(r.coverage.complete);
}

#[test]
fn a_planted_delay_is_in_its_group_and_in_no_other() {
    let scene = Scene::tiny();
    let rig = Rig { delay: Some("down=50".parse().unwrap()), ..scene.rig("paged") };
    let r = scene.replay(&rig, Phase::Decode, 3, Warmth::Warm);
    assert_eq!(r.delay.as_deref(), Some("down=50"));
    assert!(r.coverage.complete, "{:?}", r.coverage.reason);
    for g in &r.groups {
        let spins: usize = g.kinds.iter().filter(|k| k.stage == "planted delay").map(|k| k.count).sum();
        let others = g.stages - 2 * spins;
        assert_eq!(spins, if g.group == Group::Down { others } else { 0 }, "{}: one behind each stage", g.group);
    }
    let (plain, planted) = (scene.rig("paged").engine().unwrap(), rig.engine().unwrap());
    assert_eq!(plain.resolved()[0].digest, planted.resolved()[0].digest, "the plan itself is the same");
}

/// What a delay is called is what is delayed: every group as it runs, or joined of some that run one by one or together; any
/// other is refused by the names of those that run.
#[test]
fn a_delay_is_called_by_all_that_it_delays() {
    use Group::{GatedUnit, Heads, KvAppend, NormedHeads, NormedProjections, Projections, Rope};
    let of = [("synthetic:qwen3-tiny", NormedHeads, NormedProjections), ("synthetic:llama-tiny", Heads, Projections)];
    for (spec, heads, projections) in of {
        let scene = Scene::new(spec, 0);
        for group in Group::ALL {
            let rig = Rig { delay: Some(Delay { group, percent: 50.0 }), ..scene.rig("paged") };
            let whole = [GatedUnit, heads, projections].contains(&group);
            let part = [Rope, KvAppend, NormedHeads, Heads, NormedProjections, Projections].contains(&group);
            if part && !whole {
                let e = format!("{:?}", rig.engine().unwrap_err());
                assert!(e.contains("as it runs") && e.contains(heads.name()), "{spec} {group}: {e}");
                continue;
            }
            let r = scene.replay(&rig, Phase::Decode, 1, Warmth::Warm);
            let delayed = r.groups.iter().filter(|g| g.kinds.iter().any(|k| k.stage == "planted delay"));
            let parts: BTreeSet<&str> = delayed.flat_map(|g| g.group.name().split('+')).collect();
            assert_eq!(parts, group.name().split('+').collect(), "{spec}");
        }
    }
}

#[test]
fn delays_that_mean_nothing_are_refused() {
    for text in ["down", "down=", "nowhere=5", "down=x"] {
        assert!(text.parse::<Delay>().is_err(), "{text}");
    }
    let scene = Scene::tiny();
    for percent in [0.0, -5.0, f64::NAN, f64::INFINITY] {
        let rig = Rig { delay: Some(Delay { group: Group::Down, percent }), ..scene.rig("paged") };
        let e = rig.engine().unwrap_err();
        assert!(format!("{e:?}").contains("a percentage above 0"), "{e:?}");
    }
}

#[test]
fn steps_of_a_device_are_no_stages() {
    let scene = Scene::tiny();
    let rig = Rig { on: On::Cuda(CudaConfig::default()), ..scene.rig("paged") };
    let e = rig.tap().unwrap_err();
    assert!(e.to_string().contains("the processor, whose steps are stages of workers, found cuda"), "{e}");
}

/// Workers are late by turns, so that others sit out from one step to the next, and not while a replay runs.
#[test]
fn who_sits_out_as_a_replay_begins_sits_out_of_all_of_it() {
    let scene = Scene::tiny();
    let (rig, host, ceilings) = (scene.rig("paged"), small_host(), made_up());
    let (request, phase, warmth) = (&scene.request, Phase::Decode, Warmth::Warm);
    let mut out = BTreeSet::new();
    for from in [0, 5, 10] {
        let config = CpuConfig { threads: 4, ..rig.cpu.clone() };
        let backend = CpuBackend::watched(config, Box::new(Script::by_turns(from))).unwrap();
        let specimen = Specimen::of(Tap::new(backend, None), &rig, request, phase).unwrap();
        let of = Replaying { rig: &rig, request, phase, iterations: 3, warmth, host: &host, ceilings: &ceilings };
        let replay = of.of(&specimen, &mut |_| true).unwrap();
        assert!(replay.coverage.complete, "{:?}", replay.coverage);
        assert_eq!((replay.threads + replay.sat_out, replay.step().threads as usize), (4, replay.threads));
        let down = replay.groups.iter().find(|g| g.group == Group::Down).unwrap();
        assert_eq!(down.kinds[0].split.matches('+').count() + 1, replay.threads, "{}", down.kinds[0].split);
        let told = replay.turns().coverage.reason;
        assert_eq!(told.contains(&format!("on {} of 4 threads", replay.threads)), replay.sat_out > 0, "{told}");
        assert!(!specimen.tap().with(|cpu| cpu.hold(false)), "nobody is held after it");
        out.insert(replay.sat_out);
    }
    assert!(out.iter().any(|n| *n > 0), "nobody sat out of any: {out:?}");
}

#[test]
fn a_replay_that_is_told_to_stop_keeps_nothing() {
    let scene = Scene::tiny();
    let (rig, host, ceilings) = (scene.rig("paged"), Host::read(), made_up());
    let request = &scene.request;
    let (phase, warmth) = (Phase::Decode, Warmth::Warm);
    let of = Replaying { rig: &rig, request, phase, iterations: 9, warmth, host: &host, ceilings: &ceilings };
    let stopped = of.run(&mut |doing| doing != Doing::Turn(2));
    assert!(matches!(stopped, Err(LabError::Interrupted)));
    let none = Replaying { iterations: 0, ..of }.run(&mut |_| true).unwrap_err().to_string();
    assert!(none.contains("at least 1"), "{none}");
}

#[test]
fn a_probe_runs_every_dose_in_every_block_and_keeps_the_answer() {
    let scene = Scene::tiny();
    let specimen = Specimen::take(&scene.rig("paged"), &scene.request, Phase::Decode).unwrap();
    let probe = Probe { group: "down", group_ns: 4e6, blocks: 6, first_dose: 0, seed: 3 };
    let s = probe.run(&specimen, Phase::Decode, &mut |_| true).unwrap();
    assert!(s.planned_ns.windows(2).all(|w| w[0] < w[1]) && s.planned_ns[2] <= 800_000, "{:?}", s.planned_ns);
    for block in &s.blocks {
        let mut doses: Vec<usize> = block.pairs.iter().map(|p| p.dose).collect();
        doses.sort_unstable();
        assert_eq!(doses, [0, 1, 2]);
        // Every worker spins for every injected nanosecond before the step can end.
        assert!(block.pairs.iter().all(|p| p.with_ns >= p.injected_ns), "{block:?}");
    }
    let first = |with| s.blocks.iter().flat_map(|b| &b.pairs).filter(|p| p.with_first == with).count();
    assert!(first(true) > 0 && first(false) > 0, "either comes first");
    let ends = s.slope_interval.available().unwrap();
    assert!(ends.low <= s.slope && s.slope <= ends.high);
    let largest = Probe { first_dose: 2, ..probe }.run(&specimen, Phase::Decode, &mut |_| true).unwrap();
    assert!(largest.blocks.iter().all(|b| b.pairs.len() == 1 && b.pairs[0].dose == 2));
    let few = Probe { blocks: 5, ..probe }.run(&specimen, Phase::Decode, &mut |_| true).unwrap();
    assert!(few.slope_interval.available().is_none(), "five blocks cannot reject at 5 %");
}

#[test]
fn a_probe_of_nothing_is_refused() {
    let scene = Scene::tiny();
    let specimen = Specimen::take(&scene.rig("paged"), &scene.request, Phase::Decode).unwrap();
    for (group_ns, blocks) in [(0.0, 6), (4e6, 0)] {
        let probe = Probe { group: "down", group_ns, blocks, first_dose: 0, seed: 3 };
        assert!(probe.run(&specimen, Phase::Decode, &mut |_| true).is_err());
    }
    let unknown = Probe { group: "nowhere", group_ns: 4e6, blocks: 6, first_dose: 0, seed: 3 };
    let e = unknown.run(&specimen, Phase::Decode, &mut |_| true).unwrap_err().to_string();
    assert!(e.contains("one of embedding") && e.contains("`nowhere`"), "{e}");
    let probe = Probe { group: "down", group_ns: 4e6, blocks: 9, first_dose: 0, seed: 3 };
    let stopped = probe.run(&specimen, Phase::Decode, &mut |n| n < 2);
    assert!(matches!(stopped, Err(LabError::Interrupted)));
}
