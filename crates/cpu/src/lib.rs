//! The CPU backend: worker pool, kernels and step execution.
