//! What must hold inside one record, whoever wrote it.

use crate::agree;
use crate::canonical;
use crate::derive::derive;
use crate::identity::Work;
use crate::record::{Outcome, READ_VERSIONS, Record, SCHEMA_VERSION, Timed, record_id};
use crate::recount;
use crate::state::State;
use crate::unique;
use serde::Serialize;
use serde_json::Value;
use tare_core::Fault;

/// Relative difference up to which a written figure follows from the samples.
const FIGURE_TOLERANCE: f64 = 1e-12;

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// When it is no JSON, has a key twice, is of another schema version, or does not have the shape of the schema.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Ok(parse(text)?.0)
    }

    /// Everything that does not hold inside the record: digests, id, counts, figures, and facts that it has twice.
    /// Empty when all is well.
    ///
    /// # Errors
    /// When the record has no JSON form.
    pub fn faults(&self) -> Result<Vec<Fault>, Fault> {
        Ok(faults(self, &canonical::value_of(self)?))
    }
}

/// A record with the JSON that it was read from.
pub(crate) fn parse(text: &str) -> Result<(Record, Value), Fault> {
    let schema_fault = |e: serde_json::Error| {
        Fault::new("record", format!("JSON of record schema {SCHEMA_VERSION}"), e.to_string())
            .remedy("restore the file as it was written")
    };
    let value = unique::parse(text).map_err(schema_fault)?;
    check_version(&value, &READ_VERSIONS)?;
    let record = serde_json::from_str(text).map_err(schema_fault)?;
    Ok((record, value))
}

pub(crate) fn check_version(value: &Value, known: &[u32]) -> Result<(), Fault> {
    let version = value.get("schema_version").unwrap_or(&Value::Null);
    if known.iter().any(|&k| version.as_u64() == Some(u64::from(k))) {
        return Ok(());
    }
    let expected = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    Err(Fault::new("schema_version", expected, canonical::text(version))
        .remedy("read it with the version of tare that wrote it"))
}

/// As [`Record::faults`], against the JSON of the file, where a digit too many for its type would still show.
pub(crate) fn faults(record: &Record, value: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    check_digests(record, value, &mut faults);
    faults.extend(state_fault(&record.state));
    faults.extend(work_faults(&record.work));
    match &record.outcome {
        Outcome::Timed(timed) => check_timed(record, timed, value, &mut faults),
        Outcome::Void(void) => {
            let all = void.samples.warmups.iter().chain(&void.samples.rounds);
            faults.extend(all.filter_map(|e| e.check(&record.work).err()));
        }
    }
    faults.extend(version_faults(record));
    faults.extend(logits_fault(record));
    faults.extend(agree::faults(record));
    faults.extend(recount::faults(record));
    faults
}

fn check_digests(record: &Record, value: &Value, faults: &mut Vec<Fault>) {
    let part = |pointer: &str| canonical::digest(value.pointer(pointer).unwrap_or(&Value::Null));
    let host = &record.provenance.host;
    let mut same = |at: &str, computed: String, written: &str| {
        if computed != written {
            faults.push(
                Fault::new(at, format!("{computed}, computed from the record"), written)
                    .remedy("the record was edited: restore the file as it was written"),
            );
        }
    };
    same("work_sha256", part("/work"), &record.work_sha256);
    same("arm_sha256", part("/arm"), &record.arm_sha256);
    same("plan.sha256", part("/plan/resolved"), &record.plan.sha256);
    same("arm.plan_sha256", record.plan.sha256.clone(), &record.arm.plan_sha256);
    same("arm.binary_sha256", record.provenance.binary_sha256.clone(), &record.arm.binary_sha256);
    same("provenance.host.class_sha256", part("/provenance/host/class"), &host.class_sha256);
    same("id", record_id(record.about.created_at, value), &record.id);
}

