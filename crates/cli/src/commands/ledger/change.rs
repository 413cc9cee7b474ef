//! New states: written beside a record or document, which stays as it is.

use anyhow::{Result, ensure};
use tare_evidence::{Ledger, State};
use tare_lab::campaign::live::now;

use crate::args::Change;

/// `tare ledger reopen`
pub(super) fn reopen(ledger: &Ledger, change: &Change) -> Result<()> {
    amend(ledger, change, State::Reopened { why: change.why.clone() })
}

/// `tare ledger stale`
pub(super) fn stale(ledger: &Ledger, change: &Change) -> Result<()> {
    amend(ledger, change, State::Stale { why: change.why.clone() })
}

/// `tare ledger retract`
pub(super) fn retract(ledger: &Ledger, change: &Change) -> Result<()> {
    amend(ledger, change, State::Retracted { why: change.why.clone() })
}

fn amend(ledger: &Ledger, change: &Change, state: State) -> Result<()> {
    ensure!(!change.why.trim().is_empty(), "--why: expected a reason, found none");
    let name = state.name();
    let path = ledger.amend(&change.id, state, now()?)?;
    println!("{}  {name}  {}", change.id, path.display());
    Ok(())
}
