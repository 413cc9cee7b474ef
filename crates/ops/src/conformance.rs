//! The conformance table: cases that every kernel of every backend must answer as the reference does.
//!
//! A case is a small [`ForwardPlan`](crate::ForwardPlan) with one call under test, driven through the public calls of
//! [`Backend`](crate::Backend) alone, so that any backend crate, operator replay and operator benchmarks can use the
//! same table:
//!
//! - values enter through F32 embedding tables whose rows *are* the inputs: token `t` brings row `t`;
//! - results leave through `select_rows` and `sample` as logits, and through `read_kv`;
//! - outputs are poisoned with NaN before the call, and so is every cached token that must not be read.
//!
//! A kernel that keeps the reference's order of sums is compared bit for bit. One with an order of its own is compared
//! with the exact result: computed in F64, within limits that follow from the sizes of what is added, so that a term
//! too many or too few is outside of them.
//!
//! ```
//! use tare_ops::{ReferenceBackend, conformance};
//! let rope = |c: &conformance::Case| c.op() == tare_ops::OpName::Rope;
//! let cases: Vec<_> = conformance::cases().into_iter().filter(rope).collect();
//! let report = conformance::check(&mut ReferenceBackend::new(), &cases, conformance::Closeness::Bitwise);
//! assert!(report.differences.is_empty(), "{report}");
//! ```

mod cache;
mod case;
mod exact;
mod judge;
mod matrix;
mod rows;
mod sampling;
mod values;

pub use case::Case;
pub use judge::{Closeness, Difference, Report, check, check_kernels, run, run_kernel};

use tare_core::Format;

use crate::backend::Backend;
use crate::op::OpName;

/// Every case.
pub fn cases() -> Vec<Case> {
    [matrix::cases(), rows::cases(), cache::cases(), sampling::cases()].into_iter().flatten().collect()
}

/// The cases of the arithmetic that `backend` has kernels for: one without kernels for 8-bit activations refuses their
/// classes by name, and has nothing to be tested.
pub fn cases_of(backend: &dyn Backend) -> Vec<Case> {
    cases().into_iter().filter(|c| c.is_offered(backend.variants())).collect()
}

/// Operators, and formats of the operators that read a matrix, that no case tests.
pub fn uncovered(cases: &[Case]) -> Vec<String> {
    let tested = |op: OpName, format: Option<Format>| {
        cases.iter().any(|c| c.op() == op && (format.is_none() || c.format() == format))
    };
    let mut missing = Vec::new();
    for op in OpName::ALL {
        let formats = Format::ALL.into_iter().map(Some).filter(|_| op.reads_matrix());
        for format in formats.chain((!op.reads_matrix()).then_some(None)) {
            if !tested(op, format) {
                missing.push(format.map_or_else(|| op.to_string(), |f| format!("{op}.{f}")));
            }
        }
    }
    missing
}
