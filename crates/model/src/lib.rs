//! One decoder for every dense family: architecture table, weight map, planner, synthetic models.
//!
//! [`Model::open`] takes a file, a folder or a synthetic name and gives weights by [`Role`]; [`PackedModel`] hands them
//! to a [`Backend`](tare_ops::Backend); [`decoder`] writes down the operators of one step; [`planner`] binds each to a
//! kernel of that backend and says why. [`inspect`] is the arithmetic of a model: bytes, operations, context limits.

#![forbid(unsafe_code)]

pub mod arch;
pub mod classes;
pub mod decoder;
pub mod error;
pub mod guard;
pub mod inspect;
pub mod kernel_matrix;
pub mod limits;
pub mod load;
pub mod pack;
pub mod plan_spec;
pub mod planner;
mod plans;
pub mod strategy;
pub mod synthetic;

pub use error::ModelError;
pub use guard::Guard;
pub use load::{Description, Model, TensorInfo};
pub use pack::PackedModel;
pub use plan_spec::{CacheKind, PlanSpec};
pub use planner::{Choice, Resolved, Target, resolve};
pub use strategy::{ByRows, Strategy};
pub use tare_formats::{ModelConfig, Part, Role};
