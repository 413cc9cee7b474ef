//! The documents of a campaign: its opening before the first sample, its closing after the last.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use tare_core::{Fault, Reading};
use tare_evidence::campaign::{
    Attempt, Campaign, CampaignOutcome, Control, Ended, Pair, PairRole, RecordRef, RoundLog, faults_with,
};
use tare_evidence::derive::metric_ns;
use tare_evidence::document::Document;
use tare_evidence::floors::Floors;
use tare_evidence::ledger::file_sha256;
use tare_evidence::opening::{OpenedArm, Opening};
use tare_evidence::provenance::Provenance;
use tare_evidence::record::About;
use tare_evidence::ruling::{identical_to, rule};
use tare_evidence::samples::{Emitted, TimedRound};
use tare_evidence::shelf::Shelf;
use tare_evidence::study::{A_A, Metric, StudyPlan};
use tare_evidence::{Ledger, Record, Utc};
use tare_probe::Host;

use crate::LabError;
use crate::arm::protocol::Judged;
use crate::build_info::BuildInfo;
use crate::campaign::close::Closing;
use crate::campaign::design::Seating;
use crate::campaign::journal::{Attempt as AttemptLine, Journal, Opened, When};
use crate::campaign::live::Start;
use crate::host;
use crate::study::shown_model;

/// Who writes: the host and the binary of the campaign.
#[derive(Debug)]
pub struct Writer<'a> {
    /// The host.
    pub host: &'a Host,
    /// The binary that runs the campaign.
    pub build: &'a BuildInfo,
    /// Where documents go.
    pub ledger: &'a Ledger,
}

/// A closed campaign.
#[derive(Debug)]
pub struct Closed {
    /// The closing.
    pub document: Document<Campaign>,
    /// Its file.
    pub path: std::path::PathBuf,
    /// The records, in the order of the slots; empty when no round was finished.
    pub records: Vec<Record>,
}

