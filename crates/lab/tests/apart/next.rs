//! The ranking: what could give most comes first, what does not add up is withheld.

use tare_core::Reading;
use tare_lab::groups::Group;
use tare_lab::next::advise_group;
use tare_lab::next::look::{At, Effort, Looked, Looking};
use tare_lab::next::rank::{Kept, Ranking, RequestTime};
use tare_lab::replay::{Remainder, Replay};
use tare_lab::sensitivity::{Ends, Probe, Sensitivity};
use tare_lab::specimen::{Phase, Specimen};
use tare_lab::{LabError, Rig};
use tare_probe::Host;

use crate::scene::{Scene, made_up};

const LITTLE: Effort = Effort { decode_turns: 3, prefill_turns: 2, blocks: 6, probed: 1 };

fn look(scene: &Scene, rig: &Rig<'_>, go_on: &mut dyn FnMut(At<'_>) -> bool) -> Result<Looked, LabError> {
    let (host, ceilings, request) = (&Host::read(), &made_up(), &scene.request);
    let (prefill_ns, decode_ns, decode_step_ns, effort) = (4e8, 6e8, 2e8, LITTLE);
    Looking { rig, request, prefill_ns, decode_ns, decode_step_ns, host, ceilings, effort }.run(go_on)
}

/// Replays whose groups add up: how well they do on a step of microseconds is a matter of luck.
fn adding_up(looked: &Looked) -> Vec<Kept<Replay>> {
    let left = Remainder { sum_ns: 0.0, ns: 0.0, percent: 9.9, neighbours_ns: 0.0, meetings_ns: 0.0 };
    let mut replays = looked.replays.clone();
    for r in &mut replays {
        r.document.remainder = Reading::Available(left);
        // As long as the clock says: 400 ms of prefill in one step, 600 ms of decode in three.
        r.document.step_ns = if r.document.phase == Phase::Prefill { 4e8 } else { 2e8 };
    }
    replays
}

#[test]
fn the_group_that_could_give_most_comes_first() {
    let scene = Scene::tiny();
    let looked = look(&scene, &scene.rig("paged"), &mut |_| true).unwrap();
    let with_heads_ns = |heads_ns: f64| {
        let mut replays = adding_up(&looked);
        for g in replays.iter_mut().flat_map(|r| &mut r.document.groups) {
            g.ns = if g.group == Group::NormedHeads { heads_ns } else { 2e6 };
        }
        Ranking::new(looked.ranking.request, &replays, &[])
    };
    let ranking = with_heads_ns(6e6);
    let top = &ranking.groups[0];
    assert_eq!(
        (top.group.as_str(), top.phase),
        ("norm+rope+kv-append", Phase::Decode),
        "three steps of decode, one of prefill"
    );
    assert!(advise_group(top).starts_with("attack norm+rope+kv-append in decode: it takes 6.000 ms of a step"));
    assert_ne!(with_heads_ns(1e6).groups[0].group, "norm+rope+kv-append");
    let lost = with_heads_ns(0.0);
    assert!(lost.groups.iter().all(|g| g.group != "norm+rope+kv-append"), "no time was seen: that is no zero");
    assert_eq!(
        lost.withheld
            .iter()
            .filter(|w| w.contains("norm+rope+kv-append: it takes no longer than an empty region"))
            .count(),
        2
    );
    assert!(ranking.withheld.iter().all(|w| w.contains("no bytes and no operations")), "{:?}", ranking.withheld);
    let all: usize = looked.replays.iter().map(|r| r.document.groups.len()).sum();
    assert_eq!(ranking.groups.len() + ranking.withheld.len(), all);
}

#[test]
fn steps_count_as_often_as_the_request_runs_them() {
    let scene = Scene::tiny();
    let looked = look(&scene, &scene.rig("paged"), &mut |_| true).unwrap();
    let request = looked.ranking.request;
    assert_eq!((request.prompt_tokens, request.chunk_rows, request.decode_steps), (20, 20, 3));
    let decode = &looked.replays.iter().find(|r| r.document.phase == Phase::Decode).unwrap().document;
    assert_eq!((decode.rows, decode.depth), (1, 21), "midway: 20 tokens of prompt and one of three");
    let ranking = Ranking::new(request, &adding_up(&looked), &[]);
    for g in &ranking.groups {
        let steps = if g.phase == Phase::Decode { 3.0 } else { 1.0 };
        let above = (g.measured_ns - g.floor_ns).max(0.0) * steps;
        assert!((g.removable_ns - above).abs() < 1e-3 && g.slope.is_none(), "{g:?}");
        assert!((g.gain_percent - above / 1e7).abs() < 1e-6);
    }
    assert!(ranking.groups.windows(2).all(|w| w[0].removable_ns >= w[1].removable_ns));
}

