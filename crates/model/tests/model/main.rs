//! Whole models on the reference backend: golden values, synthetic models, plans.

mod f32_twin;
mod golden;
mod plans;
mod runner;
mod synthetic;
