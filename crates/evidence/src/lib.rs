//! Records, identities, statistics and the ledger that keeps them.