#[test]
fn a_phase_whose_groups_do_not_add_up_is_withheld() {
    let scene = Scene::tiny();
    let looked = look(&scene, &scene.rig("paged"), &mut |_| true).unwrap();
    let mut replays = adding_up(&looked);
    replays[0].document.remainder = Reading::unavailable("the groups lack a stage");
    if let Reading::Available(left) = &mut replays[1].document.remainder {
        left.percent = -10.1;
    }
    let ranking = Ranking::new(looked.ranking.request, &replays, &[]);
    assert!(ranking.groups.is_empty());
    assert_eq!(ranking.withheld[0], "prefill: the groups lack a stage");
    assert!(ranking.withheld[1].starts_with("decode: its groups leave -10.1 % of the step over"));
}

#[test]
fn a_look_that_is_told_to_stop_keeps_nothing() {
    let scene = Scene::tiny();
    let stopped = look(&scene, &scene.rig("paged"), &mut |at| !matches!(at, At::Replay(Phase::Decode, _)));
    assert!(matches!(stopped, Err(LabError::Interrupted)));
}

#[test]
fn a_step_that_is_not_the_clocked_one_is_withheld() {
    let scene = Scene::tiny();
    let looked = look(&scene, &scene.rig("paged"), &mut |_| true).unwrap();
    let request = looked.ranking.request;
    let with = |edit: &dyn Fn(&mut Replay)| {
        let mut replays = adding_up(&looked);
        replays.iter_mut().for_each(|r| edit(&mut r.document));
        Ranking::new(request, &replays, &[]).withheld
    };
    let slow = with(&|r| r.step_ns *= 1.2);
    assert!(slow.iter().filter(|w| w.contains("+20.0 % off the clocked one")).count() == 2, "{slow:?}");
    let rest = with(&|r| r.rows = if r.phase == Phase::Prefill { 9 } else { 1 });
    assert!(rest.iter().any(|w| w.contains("the last chunk has 9 rows where others have 20")), "{rest:?}");
    // Medians are compared: one step of 800 ms among many of 200 changes nothing.
    let disturbed = RequestTime { decode_ns: 12e8, ..request };
    let withheld = Ranking::new(disturbed, &adding_up(&looked), &[]).withheld;
    assert!(!withheld.iter().any(|w| w.contains("off the clocked one")), "{withheld:?}");
}

#[test]
fn a_slope_counts_when_its_interval_leaves_out_one() {
    let scene = Scene::tiny();
    let looked = look(&scene, &scene.rig("paged"), &mut |_| true).unwrap();
    let mut replays = adding_up(&looked);
    replays.iter_mut().flat_map(|r| &mut r.document.groups).for_each(|g| g.ns = 2e6);
    let specimen = Specimen::take(&scene.rig("paged"), &scene.request, Phase::Decode).unwrap();
    let probe = Probe { group: "down", group_ns: 4e6, blocks: 1, first_dose: 2, seed: 3 };
    let measured = probe.run(&specimen, Phase::Decode, &mut |_| true).unwrap();
    let removable = |probes: &[Kept<Sensitivity>]| {
        let ranking = Ranking::new(looked.ranking.request, &replays, probes);
        ranking.groups.iter().find(|g| (g.group.as_str(), g.phase) == ("down", Phase::Decode)).unwrap().removable_ns
    };
    let probed = |slope, low, high| {
        let slope_interval = Reading::Available(Ends { low, high });
        let document = Sensitivity { slope, slope_interval, ..measured.clone() };
        removable(&[Kept { id: "probe".into(), document }])
    };
    let whole = removable(&[]);
    assert_eq!(probed(2.5, 0.4, 5.0), whole, "not told apart from 1");
    assert_eq!(probed(0.5, 0.3, 0.7), 0.5 * whole);
    assert_eq!(probed(1.5, 1.2, 1.8), 1.5 * whole);
    assert_eq!(probed(-0.5, -0.9, -0.1), 0.0);
}
