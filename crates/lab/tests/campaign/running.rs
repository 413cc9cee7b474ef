//! The campaign runner: orders, turns, what is kept, and what takes a verdict away.

use crate::scripted::{Scene, Trouble};
use tare_lab::campaign::Ended;
use tare_lab::campaign::journal::{Opened, When};

#[test]
fn every_arm_runs_once_a_round_in_a_fresh_process_between_two_controls() {
    let scene = Scene::new("balanced", 2);
    let mut journal = scene.journal();
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    let starts: Vec<String> = scene.said("start").iter().map(|s| s.replace("start ", "")).collect();
    assert_eq!(starts, ["base", "base", "a-a", "new", "new", "a-a", "base", "base"]);
    assert_eq!(scene.said("end").len(), starts.len(), "no process outlives its turn");
    assert!(scene.said("ceiling").is_empty(), "the study has no arm for one");
    // One process at a time.
    let mut live = 0;
    for line in scene.log.borrow().iter() {
        live += i32::from(line.starts_with("start")) - i32::from(line.starts_with("end"));
        assert!(live <= 1, "{line}");
    }
    let one: Vec<String> = scene.log.borrow()[..6].to_vec();
    assert_eq!(one, ["start base", "warm-up 3 base", "prefill base", "decode 8 base", "finish base", "judge-all base"]);
    assert_eq!(journal.rounds().count(), 2);
    let controls: Vec<When> = journal.controls().map(|c| c.when).collect();
    assert_eq!(controls, [When::Start, When::End]);
}

/// The log as letters: a process that starts, and a turn of the ceiling.
fn turns(scene: &Scene) -> String {
    let letter = |line: &String| match line.split(' ').next() {
        Some("start") => "s",
        Some("ceiling") => "C",
        _ => "",
    };
    scene.log.borrow().iter().map(letter).collect()
}

#[test]
fn a_ceiling_has_a_turn_beside_every_meeting_and_no_process_lives_meanwhile() {
    for (design, one_round) in [("balanced", ["CsCsCs", "sCsCsC"]), ("duet", ["CssCss", "ssCssC"])] {
        let scene = Scene::with_ceiling(design, 2);
        let mut journal = scene.journal();
        assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
        assert_eq!(turns(&scene), format!("s{}{}s", one_round[0], one_round[1]), "{design}");
        let round = journal.rounds().next().unwrap();
        let told: Vec<(&str, u32)> = round.ceilings.iter().map(|t| (t.arm.as_str(), t.turn)).collect();
        assert_eq!(told[..2], [("top", 0), ("top", 1)]);
        let mut live = 0;
        for line in scene.log.borrow().iter() {
            live += i32::from(line.starts_with("start")) - i32::from(line.starts_with("end"));
            assert!(live == 0 || !line.starts_with("ceiling"), "{design}: {line}");
        }
    }
}

#[test]
fn the_cache_is_compared_in_the_first_and_last_round_and_tokens_in_all() {
    let scene = Scene::new("balanced", 4);
    assert_eq!(scene.run(&mut scene.journal(), Trouble::None), Ended::Complete);
    assert_eq!(scene.said("judge-all new").len(), 2);
    assert_eq!(scene.said("judge new").len(), 2);
}

#[test]
fn in_a_duet_two_live_arms_take_turns_and_rest_in_between() {
    let scene = Scene::new("duet", 2);
    assert_eq!(scene.run(&mut scene.journal(), Trouble::None), Ended::Complete);
    let log = scene.log.borrow();
    let first = log.iter().position(|l| l == "start a-a").unwrap();
    let end = first + log[first..].iter().position(|l| l.starts_with("end")).unwrap();
    let turns: Vec<&str> = log[first..end].iter().map(String::as_str).filter(|l| !l.starts_with("warm")).collect();
    assert_eq!(
        turns,
        [
            "start a-a",
            "rest a-a",
            "prefill base",
            "rest base",
            "prefill a-a",
            "rest a-a",
            "decode 4r base",
            "rest base",
            "decode 4r a-a",
            "rest a-a",
            "decode 4r base",
            "rest base",
            "decode 4r a-a",
            "rest a-a",
            "finish base",
            "judge-all base",
            "rest base",
            "finish a-a",
            "judge-all a-a",
            "rest a-a",
        ]
    );
}

