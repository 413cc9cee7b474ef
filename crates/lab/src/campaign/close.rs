//! From a journal to records: one for each slot, with the rounds of all attempts.

use serde_json::json;
use tare_core::Fault;
use tare_core::Reading;
use tare_evidence::checks::{CACHE, CACHED_TOKENS, ROUNDS_AGREE};
use tare_evidence::floor::{Ceiling, CeilingSample};
use tare_evidence::gate::{Check, GateReport, Miss};
use tare_evidence::provenance::Provenance;
use tare_evidence::record::{About, Measured, Method};
use tare_evidence::samples::{Emitted, Samples, TimedRound, Timing};
use tare_evidence::study::{Design, StudyPlan};
use tare_evidence::{Draft, Record, Utc};
use tare_probe::{Host, Quietness};

use crate::LabError;
use crate::arm::protocol::Judged;
use crate::campaign::bench::CeilingTurn;
use crate::campaign::design::{Seating, Slot};
use crate::campaign::journal::{Journal, RoundLog};
use crate::facts::{self, ArmFacts};
use crate::floor::CeilingKind;
use crate::host::{self, Moment};
use crate::study::Study;
use crate::weigh::timing_contract;

/// What closing a campaign needs besides its journal.
#[derive(Debug)]
pub struct Closing<'a> {
    /// The study.
    pub study: &'a Study,
    /// The study as its documents have it.
    pub plan: &'a StudyPlan,
    /// Its slots.
    pub seating: &'a Seating,
    /// The host.
    pub host: &'a Host,
    /// When.
    pub at: Utc,
}

impl Closing<'_> {
    /// One record for each slot, in their order, or why it does not hold together. Without a round there are none.
    pub fn records(&self, journal: &Journal) -> Vec<Result<Record, LabError>> {
        let rounds: Vec<&RoundLog> = journal.rounds().collect();
        if rounds.is_empty() {
            return Vec::new();
        }
        let slots = self.seating.slots.iter().enumerate();
        slots.map(|(i, slot)| self.record(journal, &rounds, (i, slot))).collect()
    }

    fn record(&self, journal: &Journal, rounds: &[&RoundLog], (i, slot): (usize, &Slot)) -> Result<Record, LabError> {
        let facts = journal
            .facts(&slot.name)
            .ok_or_else(|| Fault::new("journal", format!("facts of {}", slot.name), "none"))?
            .clone();
        let opened = journal.opened()?;
        let judged: Vec<&Judged> = rounds.iter().map(|r| &r.slots[i]).collect();
        let memory: Vec<_> = judged.iter().map(|j| j.memory.clone()).collect();
        let device: Vec<_> = judged.iter().filter_map(|j| j.device.clone()).collect();
        let pages: Vec<_> = judged.iter().filter_map(|j| j.pages.clone()).collect();
        let benched: Vec<_> = judged.iter().filter_map(|j| j.benched.clone()).collect();
        let quiet = rounds.last().map(|r| &r.quiet);
        let moment = Moment { quiet, device: &device, pages: &pages, benched: &benched };
        let clocked = judged.iter().all(|j| j.timing.as_ref().is_some_and(|t| t.device.is_some()));
        let mut config = facts.config.clone();
        config["rounds"] = json!(rounds.len());
        Ok(Record::seal(Draft {
            about: About {
                role: self.study.role,
                study: self.study.name.clone(),
                campaign: opened.campaign.clone(),
                created_at: self.at,
                title: format!("{}: {}", self.study.name, slot.name),
                question: self.study.question.clone(),
                notes: self.notes(journal, rounds, &judged, &facts),
            },
            work: facts.work.clone(),
            arm: facts.arm.clone(),
            provenance: Provenance {
                host: host::describe(self.host, moment)?,
                software: facts.build.software.clone(),
                source: facts.build.source.clone(),
                binary_sha256: facts.build.binary_sha256.clone(),
                config,
            },
            plan: facts.plan.clone(),
            method: Method {
                timing_contract: timing_contract(clocked),
                scheme: self.plan.design.name().into(),
                order: rounds.iter().map(|r| self.order(r, i)).collect(),
                planned_rounds: rounds.len() as u32,
                attempt: journal.attempts().count() as u32,
                label: Some(slot.label.clone()),
            },
            memory: facts::fullest(&memory),
            gate: whole_gate(&judged).judge()?,
            measured: Measured {
                samples: Samples { warmups: Vec::new(), rounds: timed_rounds(&judged) },
                ceilings: ceilings(self.study, rounds, facts.threads),
                demands: facts.demands.clone(),
                startup: None,
            },
        })?)
    }

    /// Who ran in a round, in order: of a duet the two that met.
    fn order(&self, round: &RoundLog, slot: usize) -> Vec<String> {
        let met = self.seating.pairs.iter().find(|p| p.baseline == slot || p.candidate == slot);
        match met {
            Some(pair) if self.plan.design == Design::Duet => {
                let other = &self.seating.slots[pair.candidate].label;
                round.order.chunks(2).find(|two| two.contains(other)).map(<[String]>::to_vec).unwrap_or_default()
            }
            _ => round.order.clone(),
        }
    }

    /// What a reader of the figures must know.
    fn notes(&self, journal: &Journal, rounds: &[&RoundLog], judged: &[&Judged], facts: &ArmFacts) -> Vec<String> {
        let study = self.study;
        let mut notes = vec!["each round ran in a process of its own".to_string()];
        notes.extend(study.ceilings().map(|(arm, kind)| {
            format!(
                "`{arm}` measured the ceiling `{}`: it had a turn beside every meeting of a round, before it in even rounds \
                 and after it in odd ones",
                kind.ceiling()
            )
        }));
        if study.warmups > 0 {
            notes.push(format!(
                "before each timed request {} warm-up of the same prompt and {} tokens; its tokens passed the gate as \
                 the first ones of the request (check `warm-ups`)",
                study.warmups,
                study.warmup_output()
            ));
        }
        if self.plan.design == Design::Duet {
            notes.push(format!(
                "two arms took turns of {} tokens; the first token of a turn is in no figure, so that end to end is not \
                 the time of a request that runs alone",
                study.turn_tokens
            ));
        }
        if let Some((layers, head)) = judged.first().and_then(|j| j.rows) {
            notes.push(format!("a round computes {layers} rows in each layer and {head} in the head"));
        }
        notes.extend(journal.stops().map(|s| format!("attempt {} ended in round {}: {}", s.attempt, s.round, s.why)));
        notes.extend(facts.notes.iter().cloned());
        let l3 = self.host.cpu.caches.l3.available().map(|l3| l3.bytes());
        let streamed = facts.streamed_bytes.available().filter(|_| study.arms[0].backend() == "cpu");
        notes.extend(streamed.zip(l3).and_then(|(bytes, l3)| host::fits_in_cache(*bytes, l3)));
        let busiest = rounds.iter().map(|r| &r.quiet).max_by(|a, b| a.spin.lost_share.total_cmp(&b.spin.lost_share));
        notes.extend(busiest.and_then(busy));
        let benched: Vec<_> = judged.iter().filter_map(|j| j.benched.clone()).collect();
        notes.extend(host::short_handed(&benched));
        notes
    }
}

