//! Steps taken apart on real engines: replay, sensitivity, the ranking, operators alone.

mod failing;
mod next;
mod ops;
mod replay;
mod scene;
#[path = "../../../cpu/tests/witness/mod.rs"]
mod witness;
