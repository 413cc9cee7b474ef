//! Percents of floor out of the records of a ledger.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tare_core::Reading;
use tare_evidence::derive;
use tare_evidence::identity::Arm;
use tare_evidence::{Ledger, Record, State};
use tare_lab::On;
use tare_model::kernel_matrix::{Cell, Phase};

/// How near a phase came to its floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Floor {
    /// 100 is at the floor.
    pub(super) percent: f64,
    /// Id of the record.
    pub(super) record: String,
    /// The machine.
    pub(super) host: String,
    /// The shapes of the model.
    pub(super) shape: String,
}

impl Floor {
    fn line(&self) -> String {
        format!("{}  {} on {}", self.record, self.shape, self.host)
    }
}

/// Those of a ledger: by kernel of the streamed weights, class and phase the latest valid record.
#[derive(Debug, Default)]
pub(super) struct Floors(BTreeMap<(String, String, Phase), Floor>);

impl Floors {
    /// Those of the records of `on` in the ledger at `path`.
    pub(super) fn read(path: &Path, on: &On) -> Reading<Self> {
        if !path.is_dir() {
            return Reading::unavailable(format!("no ledger at {}: name one with --ledger", path.display()));
        }
        let entries = match Ledger::at(path).list() {
            Ok(entries) => entries,
            Err(e) => return Reading::unavailable(format!("{}: {e}", path.display())),
        };
        let mut floors = Self::default();
        let of_kernels = |arm: &Arm| arm.backend == on.name() && arm.delay.is_none();
        for entry in entries.iter().filter(|e| e.state == State::Valid && of_kernels(&e.record.arm)) {
            floors.add(&entry.record);
        }
        Reading::Available(floors)
    }

    /// What is known of a cell.
    pub(super) fn of(&self, cell: &Cell) -> Option<&Floor> {
        let key = cell.kernel.available()?;
        self.0.get(&(key.clone(), cell.class.to_string(), cell.phase))
    }

    /// The number of the record behind `floor` in [`Floors::records`], from 1.
    pub(super) fn number_of(&self, floor: &Floor) -> Option<usize> {
        self.records().iter().position(|line| *line == floor.line()).map(|at| at + 1)
    }

    /// A line for each record that is used.
    pub(super) fn records(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.0.values().map(Floor::line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    fn add(&mut self, record: &Record) {
        let Some(derived) = record.derived() else { return };
        let decode = derived.decode.available();
        let both = [(Phase::Decode, decode), (Phase::Prefill, Some(&derived.prefill))];
        for (phase, figures) in both {
            let percent = figures.and_then(|f: &derive::Phase| f.percent_of_floor.available());
            let (Some(percent), Some(kernel)) = (percent, streams(record, phase)) else { continue };
            let floor = Floor {
                percent: *percent,
                record: record.id.clone(),
                host: record.provenance.host.name.clone(),
                shape: record.work.shape.clone(),
            };
            self.0.insert((kernel, record.arm.class.clone(), phase), floor);
        }
    }
}

/// The kernel that multiplied with most matrices of the file's format: in the bucket of a decode step for a decode, in the
/// widest for a prefill. None of a peer, which has no plan.
fn streams(record: &Record, phase: Phase) -> Option<String> {
    let buckets = record.plan.resolved.get("buckets")?.as_array()?;
    let bucket = match phase {
        Phase::Decode => buckets.iter().find(|b| b["bucket"]["rows"].as_u64() >= Some(u64::from(record.work.rows)))?,
        _ => buckets.last()?,
    };
    let of_format = format!("linear.{}.", record.arm.file_format);
    let kernels = bucket["kernels"].as_object()?;
    let linears = kernels.iter().filter(|(key, _)| key.starts_with(&of_format));
    linears.max_by_key(|(_, calls)| calls.as_u64().unwrap_or_default()).map(|(key, _): (&String, &Value)| key.clone())
}