/// A word when others took much of the host before a round.
fn busy(q: &Quietness) -> Option<String> {
    const MUCH: f64 = 0.1;
    let percent = 100.0 * q.spin.lost_share;
    (q.spin.lost_share > MUCH)
        .then(|| format!("before the busiest round others took {percent:.0} % of a spinning thread's time"))
}

fn timed_rounds(judged: &[&Judged]) -> Vec<TimedRound> {
    let none = || Timing {
        device: None,
        setup_ns: 0,
        prefill_ns: 0,
        token_ns: Vec::new(),
        release_ns: 0,
        main_thread_cpu_ns: Reading::unavailable("the gate failed"),
        untimed: Vec::new(),
    };
    let round = |(n, j): (usize, &&Judged)| TimedRound {
        emitted: Emitted { round: n as u32, rows: j.tokens.clone() },
        // Without times only behind a failed gate, and then the record drops them all.
        timing: j.timing.clone().unwrap_or_else(none),
    };
    judged.iter().enumerate().map(round).collect()
}

/// Every sample of every turn of the ceiling arms; of a ceiling that no arm measures, that there is none.
fn ceilings(study: &Study, rounds: &[&RoundLog], threads: usize) -> Vec<Ceiling> {
    let of = |kind: CeilingKind| {
        let arm = study.ceilings().find(|(_, k)| *k == kind).map(|(label, _)| label);
        let missing = match study.ceilings().next() {
            None => "the study has no ceiling arm".to_string(),
            Some(_) => format!("the study has no ceiling arm that measures `{}`", kind.ceiling()),
        };
        let turns = || rounds.iter().flat_map(|r| r.ceilings.iter().map(move |t| (r.round, t)));
        let its: Vec<(u32, &CeilingTurn)> = turns().filter(|(_, t)| Some(t.arm.as_str()) == arm).collect();
        let first = its.first().map(|(_, t)| &t.pass);
        Ceiling {
            name: kind.ceiling().to_string(),
            arm: arm.map(str::to_string),
            resource: kind.resource(),
            threads: first.map_or(threads as u32, |p| p.threads),
            working_set_bytes: first.map_or(0, |p| p.working_set_bytes),
            pages: first.map_or_else(|| "none".to_string(), |p| p.pages.clone()),
            samples: if arm.is_some() { samples(&its) } else { Reading::unavailable(missing) },
        }
    };
    CeilingKind::ALL.map(of).into()
}

