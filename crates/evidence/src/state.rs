//! Whether a record still counts, and how that changes without rewriting it.

use crate::utc::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a record counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// It counts.
    Valid,
    /// It is under question again: a new host, toolchain, shape or gate.
    Reopened {
        /// What changed.
        why: String,
    },
    /// It was right, and something it depends on has moved on.
    Stale {
        /// What moved.
        why: String,
    },
    /// It was wrong.
    Retracted {
        /// What was wrong.
        why: String,
    },
}

impl State {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            State::Valid => "valid",
            State::Reopened { .. } => "reopened",
            State::Stale { .. } => "stale",
            State::Retracted { .. } => "retracted",
        }
    }
}

/// Version of the written form of an amendment.
pub const AMENDMENT_VERSION: u32 = 1;

/// A change of state, kept beside the record that it speaks of: `<id>.state-<number>.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Amendment {
    /// Version of the schema that it was written to.
    pub schema_version: u32,
    /// Id of the record or document.
    pub record: String,
    /// 1 for the first change of that record's state, then 2 and so on.
    pub number: u32,
    /// When it was written.
    pub created_at: Utc,
    /// The new state.
    pub state: State,
}
