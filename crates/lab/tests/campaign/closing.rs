//! Journals and closings: which campaign is taken up, and that each can be closed whatever went wrong in it.

use crate::scripted::{Scene, Trouble};
use tare_core::Reading;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::floors::Floors;
use tare_evidence::{Outcome, Record, Strictness, Utc, verify};
use tare_lab::campaign::journal::{Attempt, Line, Opened};
use tare_lab::campaign::{Closed, Ended, Journal};

#[test]
fn a_journal_belongs_to_one_process_and_survives_a_torn_line() {
    let scene = Scene::new("balanced", 2);
    let mut journal = scene.journal();
    scene.run(&mut journal, Trouble::Gone(5));
    let path = journal.path().to_path_buf();
    let busy = Journal::unfinished(scene.folder.path(), "any").unwrap_err().to_string();
    assert!(busy.contains("another process runs it"), "{busy}");
    let rounds = journal.rounds().count();
    drop(journal);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"line\":\"round\",\"att")).unwrap();
    let mut journal = scene.unfinished().journal.unwrap();
    assert_eq!(journal.rounds().count(), rounds);
    assert_eq!(scene.run(&mut journal, Trouble::None), Ended::Complete);
    drop(journal);
    let again = scene.unfinished().journal.unwrap();
    assert_eq!(again.rounds().count(), 2, "what was cut off did not spoil the next line");
    drop(again);
    std::fs::write(&path, whole.replacen("\"attempt\"", "\"attemt\"", 1)).unwrap();
    let found = scene.unfinished();
    let said = found.unreadable[0].to_string();
    assert!(found.journal.is_none() && said.contains("line 2") && said.contains("the build that began it"), "{said}");
}

/// A folder holds the campaigns of all studies of a name: two builds against each other and two others.
#[test]
fn the_campaign_of_the_wanted_study_is_found_among_others() {
    let scene = Scene::new("balanced", 2);
    let begun = |campaign: &str, study: &str| {
        let opened = Opened { campaign: campaign.into(), study_sha256: study.into(), ..scene.opened() };
        drop(Journal::create(scene.folder.path(), opened).unwrap());
    };
    begun("c1", "one");
    begun("c2", "two");
    std::fs::write(scene.folder.path().join("c3.jsonl"), "{\"line\":\"of another build\"}\n").unwrap();
    std::fs::write(scene.folder.path().join("c4.jsonl"), "{\"line\":\"old\"}\n{\"line\":\"closed\"}\n").unwrap();
    for (wanted, campaign) in [("one", "c1"), ("two", "c2"), ("three", "c2")] {
        let found = Journal::unfinished(scene.folder.path(), wanted).unwrap();
        let journal = found.journal.unwrap();
        assert_eq!((journal.opened().unwrap().campaign.as_str(), found.unreadable.len()), (campaign, 1), "{wanted}");
    }
    let journal = Journal::unfinished(scene.folder.path(), "two").unwrap().journal.unwrap();
    journal.abandon().unwrap();
    assert_eq!(
        Journal::unfinished(scene.folder.path(), "two").unwrap().journal.unwrap().opened().unwrap().campaign,
        "c1"
    );
}

/// Whatever happens, the campaign can be closed, what ran is kept and verifies, and closing it again changes nothing.
#[test]
fn every_campaign_can_be_closed_and_verifies() {
    // Processes: control, round 0 (base, a-a, new), round 1 (new, a-a, base).
    for (trouble, why, records) in [
        (Trouble::None, None, 3),
        (Trouble::Gone(6), Some("a-a: the process ended"), 3),
        (Trouble::Gone(2), Some("0 of 6 rounds ran; attempt 1: base: the process ended"), 0),
        (Trouble::Stopped(6), Some("interrupted"), 3),
        (Trouble::Wrong(6), Some("the gate of a-a failed in round 1"), 3),
        (Trouble::Wrong(3), Some("the gate of a-a failed in round 0"), 3),
        (Trouble::Wrong(1), Some("the gate of the control failed"), 0),
        (Trouble::Mute(6), Some("a-a gave no times in round 1"), 3),
        (Trouble::Mute(3), Some("a-a gave no times in round 0"), 3),
        (Trouble::Lying(6), Some("the gate of a-a failed in round 1"), 3),
        (Trouble::Other(6), Some("a-a drew other tokens in round 1 than in round 0"), 3),
        (Trouble::Apart, Some("new against base in round 0: tokens: row 0: token 0: expected id 0, found id 99"), 3),
        (Trouble::Lenient, Some("gate.checks: emulation-logit: limit: expected 0, found 0.5"), 3),
        (Trouble::Confounded, Some("new: arm.threads: expected one value"), 0),
        (Trouble::OddTwin, Some("a-a: arm.threads: expected one value: under study is nothing"), 0),
        (Trouble::Replanned(6), Some("a-a is another arm than it was: its plan"), 3),
        (Trouble::OtherWork(4), Some("new: not the same work: depth"), 0),
        (Trouble::Rebuilt, Some("base was changed"), 3),
    ] {
        let scene = Scene::new("balanced", 6);
        let mut journal = scene.journal();
        scene.run(&mut journal, trouble);
        let at = Utc::from_unix_seconds(1_800_000_001).unwrap();
        let closed = scene.writes(|w| w.close(&journal, at).unwrap_or_else(|e| panic!("{trouble:?}: {e}")));
        match (&closed.document.body.outcome, why) {
            (CampaignOutcome::Ruled(ruled), None) => assert_eq!(ruled.rulings.len(), 1),
            (CampaignOutcome::Unruled { why: said }, Some(why)) => assert!(said.contains(why), "{trouble:?}: {said}"),
            (outcome, _) => panic!("{trouble:?}: {outcome:?}"),
        }
        assert_eq!(closed.records.len(), records, "{trouble:?}");
        assert_eq!(closed.document.body.pairs.len(), records.saturating_sub(1), "{trouble:?}: what ran is named");
        let verified = || {
            let report = verify(scene.kept.path(), Strictness::Scratch).unwrap();
            assert!(report.is_ok(), "{trouble:?}: {:?}", report.findings);
            report.files
        };
        assert_eq!(verified(), records + 2, "{trouble:?}: records, opening, closing");
        let later = Utc::from_unix_seconds(1_800_000_009).unwrap();
        let again = scene.writes(|w| w.close(&journal, later).unwrap());
        assert_eq!(
            (&again.document.id, again.records.len()),
            (&closed.document.id, records),
            "{trouble:?}: closed once"
        );
        assert_eq!(verified(), records + 2, "{trouble:?}");
    }
}

