//! Operator contracts, the F32 reference of each operator and the conformance table.
