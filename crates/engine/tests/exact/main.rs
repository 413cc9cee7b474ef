//! Equalities that hold to the last bit in class f32: however KV is stored, prompts are cut, requests are batched,
//! sequences are rewound, resumed, moved or preempted, the logits and tokens are the same.

mod batching;
mod failing;
mod golden;
mod memory;
mod resuming;
mod rig;
mod storing;
