//! May two records be compared? The answer names every field that stands in the way.

use crate::canonical;
use crate::identity::{Arm, Work};
use crate::record::{Outcome, Record};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use tare_core::Fault;

/// A field with two values.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Name of the field.
    pub field: String,
    /// Its value on the left, as canonical JSON.
    pub left: String,
    /// Its value on the right, as canonical JSON.
    pub right: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} against {}", self.field, self.left, self.right)
    }
}

/// Two works that are not the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("not the same work: {}; run both arms on one work", list(.differences))]
pub struct WorkMismatch {
    /// Every field that differs, in the order of names.
    pub differences: Vec<Difference>,
}

/// Why the times of two records must not be set against each other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotComparable {
    /// They did different work.
    #[error(transparent)]
    Work(#[from] WorkMismatch),
    /// They come from different campaigns.
    #[error("{0}")]
    Campaign(Fault),
    /// One of them has no timings.
    #[error("{0}")]
    NoTimings(Fault),
    /// A record could not be put into canonical form.
    #[error("{0}")]
    Unreadable(#[from] Fault),
}

/// Whether two works are the same.
///
/// The fields are those of the written form, so that a field added to [`Work`] takes part without being listed here.
///
/// # Errors
/// Every field that differs, with both values.
pub fn same_work(a: &Work, b: &Work) -> Result<(), NotComparable> {
    let differences = differences(a, b)?;
    if differences.is_empty() { Ok(()) } else { Err(WorkMismatch { differences }.into()) }
}

/// The fields in which two works differ.
///
/// # Errors
/// When a work has no JSON form.
pub fn work_differences(a: &Work, b: &Work) -> Result<Vec<Difference>, Fault> {
    differences(a, b)
}

/// The fields in which two arms differ: what a ratio between them has to name.
///
/// # Errors
/// When an arm has no JSON form.
pub fn arm_differences(a: &Arm, b: &Arm) -> Result<Vec<Difference>, Fault> {
    differences(a, b)
}

/// Whether the times of two records may be divided by each other: same work, one campaign, timings on both sides.
///
/// # Errors
/// The first reason why not.
pub fn comparable(a: &Record, b: &Record) -> Result<(), NotComparable> {
    same_work(&a.work, &b.work)?;
    if a.about.campaign != b.about.campaign {
        let fault = Fault::new("about.campaign", format!("`{}`", a.about.campaign), format!("`{}`", b.about.campaign))
            .remedy("times of different campaigns are never divided: run both arms interleaved in one campaign");
        return Err(NotComparable::Campaign(fault));
    }
    for record in [a, b] {
        if let Outcome::Void(_) = record.outcome {
            let fault = Fault::new(&record.id, "a record with timings", "one whose gate failed")
                .remedy("mend the arm and run the campaign again");
            return Err(NotComparable::NoTimings(fault));
        }
    }
    Ok(())
}

fn differences<T: Serialize>(a: &T, b: &T) -> Result<Vec<Difference>, Fault> {
    let (a, b) = (fields(a)?, fields(b)?);
    let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let shown = |side: &Map<String, Value>, name: &str| side.get(name).map_or("absent".into(), canonical::text);
    let differing = names.into_iter().filter_map(|name| {
        let (left, right) = (shown(&a, name), shown(&b, name));
        (left != right).then(|| Difference { field: name.clone(), left, right })
    });
    Ok(differing.collect())
}

fn fields<T: Serialize>(value: &T) -> Result<Map<String, Value>, Fault> {
    match canonical::value_of(value)? {
        Value::Object(map) => Ok(map),
        other => Err(Fault::new("identity", "an object", canonical::text(&other))),
    }
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