/// All samples; none when a turn has none.
fn samples(turns: &[(u32, &CeilingTurn)]) -> Reading<Vec<CeilingSample>> {
    let mut all = Vec::new();
    for (round, t) in turns {
        match &t.pass.samples {
            Reading::Available(taken) => {
                let sample = |&(amount, ns)| CeilingSample { round: Some(*round), turn: Some(t.turn), amount, ns };
                all.extend(taken.iter().map(sample));
            }
            Reading::Unavailable { why } => return Reading::unavailable(why),
        }
    }
    if all.is_empty() { Reading::unavailable("its arm had no turn") } else { Reading::Available(all) }
}

/// The check that a miss names when a round behind a passed gate has no times.
const TIMES: &str = "times";

/// The gate of a slot over all its rounds: ids are held against those of the first round here, since each round was
/// judged in a process of its own; logits count in every round that has these ids, as a record counts them; ranks are
/// those of the first. A round without times is a miss, since a record has the times of all rounds or none.
fn whole_gate(judged: &[&Judged]) -> GateReport {
    let Some(first) = judged.first() else {
        return GateReport { thresholds_version: String::new(), checks: Vec::new(), misses: Vec::new() };
    };
    let mut whole = GateReport { misses: Vec::new(), checks: vec![agreement(judged)], ..first.gate.clone() };
    for check in first.gate.checks.iter().filter(|c| c.name != ROUNDS_AGREE) {
        let all = || judged.iter().flat_map(|j| j.gate.checks.iter().map(move |c| (j, c)));
        let same = || all().filter(|(_, c)| c.name == check.name);
        let max_error = same().map(|(_, c)| c.max_error).fold(0.0, f64::max);
        let once = [CACHE, CACHED_TOKENS].contains(&check.name.as_str()) || check.name.ends_with("-rank");
        let like_first = same().filter(|(j, _)| same_ids(j, first));
        let compared = if once { check.compared } else { like_first.map(|(_, c)| c.compared).sum() };
        whole.checks.push(Check { max_error, compared, ..check.clone() });
    }
    for (n, j) in judged.iter().enumerate() {
        whole.misses.extend(j.gate.misses.iter().cloned().map(|mut m| {
            m.at = format!("round {n}: {}", m.at);
            m
        }));
        if j.gate.misses.is_empty() && j.timing.is_none() {
            let (at, expected) = (format!("round {n}"), "the times of a passed gate".to_string());
            whole.misses.push(Miss { check: TIMES.into(), at, expected, found: "none".into() });
        }
    }
    whole
}

fn same_ids(a: &Judged, b: &Judged) -> bool {
    a.tokens.iter().map(|row| &row.ids).eq(b.tokens.iter().map(|row| &row.ids))
}

