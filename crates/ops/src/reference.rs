//! The judge: every operator in scalar F32, one file each.
//!
//! These functions do not only say *what* is computed but also *in which order*, so that kernels for any instruction
//! set can give the same bits:
//!
//! - a dot product or a sum runs in 16 lanes ([`lanes`]): one AVX-512 register, two of AVX2, four of NEON;
//! - products are fused (`f32::mul_add`), each step rounded once;
//! - activations in integers are multiplied exactly, and added up over groups in one order ([`blocks`]);
//! - a row's result depends on that row alone: never on the batch, the tile, the page layout or the thread count;
//! - `exp` is a polynomial of this crate ([`exp`](mod@exp)), made of elementwise IEEE operations, not the platform's.
//!
//! What is left open is speed: these functions have none. [`ReferenceBackend`] runs whole plans with them.

pub mod attention;
pub mod backend;
pub mod blocks;
pub mod embedding;
pub mod exp;
mod filter;
pub mod head_norm;
pub mod int16;
pub mod int8;
pub mod kv;
pub mod lanes;
pub mod linear;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod select;
mod step;
pub mod swiglu;
mod variants;

pub use backend::ReferenceBackend;
