//! What a campaign says, held against its openings and the records that it names.

use crate::agree;
use crate::campaign::{Campaign, Pair, PairRole, RecordRef};
use crate::checks::{self, Seen};
use crate::compare;
use crate::document::Document;
use crate::opening::Opening;
use crate::record::{Outcome, Record};
use crate::ruling::identical_to;
use crate::shelf::Shelf;
use crate::sides::{Side, arm_faults, class_faults};
use crate::study::{Design, StudyPlan};
use tare_core::Fault;

/// The records of each pair, baseline first.
pub(crate) type Records = [(Record, Record)];

/// A campaign is closed once: another closing of it.
pub(crate) fn closing_faults(document: &Document<Campaign>, shelf: &Shelf) -> Vec<Fault> {
    let of_it = |d: &Document<Campaign>| d.about.campaign == document.about.campaign && d.id != document.id;
    let fault = |d: Document<Campaign>| {
        Fault::new("about.campaign", format!("one closing of `{}`", document.about.campaign), format!("`{}` too", d.id))
            .remedy("keep the one that was written first: a verdict is not chosen among closings")
    };
    shelf.documents::<Campaign>().filter(of_it).map(fault).collect()
}

/// Openings that another binary than the closing's wrote: attempts of two binaries are not pooled.
pub(crate) fn binary_faults(document: &Document<Campaign>, shelf: &Shelf) -> Vec<Fault> {
    let fault = |id: &String| {
        let at = format!("openings: {id}");
        let its = shelf.document::<Opening>(&at, id).ok()?.provenance.binary_sha256;
        let ours = &document.provenance.binary_sha256;
        (*ours != its).then(|| {
            Fault::new(format!("{at}: provenance.binary_sha256"), ours, its)
                .remedy("run all attempts with one binary, or open a new campaign")
        })
    };
    document.body.openings.iter().filter_map(fault).collect()
}

/// Everything that the openings say otherwise.
pub(crate) fn opening_faults(document: &Document<Campaign>, shelf: &Shelf) -> Vec<Fault> {
    let campaign = &document.body;
    let mut faults = Vec::new();
    for (id, attempt) in campaign.openings.iter().zip(&campaign.attempts) {
        let at = format!("openings: {id}");
        let opening = match shelf.document::<Opening>(&at, id) {
            Ok(opening) => opening,
            Err(fault) => {
                faults.push(fault);
                continue;
            }
        };
        let mut same = |what: &str, expected: String, found: String| {
            if expected != found {
                let fault = Fault::new(format!("{at}: {what}"), expected, found);
                faults.push(fault.remedy("a study is not changed after its opening: open a new campaign"));
            }
        };
        same("about.campaign", document.about.campaign.clone(), opening.about.campaign.clone());
        same("attempt", attempt.number.to_string(), opening.body.attempt.to_string());
        same("about.created_at", attempt.opened_at.to_string(), opening.about.created_at.to_string());
        same("study", shown(&campaign.study), shown(&opening.body.study));
        let (ours, its) = (&document.provenance, &opening.provenance);
        same("provenance.host.class_sha256", ours.host.class_sha256.clone(), its.host.class_sha256.clone());
    }
    for other in shelf.documents::<Opening>() {
        if other.about.campaign == document.about.campaign && !campaign.openings.contains(&other.id) {
            faults.push(
                Fault::new(
                    "openings",
                    format!("every attempt: `{}` opened attempt {} too", other.id, other.body.attempt),
                    "none",
                )
                .remedy("name every attempt: none is dropped"),
            );
        }
    }
    faults
}

fn shown(study: &StudyPlan) -> String {
    serde_json::to_string(study).unwrap_or_default()
}

/// The records that the pairs name.
///
/// # Errors
/// Every record that is missing or not the one that was named.
pub(crate) fn records(document: &Document<Campaign>, shelf: &Shelf) -> Result<Vec<(Record, Record)>, Vec<Fault>> {
    let (mut records, mut faults) = (Vec::new(), Vec::new());
    for pair in &document.body.pairs {
        let mut read = |side: &str, named: &RecordRef| {
            let at = format!("pairs: {}: {side}", pair.arm);
            match shelf.record(&at, &named.id) {
                Ok((record, sha256)) if sha256 == named.sha256 => Some(record),
                Ok((_, sha256)) => {
                    let fault = Fault::new(at, format!("{} of {}", named.sha256, named.id), sha256);
                    faults.push(fault.remedy("the record was changed: restore the file as it was written"));
                    None
                }
                Err(fault) => {
                    faults.push(fault);
                    None
                }
            }
        };
        if let (Some(baseline), Some(candidate)) =
            (read("baseline", &pair.baseline), read("candidate", &pair.candidate))
        {
            records.push((baseline, candidate));
        }
    }
    if faults.is_empty() { Ok(records) } else { Err(faults) }
}