#[test]
fn a_lost_process_ends_the_attempt_and_the_next_one_goes_on() {
    let scene = Scene::new("balanced", 4);
    let mut journal = scene.journal();
    // Processes: control, round 0 (3), then the second of round 1.
    let Ended::Stopped(s) = scene.run(&mut journal, Trouble::Gone(6)) else { panic!("it went on") };
    assert_eq!((s.attempt, s.round, s.resumable, s.interrupted), (1, 1, true, false));
    assert!(s.why.starts_with("a-a: the process ended"), "{}", s.why);
    assert_eq!(journal.rounds().count(), 1, "a round without all of its arms is no round");
    drop(journal);
    let mut journal = scene.unfinished().journal.unwrap();
    journal.can_go_on(&scene.opened()).unwrap();
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    let of: Vec<(u32, u32)> = journal.rounds().map(|r| (r.attempt, r.round)).collect();
    assert_eq!(of, [(1, 0), (2, 1), (2, 2), (2, 3)]);
    assert_eq!((journal.attempts().count(), journal.controls().count()), (2, 3));
}

#[test]
fn an_interrupt_keeps_the_finished_rounds() {
    let scene = Scene::new("duet", 4);
    let mut journal = scene.journal();
    // Processes: control, round 0 (4), round 1.
    assert_eq!(scene.run(&mut journal, Trouble::Stopped(6)), Ended::Interrupted);
    assert_eq!(journal.rounds().count(), 1);
    assert!(journal.stops().all(|s| s.resumable && s.interrupted));
    assert_eq!(scene.said("start").len(), scene.said("end").len());
    drop(journal);
    let journal = scene.unfinished().journal.unwrap();
    journal.can_go_on(&scene.opened()).unwrap();
}

#[test]
fn what_was_measured_is_no_longer_the_same_and_no_attempt_goes_on() {
    // Processes: control, round 0 (base, a-a, new), round 1 (new, a-a, base).
    for (trouble, says, rounds) in [
        (Trouble::Wrong(6), "the gate of a-a failed in round 1", 2),
        (Trouble::Mute(6), "a-a gave no times in round 1", 2),
        (Trouble::Other(6), "a-a drew other tokens in round 1 than in round 0", 2),
        (Trouble::Replanned(6), "a-a is another arm than it was: its plan", 1),
        (Trouble::OtherWork(4), "new: not the same work: depth", 0),
        (Trouble::Rebuilt, "base was changed", 1),
        (Trouble::Wrong(1), "the gate of the control failed: ", 0),
        (Trouble::Mute(1), "the control gave no times", 0),
    ] {
        let scene = Scene::new("balanced", 4);
        let mut journal = scene.journal();
        let Ended::Stopped(s) = scene.run(&mut journal, trouble) else { panic!("{trouble:?} went on") };
        assert!(s.why.contains(says) && !s.resumable, "{trouble:?}: {s:?}");
        assert_eq!(journal.rounds().count(), rounds, "{trouble:?}: what ran is kept");
        let refused = journal.can_go_on(&scene.opened()).unwrap_err().to_string();
        assert!(refused.contains("run the study anew"), "{refused}");
    }
}

#[test]
fn another_study_host_or_binary_does_not_go_on_with_it() {
    let scene = Scene::new("balanced", 4);
    let mut journal = scene.journal();
    scene.run(&mut journal, Trouble::Gone(2));
    let refused = |change: fn(&mut Opened)| {
        let mut now = scene.opened();
        change(&mut now);
        journal.can_go_on(&now).unwrap_err().to_string()
    };
    assert!(refused(|o| o.study_sha256 = "x".into()).contains("a study with digest"));
    assert!(refused(|o| o.host_class_sha256 = "x".into()).contains("a host of class h"));
    assert!(refused(|o| drop(o.sources.insert("base".into(), "binary 2".into()))).contains("`base` from binary 1"));
    assert!(refused(|o| o.sources.clear()).contains("no such arm"));
    assert!(refused(|o| o.binary_sha256 = "runner 2".into()).contains("a campaign of binary runner 1"));
    assert!(refused(|o| o.ledger = "elsewhere".into()).contains("the ledger"));
}
