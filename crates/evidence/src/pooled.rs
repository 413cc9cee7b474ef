//! What a campaign says, held against its openings and the records that it names.

use crate::campaign::{Campaign, CampaignOutcome, Pair, PairRole, RecordRef};
use crate::compare;
use crate::document::Document;
use crate::opening::Opening;
use crate::record::Record;
use crate::ruling::same_dispatch;
use crate::shelf::Shelf;
use crate::study::{Design, StudyPlan};
use std::collections::BTreeSet;
use tare_core::Fault;

/// The records of each pair, baseline first.
pub(crate) type Records = Vec<(Record, Record)>;

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
        if matches!(campaign.outcome, CampaignOutcome::Ruled(_)) {
            same("provenance.binary_sha256", ours.binary_sha256.clone(), its.binary_sha256.clone());
        }
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
pub(crate) fn records(document: &Document<Campaign>, shelf: &Shelf) -> Result<Records, Vec<Fault>> {
    let (mut records, mut faults) = (Records::new(), Vec::new());
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

/// Everything that the records of the pairs say otherwise.
pub(crate) fn record_faults(document: &Document<Campaign>, records: &Records) -> Vec<Fault> {
    let campaign = &document.body;
    let mut faults = Vec::new();
    for (place, (pair, (baseline, candidate))) in campaign.pairs.iter().zip(records).enumerate() {
        let within = |f: Fault| f.within(format!("pairs: {}", pair.arm));
        for (side, record, label) in
            [("baseline", baseline, &campaign.study.baseline), ("candidate", candidate, &pair.arm)]
        {
            faults.extend(one_record(document, record, label).into_iter().map(|f| within(f.within(side))));
        }
        if let Err(e) = compare::same_work(&baseline.work, &candidate.work) {
            faults.push(within(Fault::new("work", "the same work on both sides", e.to_string())));
        }
        faults.extend(arm_faults(&campaign.study, pair, baseline, candidate).into_iter().map(within));
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

/// What one record must say to belong to the campaign.
fn one_record(document: &Document<Campaign>, record: &Record, label: &str) -> Vec<Fault> {
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
    same("method.planned_rounds", study.rounds.to_string(), record.method.planned_rounds.to_string());
    same("method.attempt", campaign.attempts.len().to_string(), record.method.attempt.to_string());
    let (ours, its) = (&document.provenance.host, &record.provenance.host);
    same("provenance.host.class_sha256", ours.class_sha256.clone(), its.class_sha256.clone());
    let (planned, work) = (&study.work, &record.work);
    same("work.depth", planned.depth.to_string(), work.depth.to_string());
    same("work.prompt_lengths", format!("[{}]", planned.prompt_tokens), format!("{:?}", work.prompt_lengths));
    same("work.output_lengths", format!("[{}]", planned.output_tokens), format!("{:?}", work.output_lengths));
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
    for log in &campaign.rounds {
        let ran = record.method.order.get(log.round as usize);
        let logged = match study.design {
            Design::Duet => log.order.chunks(2).any(|pair| ran.is_some_and(|r| r.as_slice() == pair)),
            _ => ran == Some(&log.order),
        };
        if !logged {
            let found = format!("{:?}", ran.cloned().unwrap_or_default());
            let expected = format!("{:?}, as `rounds` has it", log.order);
            faults.push(Fault::new(format!("{}: method.order: round {}", record.id, log.round), expected, found));
        }
    }
    faults
}

/// Fields of the arm that differ and are not under study.
fn arm_faults(study: &StudyPlan, pair: &Pair, baseline: &Record, candidate: &Record) -> Vec<Fault> {
    let twin = pair.role == PairRole::AA;
    let allowed: BTreeSet<&str> =
        if twin { BTreeSet::new() } else { study.under_study.iter().flat_map(|u| u.arm_fields()).copied().collect() };
    let differences = match compare::arm_differences(&baseline.arm, &candidate.arm) {
        Ok(differences) => differences,
        Err(fault) => return vec![fault],
    };
    let confounds = differences.into_iter().filter(|d| !allowed.contains(d.field.as_str())).map(|d| {
        let names = if twin { "nothing: an arm against itself".into() } else { format!("{:?}", study.under_study) };
        Fault::new(
            format!("arm.{}", d.field),
            format!("one value: under study is {names}"),
            format!("{} and {}", d.left, d.right),
        )
        .remedy("vary what is under study alone, or declare it")
    });
    confounds.collect()
}

/// A candidate that ran what another arm ran is named so, and no other is.
fn identity_fault<'a>(
    pair: &Pair,
    candidate: &Record,
    others: impl Iterator<Item = (&'a str, &'a Record)>,
) -> Option<Fault> {
    let twin =
        others.into_iter().find(|(_, other)| same_dispatch(other, candidate).unwrap_or(false)).map(|(label, _)| label);
    (twin != pair.identical_to.as_deref()).then(|| {
        let name = |t: Option<&str>| t.map_or("none".to_string(), |t| format!("`{t}`"));
        Fault::new("identical_to", format!("{}, by what both ran", name(twin)), name(pair.identical_to.as_deref()))
            .remedy("arms that run the same are drawn once")
    })
}
