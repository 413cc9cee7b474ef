//! The laboratory: clocks, gates, floors and the loop that finds the next bottleneck.
//!
//! It drives the same engine that the server drives, through the same calls. Only here and in the command line are
//! concrete backends named: the judge of a measurement is an engine too.
//!
//! - [`clock`], [`engine_runner`], `sequences`: view 1, one request on the clock, or several that run together; [`http_clock`]: the same at a server, as its client
//!   sees it. [`weigh`]: warm-ups, rounds, gate, record.
//! - [`study`], [`campaign`], [`arm`]: questions, the one runner that answers them, and the processes that it runs.
//! - [`gate`], `operators`, [`reference`], [`thresholds`]: whether what was timed is right. [`digests`]: of which file.
//! - [`peers`]: other engines that do the same work. [`accuracy`]: how far all of them stray from F32 on a text.
//! - [`mutation`], [`mutants`]: whether the gate can fail.
//! - [`report`](mod@report): pictures from verified records.
//! - [`replay`]: view 2, a step taken apart into the groups of its plan. [`specimen`], [`groups`], [`tap`],
//!   [`shared`]: what it works on.
//! - [`sensitivity`]: what a group is worth, by time injected into it. [`delay`]: a planted delay that a study must find.
//! - [`ops_study`]: the kernels of one operator against each other, and guards.
//! - [`on`]: which device runs. [`floor`]: what a phase must cost. [`next`]: where the largest gap is.

#![forbid(unsafe_code)]

pub mod accuracy;
pub mod arm;
pub mod build_info;
pub mod campaign;
pub mod clock;
pub mod delay;
pub mod digests;
pub mod engine_runner;
mod error;
pub mod facts;
pub mod floor;
pub mod gate;
pub mod groups;
mod held;
pub mod host;
pub mod http_clock;
pub mod mutants;
pub mod mutation;
pub mod next;
pub mod on;
mod operators;
pub mod ops_study;
pub mod peers;
pub mod reference;
pub mod replay;
pub mod report;
pub mod rig;
pub mod runner;
pub mod sensitivity;
mod sequences;
pub mod shared;
pub mod specimen;
pub mod study;
pub mod tap;
pub mod thresholds;
pub mod weigh;
pub mod work;

pub use build_info::BuildInfo;
pub use delay::Delay;
pub use engine_runner::EngineRunner;
pub use error::LabError;
pub use facts::ArmFacts;
pub use on::On;
pub use reference::ReferenceStore;
pub use rig::{Rig, slow_paths};
pub use runner::Runner;
pub use study::Study;
pub use weigh::{Stage, Weighing};
pub use work::{ClockedRequest, Lengths};
