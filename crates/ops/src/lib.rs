//! Operator contracts, the F32 reference of each operator and the conformance table.
//!
//! This crate says *what* a step of the model is: the operators ([`Op`]), the list of them that makes one step
//! ([`ForwardPlan`]), the rows that travel through it ([`Batch`]), what comes back ([`StepOutput`]), and what a device
//! must offer to run it ([`Backend`]). It also holds the judge: a scalar F32 implementation of every operator
//! ([`reference`]).

#![forbid(unsafe_code)]

pub mod apart;
pub mod backend;
pub mod batch;
pub mod check;
pub mod class;
pub mod conformance;
pub mod exact;
mod hand_on;
pub mod isa;
pub mod op;
pub mod plan;
pub mod reference;
pub mod sampling;
pub mod variant;

pub use apart::{Launched, Left};
pub use backend::{Backend, BackendInfo, Benched, Executable, KvId, KvSpan, OpError};
pub use batch::{Batch, Row, RowOutput, StepOutput, Table, TokenSource, Wants};
pub use check::{BatchCheck, PoolInfo};
pub use class::{Class, Order, Rounding};
pub use isa::{Isa, IsaSet};
pub use op::{BufId, Op, OpName, WeightId};
pub use plan::{Bucket, Buffer, ForwardPlan, HeadCalls, KvShape, OpCall, RopeStyle, RopeTable, RowSpace, WeightInfo};
pub use reference::ReferenceBackend;
pub use sampling::{SampleOrder, Sampler, SamplingParams};
pub use variant::{Cost, Fit, OpShape, Slack, Variant};