/// Ids of every round against those of the first.
fn agreement(judged: &[&Judged]) -> Check {
    let (mut compared, mut differing) = (0, 0);
    for (first, j) in judged.first().into_iter().flat_map(|first| judged.iter().map(move |j| (first, j))) {
        for n in 0..first.tokens.len().max(j.tokens.len()) {
            let [a, b] = [first, j].map(|j| j.tokens.get(n).map_or(&[][..], |row| &row.ids));
            let longest = a.len().max(b.len());
            compared += longest as u64;
            differing += (0..longest).filter(|&i| a.get(i) != b.get(i)).count();
        }
    }
    Check { name: ROUNDS_AGREE.into(), compared, max_error: if differing == 0 { 0.0 } else { 1.0 }, limit: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_evidence::record::Memory;
    use tare_evidence::samples::RowTokens;

    fn timing() -> Timing {
        Timing {
            device: None,
            setup_ns: 1,
            prefill_ns: 1,
            token_ns: vec![1],
            release_ns: 1,
            main_thread_cpu_ns: Reading::unavailable("a test"),
            untimed: Vec::new(),
        }
    }

    /// A round, with times exactly where it has no misses.
    fn judged(ids: &[u32], checks: &[(&str, u64, f64)], misses: usize) -> Judged {
        let none = || Reading::unavailable("a test");
        let check = |&(name, compared, max_error): &(&str, u64, f64)| Check {
            name: name.into(),
            compared,
            max_error,
            limit: 0.5,
        };
        let miss = Miss { check: "accuracy-logit".into(), at: "t".into(), expected: "e".into(), found: "f".into() };
        Judged {
            gate: GateReport {
                thresholds_version: "7".into(),
                checks: checks.iter().map(check).collect(),
                misses: vec![miss; misses],
            },
            tokens: vec![RowTokens { ids: ids.to_vec(), logits: vec![0.0; ids.len()] }],
            timing: (misses == 0).then(timing),
            memory: Memory {
                allocator_peak_bytes: none(),
                anonymous_rss_bytes: none(),
                file_rss_bytes: none(),
                device_bytes: none(),
                kv_bytes: none(),
                peak_rss_bytes: Some(none()),
            },
            rows: None,
            device: None,
            pages: None,
            benched: None,
        }
    }

    #[test]
    fn the_gates_of_all_rounds_make_one() {
        let first = judged(
            &[1, 2],
            &[(ROUNDS_AGREE, 2, 0.0), ("accuracy-logit", 2, 0.1), ("accuracy-rank", 2, 0.0), (CACHE, 8, 0.0)],
            0,
        );
        let middle =
            judged(&[1, 2], &[(ROUNDS_AGREE, 2, 0.0), ("accuracy-logit", 2, 0.3), ("accuracy-rank", 2, 0.0)], 0);
        let last = judged(
            &[1, 2],
            &[(ROUNDS_AGREE, 2, 0.0), ("accuracy-logit", 2, 0.2), ("accuracy-rank", 2, 0.0), (CACHE, 8, 0.2)],
            1,
        );
        let whole = whole_gate(&[&first, &middle, &last]);
        let said: Vec<(&str, u64, f64)> =
            whole.checks.iter().map(|c| (c.name.as_str(), c.compared, c.max_error)).collect();
        assert_eq!(
            said,
            [(ROUNDS_AGREE, 6, 0.0), ("accuracy-logit", 6, 0.3), ("accuracy-rank", 2, 0.0), (CACHE, 8, 0.2)]
        );
        assert_eq!((whole.misses.len(), whole.misses[0].at.as_str()), (1, "round 2: t"));
        assert_eq!(whole.thresholds_version, "7");
    }

    #[test]
    fn a_round_of_other_ids_does_not_agree() {
        let a = judged(&[1, 2], &[(ROUNDS_AGREE, 2, 0.0)], 0);
        let b = judged(&[1, 3], &[(ROUNDS_AGREE, 2, 0.0)], 0);
        let check = agreement(&[&a, &b]);
        assert_eq!((check.compared, check.max_error), (4, 1.0));
        assert!(matches!(whole_gate(&[&a, &b]).judge().unwrap(), tare_evidence::gate::Judgement::Failed(_)));
        assert!(whole_gate(&[]).judge().is_err(), "no round proves nothing");
    }

    /// A record counts the logits of rounds that drew the ids of the first alone.
    #[test]
    fn logits_of_other_ids_are_not_counted() {
        let one = |ids: &[u32]| judged(ids, &[(ROUNDS_AGREE, 2, 0.0), ("emulation-logit", 2, 0.0)], 0);
        let whole = whole_gate(&[&one(&[1, 2]), &one(&[1, 3]), &one(&[1, 2])]);
        assert_eq!((whole.checks[1].name.as_str(), whole.checks[1].compared), ("emulation-logit", 4));
    }

    #[test]
    fn a_round_without_times_is_a_miss() {
        let (whole, mute) =
            (judged(&[1], &[("emulation-logit", 1, 0.0)], 0), judged(&[1], &[("emulation-logit", 1, 0.0)], 0));
        let gate = whole_gate(&[&whole, &Judged { timing: None, ..mute }]);
        assert_eq!(
            (gate.misses.len(), gate.misses[0].check.as_str(), gate.misses[0].at.as_str()),
            (1, TIMES, "round 1")
        );
    }
}
