//! What the pool's protocol is made of, behind names of our own: the tests put a model checker's primitives in their place
//! and compile the same source (see `tests/protocol.rs`).

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
