//! Records and ledgers seen from outside the crate.

mod compare;
mod documents;
mod forged;
mod ledger;
mod records;
mod schema;
mod specimen;
mod specimen_campaign;
mod traces;
mod verify;
