//! Records, identities, statistics and the ledger that keeps them.
//!
//! This room measures nothing. It holds what was measured, says what may be compared with what, computes every figure
//! that a person is shown, and can tell later whether those figures still follow. It depends on `tare-core` alone, so
//! that an old ledger stays readable; a stranger needs only the JSON schema and Python ([`canonical`]).
//!
//! - [`study`], [`opening`], [`campaign`], [`ruling`]: what was settled before the first sample, and what came of it.
//! - [`replay`], [`sensitivity`], [`decision`], [`accuracy`]: the other documents; [`document`] is their envelope.
//! - [`record`]: one arm of one campaign; [`record::Record::seal`] makes it, times exist only behind a passed gate.
//! - [`identity`], [`compare`], [`sides`]: `work` must be equal, `arm` may vary; refusals name the field.
//! - [`mod@derive`]: the one place where figures come from samples.
//! - [`checks`]: what a gate looks at, and what stands behind a pass.
//! - [`ledger`], [`mod@verify`]: append-only folders, and everything that can be checked about them.
//! - [`present`], [`replicate`]: whether what was written still counts here, and whether it says the same again.
//! - [`stats`]: the one statistics module.

#![forbid(unsafe_code)]

pub mod accuracy;
mod agree;
pub mod campaign;
pub mod canonical;
mod check;
pub mod checks;
pub mod compare;
pub mod decision;
pub mod derive;
pub mod document;
pub mod floor;
pub mod floors;
pub mod gate;
pub mod identity;
pub mod ledger;
mod merge;
pub mod opening;
mod pooled;
pub mod present;
pub mod provenance;
pub mod record;
mod recount;
pub mod replay;
pub mod replicate;
pub mod ruling;
pub mod samples;
mod sat_out;
pub mod schema;
pub mod sensitivity;
pub mod shelf;
pub mod sides;
pub mod state;
pub mod stats;
pub mod study;
mod sums;
mod turns;
mod unique;
pub mod utc;
pub mod verify;

pub use document::{AnyDocument, Document, Kind};
pub use ledger::{Ledger, LedgerError};
pub use merge::Merged;
pub use record::{Draft, Outcome, Record};
pub use sat_out::SatOut;
pub use state::State;
pub use sums::SUMS_FILE;
pub use utc::Utc;
pub use verify::{Strictness, verify};