/// Everything that shows a record in a place that is not its own, whatever the outcome.
pub(crate) fn place_faults(document: &Document<Campaign>, records: &Records) -> Vec<Fault> {
    let campaign = &document.body;
    let mut faults = Vec::new();
    for (place, (pair, (baseline, candidate))) in campaign.pairs.iter().zip(records).enumerate() {
        let within = |f: Fault| f.within(format!("pairs: {}", pair.arm));
        for (side, record, label) in
            [("baseline", baseline, &campaign.study.baseline), ("candidate", candidate, &pair.arm)]
        {
            faults.extend(one_record(document, pair, record, label).into_iter().map(|f| within(f.within(side))));
        }
        faults.extend(baseline_fault(campaign, pair).map(within));
        let earlier =
            campaign.pairs[..place].iter().zip(&records[..place]).filter(|(p, _)| p.role == PairRole::Candidate);
        let others = [(campaign.study.baseline.as_str(), baseline)]
            .into_iter()
            .chain(earlier.map(|(p, (_, record))| (p.arm.as_str(), record)));
        if pair.role == PairRole::Candidate {
            faults.extend(identity_fault(pair, candidate, others).map(within));
        }
    }
    faults
}

/// Everything that forbids to divide the times of one side by those of the other, or that shows two arms of one class
/// apart in their tokens or in the limits that they were held to.
pub(crate) fn confounds(campaign: &Campaign, records: &Records) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut classes: Vec<(&str, &Record)> = Vec::new();
    for (pair, (baseline, candidate)) in campaign.pairs.iter().zip(records) {
        let within = |f: Fault| f.within(format!("pairs: {}", pair.arm));
        if let Err(e) = compare::same_work(&baseline.work, &candidate.work) {
            faults.push(within(Fault::new("work", "the same work on both sides", e.to_string())));
        }
        let twin = pair.role == PairRole::AA;
        faults.extend(arm_faults(&campaign.study, twin, &baseline.arm, &candidate.arm).into_iter().map(within));
        for (label, record) in [(campaign.study.baseline.as_str(), baseline), (pair.arm.as_str(), candidate)] {
            let known = classes.iter().find(|(_, r)| r.arm.class == record.arm.class && r.arm.peer.is_none());
            match known {
                Some((as_in, first)) => {
                    let apart = |f: Fault| within(f.within(format!("`{label}` against `{as_in}`")));
                    faults.extend(both(first, record).into_iter().map(apart));
                }
                None => classes.push((label, record)),
            }
        }
    }
    faults
}

fn both(first: &Record, other: &Record) -> Vec<Fault> {
    let (_, first_rounds) = agree::emitted(first);
    let (_, other_rounds) = agree::emitted(other);
    match (first_rounds.first(), other_rounds.first()) {
        (Some(a), Some(b)) => class_faults(
            &Side { arm: &first.arm, gate: first.gate(), rows: &a.rows },
            &Side { arm: &other.arm, gate: other.gate(), rows: &b.rows },
        ),
        _ => Vec::new(),
    }
}

/// Outside of a duet the baseline ran once a round, so that all pairs have one record of it.
fn baseline_fault(campaign: &Campaign, pair: &Pair) -> Option<Fault> {
    let first = &campaign.pairs.first()?.baseline.id;
    (campaign.study.design != Design::Duet && pair.baseline.id != *first).then(|| {
        Fault::new("baseline", format!("{first}, the baseline of every pair"), &pair.baseline.id)
            .remedy("name the record of the baseline that ran in the same rounds")
    })
}

