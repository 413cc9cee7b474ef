//! The one campaign runner: a study from its opening to its closing.
//!
//! A *round* runs every arm once, each in a fresh process, after a look at how quiet the host is; arms that measure its
//! ceilings have a turn beside every meeting. Every finished round is in the journal before the next begins, so that Ctrl-C, a lost process or a crash
//! loses one round at most, and another attempt goes on where the last one ended.
//!
//! - [`design`]: which arms meet in which round, in which order. Pure.
//! - [`bench`]: what a campaign needs of the world, as a trait. [`live`]: the world.
//! - [`rounds`]: running them. [`journal`]: keeping them. [`close`], [`documents`]: records, opening and closing.

pub mod bench;
pub mod close;
pub mod design;
pub mod documents;
pub mod journal;
pub mod live;
pub mod rounds;

pub use bench::{Bench, LiveArm};
pub use design::{Meeting, Seating, Seats, Slot};
pub use documents::{Closed, Writer};
pub use journal::Journal;
pub use live::LiveBench;
pub use rounds::{Campaign, Ended, Step};
