//! Records and ledgers seen from outside the crate.

mod again;
mod compare;
mod documents;
mod forged;
mod forged_campaigns;
mod forged_documents;
mod ledger;
mod merging;
mod records;
mod schema;
mod specimen;
mod specimen_campaign;
mod studies;
mod timing;
mod traces;
mod verify;
