//! What a ledger holds, parted into what may be drawn and what verification refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tare_evidence::accuracy::Accuracy;
use tare_evidence::campaign::Campaign;
use tare_evidence::decision::Decision;
use tare_evidence::document::{AnyDocument, Document};
use tare_evidence::ledger::{Entry, Shown};
use tare_evidence::replay::Replay;
use tare_evidence::sensitivity::Sensitivity;
use tare_evidence::{Ledger, LedgerError, Record, State, Strictness, verify};

/// A document and its present state.
#[derive(Clone, Debug)]
pub(crate) struct Stated<B> {
    pub(crate) document: Document<B>,
    pub(crate) state: State,
}

/// Everything that holds, and what does not.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Records by id.
    pub(crate) records: BTreeMap<String, Entry>,
    pub(crate) campaigns: Vec<Stated<Campaign>>,
    pub(crate) replays: Vec<Stated<Replay>>,
    pub(crate) sensitivities: Vec<Stated<Sensitivity>>,
    pub(crate) decisions: Vec<Stated<Decision>>,
    pub(crate) accuracies: Vec<Stated<Accuracy>>,
    /// File and fault, in order of file.
    pub(crate) refused: Vec<(String, String)>,
    /// What verification looked at.
    pub(crate) files: usize,
}

impl Gathered {
    /// Verifies the ledger at `root` and takes what holds.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn from(root: &Path) -> Result<Self, LedgerError> {
        let report = verify(root, Strictness::Scratch)?;
        let short = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        let bad: BTreeSet<PathBuf> = report.findings.iter().map(|f| f.path.clone()).collect();
        let mut all = Self {
            refused: report.findings.iter().map(|f| (short(&f.path), f.fault.to_string())).collect(),
            files: report.files,
            ..Self::default()
        };
        let ledger = Ledger::at(root);
        let shelf = ledger.shelf()?;
        let ids = shelf.records().map(|r| r.id);
        let documents = [
            shelf.documents::<Campaign>().map(|d| d.id).collect::<Vec<_>>(),
            shelf.documents::<Replay>().map(|d| d.id).collect(),
            shelf.documents::<Sensitivity>().map(|d| d.id).collect(),
            shelf.documents::<Decision>().map(|d| d.id).collect(),
            shelf.documents::<Accuracy>().map(|d| d.id).collect(),
        ];
        for id in ids.chain(documents.concat()) {
            match ledger.find(&id) {
                Ok(shown) if bad.contains(shown.path()) => {}
                Ok(shown) => all.take(shown),
                Err(e) => all.refused.push((id, e.to_string())),
            }
        }
        all.drop_campaigns_without_records();
        Ok(all)
    }

    fn take(&mut self, shown: Shown) {
        let document = match shown {
            Shown::Record(entry) => return drop(self.records.insert(entry.record.id.clone(), *entry)),
            Shown::Document(document) => document,
        };
        let state = document.state;
        match document.document {
            AnyDocument::Campaign(d) => self.campaigns.push(Stated { document: *d, state }),
            AnyDocument::Replay(d) => self.replays.push(Stated { document: *d, state }),
            AnyDocument::Decision(d) => self.decisions.push(Stated { document: *d, state }),
            AnyDocument::Accuracy(d) => self.accuracies.push(Stated { document: *d, state }),
            AnyDocument::Sensitivity(d) => self.sensitivities.push(Stated { document: *d, state }),
            // What an opening says stands in its campaign.
            AnyDocument::Opening(_) => {}
        }
    }

    /// A verdict over a refused record is refused with it.
    fn drop_campaigns_without_records(&mut self) {
        let (records, refused) = (&self.records, &mut self.refused);
        self.campaigns.retain(|c| {
            let named = c.document.body.pairs.iter().flat_map(|p| [&p.baseline.id, &p.candidate.id]);
            match named.into_iter().find(|id| !records.contains_key(*id)) {
                Some(id) => {
                    refused
                        .push((c.document.id.clone(), format!("it rests on {id}, which was refused or is not here")));
                    false
                }
                None => true,
            }
        });
    }

    /// Records that belong to no campaign that is drawn.
    pub(crate) fn alone(&self) -> impl Iterator<Item = (&Record, &State)> {
        let pairs = self.campaigns.iter().flat_map(|c| &c.document.body.pairs);
        let named: BTreeSet<&String> = pairs.flat_map(|p| [&p.baseline.id, &p.candidate.id]).collect();
        self.records.values().filter(move |e| !named.contains(&e.record.id)).map(|e| (&e.record, &e.state))
    }
}

/// The state in words, where it is not `valid`.
pub(crate) fn told(state: &State) -> Option<String> {
    match state {
        State::Valid => None,
        State::Reopened { why } | State::Stale { why } | State::Retracted { why } => {
            Some(format!("{}: {why}", state.name()))
        }
    }
}
