//! The CPU backend: worker pool, kernels and step execution.

pub mod affinity;
pub mod pool;
