//! The turns of a campaign's ceiling arms, as its records quote them.
//!
//! Every record has the samples of all turns, since all arms stand beside the same ones. So the records say the same, of the
//! arms that the study has, and of each turn that these had in the rounds of the log.

use crate::campaign::{Campaign, RoundLog};
use crate::floor::Ceiling;
use crate::pooled::Records;
use crate::record::{Outcome, Record};
use crate::study::Design;
use std::collections::BTreeSet;
use tare_core::{Fault, Reading};

/// A round, and the turn in it; none of writers before arms measured ceilings.
type Turn = (Option<u32>, Option<u32>);

/// Ceilings that are not those of the campaign's own arms.
pub(crate) fn faults(campaign: &Campaign, records: &Records) -> Vec<Fault> {
    let mut all: Vec<(&str, Vec<&Ceiling>)> = Vec::new();
    for record in records.iter().flat_map(|(baseline, candidate)| [baseline, candidate]) {
        if all.iter().all(|(id, _)| *id != record.id) {
            all.extend(quoted(record).map(|ceilings| (record.id.as_str(), ceilings)));
        }
    }
    let Some(((first, ceilings), others)) = all.split_first() else { return Vec::new() };
    let within = |id: &str, f: Fault| f.within(format!("{id}: ceilings"));
    let own = arm_faults(campaign, ceilings).into_iter().chain(ceilings.iter().filter_map(|c| turn_fault(campaign, c)));
    let mut faults: Vec<Fault> = own.map(|f| within(first, f)).collect();
    for (id, its) in others.iter().filter(|(_, its)| its != ceilings) {
        let strange: Vec<&str> = its.iter().filter(|c| !ceilings.contains(c)).map(|c| c.name.as_str()).collect();
        let expected = format!("those of {first}: all arms stand beside the same turns");
        let fault = Fault::new("samples", expected, format!("{} ceilings, others of {strange:?}", its.len()));
        faults.push(within(id, fault.remedy("restore the record as it was written")));
    }
    faults
}

/// The ceilings of a record that were measured, or should have been. The others tell no more than the threads of their arm.
fn quoted(record: &Record) -> Option<Vec<&Ceiling>> {
    let Outcome::Timed(timed) = &record.outcome else { return None };
    let measured = |c: &&Ceiling| c.arm.is_some() || c.samples.available().is_some();
    Some(timed.measured.ceilings.iter().filter(measured).collect())
}

/// The arms that measured are those of the study; without any the samples are of passes between the rounds.
fn arm_faults(campaign: &Campaign, ceilings: &[&Ceiling]) -> Option<Fault> {
    let mut expected: Vec<&str> = campaign.study.ceilings().map(|a| a.label.as_str()).collect();
    let mut found: Vec<&str> = ceilings.iter().filter_map(|c| c.arm.as_deref()).collect();
    expected.sort_unstable();
    found.sort_unstable();
    let apart = !expected.is_empty() && found.len() < ceilings.len();
    (expected != found || apart).then(|| {
        let expected = format!("those of the arms {expected:?} of the study");
        let found = ceilings.iter().map(|c| (c.name.as_str(), c.arm.as_deref().unwrap_or("no arm")));
        Fault::new("arm", expected, format!("{:?}", found.collect::<Vec<_>>()))
    })
}

/// An arm has a turn beside every meeting of every round. Samples of no arm are at the most those of rounds that ran.
fn turn_fault(campaign: &Campaign, ceiling: &Ceiling) -> Option<Fault> {
    let Reading::Available(samples) = &ceiling.samples else { return None };
    let found: BTreeSet<Turn> = samples.iter().map(|s| (s.round, s.turn)).collect();
    let meetings = |log: &RoundLog| match campaign.study.design {
        Design::Duet => log.order.len() / 2,
        Design::Balanced | Design::Abba | Design::Permutations => log.order.len(),
    };
    let ran: BTreeSet<Turn> = match &ceiling.arm {
        Some(_) => {
            let of = |log: &RoundLog| (0..meetings(log) as u32).map(|turn| (log.round, turn)).collect::<Vec<_>>();
            campaign.rounds.iter().flat_map(of).map(|(round, turn)| (Some(round), Some(turn))).collect()
        }
        None => campaign.rounds.iter().map(|log| (Some(log.round), None)).chain([(None, None)]).collect(),
    };
    let missing: Vec<&Turn> = ran.difference(&found).filter(|_| ceiling.arm.is_some()).collect();
    let foreign: Vec<&Turn> = found.difference(&ran).collect();
    (!missing.is_empty() || !foreign.is_empty()).then(|| {
        let expected = "samples of every turn that its arm had in the rounds";
        let found = format!("none of {missing:?}, others of {foreign:?}");
        Fault::new(ceiling.name.clone(), expected, found).remedy("restore the record as it was written")
    })
}
