//! Real HTTP over loopback, against the tiny Qwen3 on the reference backend.

mod answers;
mod client;
mod hostile;
mod lifecycle;
mod refusals;
mod rig;
mod streams;