/// Percents of floor stand on the turns of a ceiling arm, of which every sample is kept, and on nothing else.
#[test]
fn floors_stand_on_the_ceiling_arm_of_the_campaign_or_on_nothing() {
    let closed = |scene: &Scene, trouble| {
        let mut journal = scene.journal();
        scene.run(&mut journal, trouble);
        let at = Utc::from_unix_seconds(1_800_000_001).unwrap();
        let closed = scene.writes(|w| w.close(&journal, at)).unwrap();
        assert!(verify(scene.kept.path(), Strictness::Scratch).unwrap().is_ok(), "{trouble:?}");
        closed
    };
    let percent = |closed: &Closed| closed.records[2].derived().unwrap().decode.clone().map(|p| p.percent_of_floor);

    let scene = Scene::with_ceiling("balanced", 6);
    let with = closed(&scene, Trouble::None);
    let Outcome::Timed(timed) = &with.records[2].outcome else { panic!("a record with times") };
    let read = &timed.measured.ceilings[0];
    assert_eq!((read.name.as_str(), read.arm.as_deref(), read.working_set_bytes), ("memory-read", Some("top"), 4096));
    let samples = read.samples.available().unwrap();
    assert_eq!(samples.len(), 6 * 3 * 2, "two a turn, a turn beside each of three arms, six rounds");
    assert_eq!(samples.iter().map(|s| s.turn).max(), Some(Some(2)));
    let floors = with.document.body.floors.clone().unwrap();
    let rate = &floors.ceilings[0];
    assert_eq!((rate.arm.as_str(), rate.samples, rate.median_per_s.available()), ("top", 36, Some(&75e9)));
    let labels: Vec<&str> = floors.arms.iter().map(|a| a.arm.as_str()).collect();
    assert_eq!(labels, ["base", "a-a", "new"]);
    let decode = &floors.arms[2].decode;
    assert!((decode.bytes_per_s.available().unwrap() - 1e10).abs() < 1.0, "800 bytes in 80 ns: {decode:?}");
    let share = 100.0 * (800.0 / 75.0) / 80.0;
    assert!((decode.percent_of_floor.available().unwrap() - share).abs() < 1e-9, "{decode:?}");
    assert_eq!(Reading::Available(decode.percent_of_floor.clone()), percent(&with));
    let mut forged = with.document.clone();
    forged.body.floors.as_mut().unwrap().arms[2].decode.bytes_per_s = Reading::Available(2e10);
    let faults = forged.body.clone();
    let said = Floors::of(&faults.study, &pairs_of(&with)).unwrap();
    assert_ne!(said, faults.floors, "figures are derived again");

    let none = closed(&Scene::with_ceiling("balanced", 6), Trouble::NoCeiling);
    let why = percent(&none).available().unwrap().to_string();
    assert!(why.contains("no memory for it"), "{why}");

    let without = closed(&Scene::new("balanced", 6), Trouble::None);
    let why = percent(&without).available().unwrap().to_string();
    assert!(why.contains("the study has no ceiling arm"), "{why}");
    assert!(without.document.body.floors.is_none());
}

/// The records of the pairs of a closing.
fn pairs_of(closed: &Closed) -> Vec<(Record, Record)> {
    let find = |id: &str| closed.records.iter().find(|r| r.id == id).unwrap().clone();
    closed.document.body.pairs.iter().map(|p| (find(&p.baseline.id), find(&p.candidate.id))).collect()
}

/// A crash may come between an opening and its line in the journal.
#[test]
fn an_opening_that_a_crash_left_behind_is_taken_up() {
    let scene = Scene::new("balanced", 2);
    let mut journal = scene.journal();
    scene.run(&mut journal, Trouble::Gone(6));
    let at = Utc::from_unix_seconds(1_800_000_005).unwrap();
    let opening = scene.writes(|w| w.open(&scene.opened(), &[], 2, at).unwrap());
    let left =
        scene.writes(|w| (w.left_open("c", 2).unwrap(), w.left_open("c", 3).unwrap(), w.left_open("d", 2).unwrap()));
    assert_eq!(left, (Some(Attempt { number: 2, at, opening }), None, None));
    journal.add(Line::Attempt(left.0.unwrap())).unwrap();
    scene.writes(|w| w.close(&journal, at).unwrap());
    let report = verify(scene.kept.path(), Strictness::Scratch).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
}