/// What one record must say to belong to a pair of the campaign.
fn one_record(document: &Document<Campaign>, pair: &Pair, record: &Record, label: &str) -> Vec<Fault> {
    let (campaign, study) = (&document.body, &document.body.study);
    let mut faults = Vec::new();
    let mut same = |at: &str, expected: String, found: String| {
        if expected != found {
            faults.push(Fault::new(format!("{}: {at}", record.id), expected, found));
        }
    };
    same("about.campaign", document.about.campaign.clone(), record.about.campaign.clone());
    same("about.study", study.name.clone(), record.about.study.clone());
    same("about.role", format!("{:?}", study.role), format!("{:?}", record.about.role));
    same("method.label", label.to_string(), record.method.label.clone().unwrap_or_default());
    same("method.scheme", study.design.name().to_string(), record.method.scheme.clone());
    same("method.planned_rounds", campaign.rounds.len().to_string(), record.method.planned_rounds.to_string());
    same("method.attempt", campaign.attempts.len().to_string(), record.method.attempt.to_string());
    let (ours, its) = (&document.provenance.host, &record.provenance.host);
    same("provenance.host.class_sha256", ours.class_sha256.clone(), its.class_sha256.clone());
    let (planned, work) = (&study.work, &record.work);
    same("work.depth", planned.depth.to_string(), work.depth.to_string());
    let each = |tokens: u32| format!("{tokens} for each of {} sequences", planned.sequences);
    let told = |lengths: &[u32]| match lengths {
        [first, rest @ ..] if rest.iter().all(|n| n == first) => {
            format!("{first} for each of {} sequences", lengths.len())
        }
        others => format!("{others:?}"),
    };
    same("work.prompt_lengths", each(planned.prompt_tokens), told(&work.prompt_lengths));
    same("work.output_lengths", each(planned.output_tokens), told(&work.output_lengths));
    same("work.prefill_logits", format!("{:?}", planned.prefill_logits), format!("{:?}", work.prefill_logits));
    let opened = campaign.attempts.first().map(|a| a.opened_at);
    if opened.is_some_and(|opened| record.about.created_at < opened)
        || record.about.created_at > document.about.created_at
    {
        let expected = "after the first opening and before the closing";
        faults.push(Fault::new(
            format!("{}: about.created_at", record.id),
            expected,
            record.about.created_at.to_string(),
        ));
    }
    if record.passed() {
        // A record does not say whether warm-ups came before it.
        faults.extend(checks::faults(record.gate(), Seen::in_record(record, study.warmups > 0)));
    }
    faults.extend(order_faults(campaign, pair, record));
    faults.extend(turn_faults(study, record));
    faults
}

/// A record ran in the rounds of the log: in a duet beside the other side of its pair.
fn order_faults(campaign: &Campaign, pair: &Pair, record: &Record) -> Vec<Fault> {
    let mut faults = Vec::new();
    for log in &campaign.rounds {
        let expected = match campaign.study.design {
            Design::Duet => log.order.chunks(2).find(|two| two.contains(&pair.arm)).unwrap_or_default(),
            _ => &log.order[..],
        };
        let ran = record.method.order.get(log.round as usize).map_or(&[][..], Vec::as_slice);
        if ran != expected {
            let at = format!("{}: method.order: round {}", record.id, log.round);
            faults.push(Fault::new(at, format!("{expected:?}, as `rounds` has it"), format!("{ran:?}")));
        }
    }
    faults
}

/// In a duet the first token of every turn is untimed and no other is. Where turns are bounded by time, their places are
/// not known beforehand.
fn turn_faults(study: &StudyPlan, record: &Record) -> Option<Fault> {
    let turn = study.turn_tokens.filter(|_| study.design == Design::Duet)?.max(1) as usize;
    let Outcome::Timed(timed) = &record.outcome else { return None };
    timed.measured.samples.rounds.iter().find_map(|round| {
        let expected: Vec<u32> = (0..round.timing.token_ns.len() as u32).step_by(turn).collect();
        let found = &round.timing.untimed;
        (*found != expected).then(|| {
            let at = format!("{}: samples: round {}: untimed", record.id, round.emitted.round);
            Fault::new(at, format!("{expected:?}: the first token of each turn of {turn}"), format!("{found:?}"))
        })
    })
}

/// A candidate that ran what another arm ran is named so, and no other is.
fn identity_fault<'a>(
    pair: &Pair,
    candidate: &Record,
    others: impl Iterator<Item = (&'a str, &'a Record)>,
) -> Option<Fault> {
    let twin = identical_to(candidate, others);
    (twin != pair.identical_to.as_deref()).then(|| {
        let name = |t: Option<&str>| t.map_or("none".to_string(), |t| format!("`{t}`"));
        Fault::new("identical_to", format!("{}, by what both ran", name(twin)), name(pair.identical_to.as_deref()))
            .remedy("arms that run the same are drawn once")
    })
}
