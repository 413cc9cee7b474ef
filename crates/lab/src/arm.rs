//! The arm process: one arm, one round, a process of its own.
//!
//! A campaign starts `tare arm` (of the build under test), and the two speak JSON lines. Clocks are read in the arm's
//! process. Its times stay there until the gate has passed on what the very same request emitted; when it fails, ids,
//! logits and misses leave, and no time does.
//!
//! - [`protocol`]: the lines. [`serve`]: the arm's side. [`process`]: the campaign's side.
//! - [`hold`]: what the arm holds: model, engine or peer, gate.

pub mod hold;
pub mod process;
pub mod protocol;
pub mod serve;
mod subject;

pub use hold::Home;
pub use process::ArmProcess;
pub use serve::serve;
