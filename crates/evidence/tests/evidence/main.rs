//! Records and ledgers seen from outside the crate.

mod compare;
mod forged;
mod ledger;
mod records;
mod schema;
mod specimen;
mod traces;
mod verify;