/// What a record of version 1 cannot say: a reader of its time would refuse the file.
fn version_faults(record: &Record) -> Vec<Fault> {
    if record.schema_version != 1 {
        return Vec::new();
    }
    let untimed = match &record.outcome {
        Outcome::Timed(t) => t.measured.samples.rounds.iter().any(|r| !r.timing.untimed.is_empty()),
        Outcome::Void(_) => false,
    };
    let arms_of_ceilings = match &record.outcome {
        Outcome::Timed(t) => t.measured.ceilings.iter().any(|c| c.arm.is_some()),
        Outcome::Void(_) => false,
    };
    let newer = [
        ("arm.settings", record.arm.settings.is_some()),
        ("arm.delay", record.arm.delay.is_some()),
        ("method.label", record.method.label.is_some()),
        ("samples: untimed", untimed),
        ("ceilings: arm", arms_of_ceilings),
        ("samples: rows without logits", !agree::all_logits(record)),
    ];
    let fault = |(at, _)| Fault::new(at, "nothing, in a record of version 1", "a value").remedy("write version 2");
    newer.into_iter().filter(|(_, there)| *there).map(fault).collect()
}

/// Only another engine may keep its logits to itself, and behind a failed gate some may have been no numbers.
fn logits_fault(record: &Record) -> Option<Fault> {
    (record.arm.peer.is_none() && record.passed() && !agree::all_logits(record))
        .then(|| Fault::new("samples: logits", "a finite logit for every id", "rows without any"))
}

/// A record is written as valid: whatever is thought of it later is an amendment with a date and a reason.
pub(crate) fn state_fault(state: &State) -> Option<Fault> {
    (*state != State::Valid).then(|| {
        Fault::new("state", "`valid`, as every record is written", format!("`{}`", state.name()))
            .remedy("restore the file as it was written; a later state lies beside it as an amendment")
    })
}

fn work_faults(work: &Work) -> Option<Fault> {
    let rows = work.rows as usize;
    let (prompts, outputs) = (work.prompt_lengths.len(), work.output_lengths.len());
    if rows == 0 || prompts != rows || outputs != rows {
        let found = format!("{rows} rows, {prompts} prompt lengths, {outputs} output lengths");
        return Some(Fault::new("work.rows", "one prompt and one output length for each of at least one row", found));
    }
    let empty = work.prompt_lengths.contains(&0) || work.output_lengths.contains(&0);
    empty.then(|| Fault::new("work", "prompts and outputs of at least one token", "a length of 0"))
}

fn check_timed(record: &Record, timed: &Timed, value: &Value, faults: &mut Vec<Fault>) {
    let samples = &timed.measured.samples;
    faults.extend(samples.warmups.iter().filter_map(|e| e.check(&record.work).err()));
    let derived = derive(&record.work, samples, &timed.measured.ceilings, &timed.measured.demands);
    match derived.and_then(|d| canonical::value_of(&d)) {
        Ok(expected) => compare("derived", &expected, value.get("derived").unwrap_or(&Value::Null), faults),
        Err(fault) => faults.push(fault),
    }
}

/// Names every figure of `written` that is not the one that was derived again.
pub(crate) fn follows<T: Serialize>(at: &str, derived: Result<T, Fault>, written: &T, faults: &mut Vec<Fault>) {
    match derived.and_then(|d| Ok((canonical::value_of(&d)?, canonical::value_of(written)?))) {
        Ok((expected, found)) => compare(at, &expected, &found, faults),
        Err(fault) => faults.push(fault),
    }
}

/// Names every leaf of `found` that does not follow.
fn compare(path: &str, expected: &Value, found: &Value, faults: &mut Vec<Fault>) {
    match (expected, found) {
        (Value::Object(e), Value::Object(f)) => {
            for (key, item) in e {
                compare(&format!("{path}.{key}"), item, f.get(key).unwrap_or(&Value::Null), faults);
            }
            for key in f.keys().filter(|k| !e.contains_key(*k)) {
                faults.push(Fault::new(format!("{path}.{key}"), "no such figure", "one"));
            }
        }
        (Value::Number(e), Value::Number(f)) if close(e.as_f64(), f.as_f64()) => {}
        _ if expected == found => {}
        _ => {
            let shown = |v: &Value| if v.is_object() { "a group of figures".into() } else { canonical::text(v) };
            faults.push(
                Fault::new(path, format!("{}, derived from the samples", shown(expected)), shown(found))
                    .remedy("a sample or this figure was edited: restore the file as it was written"),
            );
        }
    }
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if (a - b).abs() <= FIGURE_TOLERANCE * a.abs().max(b.abs()))
}