impl Writer<'_> {
    fn provenance(&self) -> Result<Provenance, Fault> {
        Ok(Provenance {
            host: host::describe(self.host, host::Moment::default())?,
            software: self.build.software.clone(),
            source: self.build.source.clone(),
            binary_sha256: self.build.binary_sha256.clone(),
            config: json!({ "usable_threads": self.host.usable_threads }),
        })
    }

    /// Writes the opening of attempt `number`; gives its id.
    ///
    /// # Errors
    /// When it does not hold together or cannot be written.
    pub fn open(&self, opened: &Opened, starts: &[Start], number: u32, at: Utc) -> Result<String, LabError> {
        let arm = |a: &tare_evidence::study::ArmPlan| {
            let start = starts.iter().find(|s| s.spec.label == a.label);
            let model = start.map_or(Value::Null, |s| json!(shown_model(&s.model)));
            OpenedArm {
                label: a.label.clone(),
                facts: json!({ "source": opened.sources.get(&a.label), "model": model }),
            }
        };
        let body =
            Opening { study: opened.plan.clone(), attempt: number, arms: opened.plan.arms.iter().map(arm).collect() };
        let title = format!("{}: opened, attempt {number}", opened.plan.name);
        let document = Document::seal(about(&opened.plan, &opened.campaign, at, title), self.provenance()?, body)?;
        self.ledger.append_document(&document)?;
        Ok(document.id)
    }

    /// The opening of attempt `number` where it is in the ledger and not yet in the journal: a crash came between the two.
    ///
    /// # Errors
    /// When the ledger cannot be listed.
    pub fn left_open(&self, campaign: &str, number: u32) -> Result<Option<AttemptLine>, LabError> {
        let shelf = self.ledger.shelf()?;
        let is = |d: &Document<Opening>| d.about.campaign == campaign && d.body.attempt == number;
        let found = shelf.documents::<Opening>().find(is);
        Ok(found.map(|d| AttemptLine { number, at: d.about.created_at, opening: d.id }))
    }

    /// Writes the records and the closing of a campaign: with verdicts when every planned round is there and nothing
    /// stands against them, else with why there are none. A campaign that is closed already stays as it was closed.
    /// Nothing is written before all of it is known to hold together.
    ///
    /// # Errors
    /// When something does not hold together or cannot be written.
    pub fn close(&self, journal: &Journal, at: Utc) -> Result<Closed, LabError> {
        let opened = journal.opened()?;
        let shelf = self.ledger.shelf()?;
        if let Some(document) = shelf.documents::<Campaign>().find(|d| d.about.campaign == opened.campaign) {
            return self.closed_before(document, &shelf);
        }
        let seating = Seating::new(&opened.plan);
        let closing = Closing { study: &opened.study, plan: &opened.plan, seating: &seating, host: self.host, at };
        let (mut records, mut broken) = (Vec::new(), Vec::new());
        for (slot, record) in seating.slots.iter().zip(closing.records(journal)) {
            match record {
                Ok(record) => records.push(Some(record)),
                Err(e) => {
                    broken.push(format!("the record of {} does not hold together: {e}", slot.name));
                    records.push(None);
                }
            }
        }
        let (pairs, both) = pairs(&opened.plan, &seating, &records)?;
        let document = self.ruled(journal, at, &pairs, &both, &broken, &shelf)?;
        if let Some(fault) = faults_with(&document, &both, &shelf).into_iter().next() {
            return Err(fault.within(&document.id).into());
        }
        let records: Vec<Record> = records.into_iter().flatten().collect();
        for record in &records {
            self.ledger.append(record)?;
        }
        let path = self.ledger.append_document(&document)?;
        Ok(Closed { document, path, records })
    }

    /// The closing: ruled, or unruled where a round, a record or a condition of a verdict is missing.
    fn ruled(
        &self,
        journal: &Journal,
        at: Utc,
        pairs: &[Pair],
        both: &[(Record, Record)],
        broken: &[String],
        shelf: &Shelf,
    ) -> Result<Document<Campaign>, LabError> {
        let opened = journal.opened()?;
        let sealed = |outcome: CampaignOutcome| -> Result<Document<Campaign>, LabError> {
            let attempts = attempts(journal, at, broken);
            let body = Campaign {
                openings: journal.attempts().map(|a| a.opening.clone()).collect(),
                study: opened.plan.clone(),
                control: attempts.iter().map(|a| control(journal, a.number)).collect(),
                attempts,
                rounds: journal.rounds().map(round).collect(),
                pairs: pairs.to_vec(),
                outcome,
                floors: Floors::of(&opened.plan, both)?,
            };
            let title = format!("{}: closed", opened.plan.name);
            Ok(Document::seal(about(&opened.plan, &opened.campaign, at, title), self.provenance()?, body)?)
        };
        let unruled = |why: String| sealed(CampaignOutcome::Unruled { why });
        if !journal.completed() || !broken.is_empty() {
            let (ran, planned) = (journal.rounds().count(), opened.plan.rounds);
            let stops = journal.stops().map(|s| format!("attempt {}: {}", s.attempt, s.why));
            let why: Vec<String> = stops.chain(broken.iter().cloned()).collect();
            return unruled(format!("{ran} of {planned} rounds ran; {}", why.join("; ")));
        }
        let verdicts = match rule(&opened.plan, pairs, both) {
            Ok(verdicts) => verdicts,
            Err(fault) => return unruled(fault.to_string()),
        };
        let document = sealed(CampaignOutcome::Ruled(verdicts))?;
        match faults_with(&document, both, shelf).into_iter().next() {
            None => Ok(document),
            Some(fault) => unruled(fault.to_string()),
        }
    }

    /// A closing that is in the ledger, with its records.
    fn closed_before(&self, document: Document<Campaign>, shelf: &Shelf) -> Result<Closed, LabError> {
        let mut records: Vec<Record> = Vec::new();
        for named in document.body.pairs.iter().flat_map(|p| [&p.baseline, &p.candidate]) {
            if records.iter().all(|r| r.id != named.id) {
                records.push(shelf.record("pairs", &named.id)?.0);
            }
        }
        let path = self.ledger.find(&document.id)?.path().to_path_buf();
        Ok(Closed { document, path, records })
    }
}

fn about(plan: &StudyPlan, campaign: &str, at: Utc, title: String) -> About {
    About {
        role: plan.role,
        study: plan.name.clone(),
        campaign: campaign.to_string(),
        created_at: at,
        title,
        question: plan.question.clone(),
        notes: Vec::new(),
    }
}

