//! What was seen, written into the ledger: replays, sensitivities, and a decision that is still open.

use tare_core::Fault;
use tare_core::units::human_bytes;
use tare_evidence::decision::{Decided, Decision};
use tare_evidence::document::Body;
use tare_evidence::floor::Resource;
use tare_evidence::record::{About, Role};
use tare_evidence::{Document, Ledger, LedgerError, Record};

use super::look::Looked;
use super::rank::{Kept, Ranked, Ranking};
use crate::replay::TakenApart;

/// Why documents could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// A document does not fit together.
    #[error(transparent)]
    Document(#[from] Fault),
    /// The ledger did not take it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Writes the documents of `looked` beside `record`, which lies in `ledger` already. From then on `looked` names them by
/// their ids in the ledger. Gives the id of the decision; none when nothing was ranked.
///
/// # Errors
/// When a document does not fit together or cannot be written.
pub fn keep<R: TakenApart>(
    ledger: &Ledger,
    record: &Record,
    looked: &mut Looked<R>,
    doubts: &[String],
) -> Result<Option<String>, KeepError> {
    let keeping = Keeping { ledger, record, doubts };
    let mut replays = Vec::with_capacity(looked.replays.len());
    for kept in &looked.replays {
        let title = format!("{} step, group by group", kept.document.phase());
        let id = keeping.write(title, kept.document.body()?)?;
        replays.push(Kept { id, document: kept.document.clone() });
    }
    let mut probes = Vec::with_capacity(looked.probes.len());
    for kept in &looked.probes {
        let s = &kept.document;
        let Some(replay) = replays.iter().find(|r| r.document.phase() == s.phase) else { continue };
        let title = format!("what {} is worth in a {} step", s.group, s.phase);
        let id = keeping.write(title, s.body(&replay.document, &replay.id)?)?;
        probes.push(Kept { id, document: s.clone() });
    }
    looked.ranking = Ranking::new(looked.ranking.request, &replays, &probes);
    (looked.replays, looked.probes) = (replays, probes);
    let Some(top) = looked.ranking.groups.first() else { return Ok(None) };
    let title = format!("attack {} in {}", top.group, top.phase);
    keeping.write(title, draft(record, looked, top)).map(Some)
}

struct Keeping<'a> {
    ledger: &'a Ledger,
    record: &'a Record,
    doubts: &'a [String],
}

impl Keeping<'_> {
    fn write<B: Body>(&self, title: String, body: B) -> Result<String, KeepError> {
        let about = About { role: Role::Screening, title, notes: self.doubts.to_vec(), ..self.record.about.clone() };
        let document = Document::seal(about, self.record.provenance.clone(), body)?;
        self.ledger.append_document(&document)?;
        Ok(document.id)
    }
}

/// A decision about which nothing was done yet.
fn draft<R: TakenApart>(record: &Record, looked: &Looked<R>, top: &Ranked) -> Decision {
    let replay = looked.replays.iter().find(|r| r.id == top.replay);
    let part = replay.and_then(|r| r.document.parts().into_iter().find(|p| p.name == top.group));
    let mut kernels: Vec<&str> = part.iter().flat_map(|p| p.kernels.iter().map(|(key, _)| *key)).collect();
    kernels.dedup();
    let kernels = kernels.join(", ");
    let bytes = human_bytes(part.map_or(0, |p| p.bytes));
    let bound = match top.bound {
        Resource::Bytes => format!("its floor is the reading of {bytes} from memory"),
        Resource::Flops => "its floor is its multiply-adds".to_string(),
    };
    let ms = |ns: f64| format!("{:.3} ms", ns / 1e6);
    let worth = match top.slope {
        None => String::new(),
        Some(s) if s == top.worth => format!("; time added to it came back {s:.2}-fold in the step"),
        Some(s) => format!("; time added to it came back {s:.2}-fold in the step, which is not told from 1"),
    };
    let range = top.gain_interval.map(|i| format!(" ({:.1} to {:.1} %)", i.low, i.high)).unwrap_or_default();
    let mut support = vec![record.id.clone(), top.replay.clone()];
    support.extend(top.sensitivity.clone());
    Decision {
        dominant_group: format!("{} in {}", top.group, top.phase),
        mechanism: format!(
            "{bound}; it takes {} where {} would do, {:.0} % of floor{worth}",
            ms(top.measured_ns),
            ms(top.floor_ns),
            top.percent_of_floor
        ),
        support,
        hypothesis: format!(
            "bringing {} ({kernels}) to its floor takes {:.1} % of the request's time away{range}",
            top.group, top.gain_percent
        ),
        falsifier: format!(
            "the group's own time falls in a replay, and the request's does not in an interleaved comparison with {}",
            &record.about.campaign
        ),
        observed_effect: "none: nothing was changed yet".into(),
        verdict: Decided::Inconclusive,
        next_experiment: format!(
            "change what bounds {kernels} on {} rows, keep this binary, and run `tare next --after` with it",
            replay.map_or(0, |r| r.document.rows())
        ),
        rests_on: None,
    }
}