/// Every attempt. A campaign with a record that is `broken` is not complete, though all of its rounds ran.
fn attempts(journal: &Journal, closed_at: Utc, broken: &[String]) -> Vec<Attempt> {
    let all: Vec<_> = journal.attempts().collect();
    let one = |(i, a): (usize, &&AttemptLine)| {
        let stopped = journal.stops().find(|s| s.attempt == a.number);
        // Of an attempt that a crash ended there is no word: it ended before the next one began.
        let (ended_at, ended) = match (stopped, all.get(i + 1)) {
            (Some(s), _) if s.interrupted => (s.at, Ended::Interrupted),
            (Some(s), _) => (s.at, Ended::Lost { why: s.why.clone() }),
            (None, Some(next)) => (next.at, Ended::Lost { why: "the campaign's own process ended".to_string() }),
            (None, None) if journal.completed() && broken.is_empty() => (closed_at, Ended::Complete),
            (None, None) if journal.completed() => (closed_at, Ended::Lost { why: broken.join("; ") }),
            (None, None) => (closed_at, Ended::Lost { why: "the campaign's own process ended".to_string() }),
        };
        let rounds = journal.rounds().filter(|r| r.attempt == a.number).count() as u32;
        Attempt { number: a.number, opened_at: a.at, ended_at, rounds, ended }
    };
    all.iter().enumerate().map(one).collect()
}

fn control(journal: &Journal, attempt: u32) -> Control {
    let at = |when: When| {
        let found = journal.controls().find(|c| c.attempt == attempt && c.when == when);
        match found {
            None => Reading::unavailable("the attempt ended before"),
            Some(c) => end_to_end_ns(&c.judged),
        }
    };
    Control::of(attempt, at(When::Start), at(When::End))
}

fn end_to_end_ns(judged: &Judged) -> Reading<u64> {
    match &judged.timing {
        None => Reading::unavailable("the gate failed"),
        Some(timing) => {
            let emitted = Emitted { round: 0, rows: judged.tokens.clone() };
            let round = TimedRound { emitted, timing: timing.clone() };
            metric_ns(&round, Metric::EndToEnd).map(|ns| ns.round() as u64).into()
        }
    }
}

fn round(log: &crate::campaign::journal::RoundLog) -> RoundLog {
    let q = &log.quiet;
    let number = |r: &Reading<f64>| r.clone().map(|x| json!(x));
    let quietness = BTreeMap::from([
        ("load_1m".to_string(), number(&q.load_1m)),
        ("steal_share".to_string(), number(&q.steal_share)),
        ("busy_share".to_string(), number(&q.busy_share)),
        ("spin_lost_share".to_string(), Reading::Available(json!(q.spin.lost_share))),
        ("spin_slowest_ns".to_string(), Reading::Available(json!(q.spin.slowest_ns))),
    ]);
    RoundLog { round: log.round, attempt: log.attempt, order: log.order.clone(), quietness, notes: Vec::new() }
}

/// The records of each pair, baseline first.
type Both = Vec<(Record, Record)>;

/// The pairs of which both sides have a record, and those records.
fn pairs(plan: &StudyPlan, seating: &Seating, records: &[Option<Record>]) -> Result<(Vec<Pair>, Both), Fault> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut both = Both::new();
    let named = |r: &Record| Ok::<_, Fault>(RecordRef { id: r.id.clone(), sha256: file_sha256(r)? });
    for seats in &seating.pairs {
        let side = |slot: usize| records.get(slot).and_then(Option::as_ref);
        let (Some(baseline), Some(candidate)) = (side(seats.baseline), side(seats.candidate)) else { continue };
        let arm = seating.slots[seats.candidate].label.clone();
        let role = if arm == A_A { PairRole::AA } else { PairRole::Candidate };
        let earlier = pairs.iter().zip(&both).filter(|(p, _)| p.role == PairRole::Candidate);
        let others =
            [(plan.baseline.as_str(), baseline)].into_iter().chain(earlier.map(|(p, (_, r))| (p.arm.as_str(), r)));
        let identical_to = identical_to(candidate, others).filter(|_| role == PairRole::Candidate).map(String::from);
        pairs.push(Pair { arm, role, identical_to, baseline: named(baseline)?, candidate: named(candidate)? });
        both.push((baseline.clone(), candidate.clone()));
    }
    Ok((pairs, both))
}
