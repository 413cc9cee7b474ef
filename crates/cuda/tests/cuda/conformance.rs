//! Every kernel answers the conformance table, bit for bit where it keeps the reference's order of sums: here on an
//! emulated device, and on a real one where there is one.

use crate::emulator::Emulator;
use crate::gpu;
use tare_core::Format;
use tare_cuda::{CudaBackend, Driver};
use tare_ops::conformance::{Case, Closeness, cases, check, uncovered};
use tare_ops::{Backend, OpName};

/// Every case of one operator that this backend has kernels for; of the operators that read a matrix, those of some
/// formats.
fn cases_of(op: OpName, formats: &[Format]) -> Vec<Case> {
    let mine = |c: &Case| c.op() == op && c.format().is_none_or(|f| !op.reads_matrix() || formats.contains(&f));
    let offered = tare_ops::conformance::cases_of(&CudaBackend::new(Emulator::default()));
    offered.into_iter().filter(mine).collect()
}

fn bitwise(backend: &mut dyn Backend, cases: &[Case]) {
    assert!(!cases.is_empty());
    let report = check(backend, cases, Closeness::Bitwise);
    assert!(report.differences.is_empty(), "{report}");
    assert!(report.compared >= cases.len());
}

fn emulated(op: OpName, formats: &[Format]) {
    bitwise(&mut CudaBackend::new(Emulator::default()), &cases_of(op, formats));
}

#[test]
fn plain_matrices_are_bitwise_the_reference() {
    emulated(OpName::Linear, &Format::ALL[..3]);
    emulated(OpName::Embedding, &Format::ALL[..3]);
}

#[test]
fn blocks_of_32_are_bitwise_the_reference() {
    emulated(OpName::Linear, &Format::ALL[3..8]);
    emulated(OpName::Embedding, &Format::ALL[3..8]);
}

#[test]
fn super_blocks_are_bitwise_the_reference() {
    emulated(OpName::Linear, &Format::ALL[8..11]);
    emulated(OpName::Embedding, &Format::ALL[8..11]);
}

#[test]
fn affine_groups_are_bitwise_the_reference() {
    emulated(OpName::Linear, &Format::ALL[11..]);
    emulated(OpName::Embedding, &Format::ALL[11..]);
}

#[test]
fn operators_without_a_matrix_are_bitwise_the_reference() {
    for op in OpName::ALL.into_iter().filter(|op| !op.reads_matrix()) {
        emulated(op, &[]);
    }
    assert_eq!(uncovered(&cases()), Vec::<String>::new());
}

/// A plan's bucket says which kernel of a family runs and how large its grid is: steps may have fewer rows.
#[test]
fn buckets_wider_than_the_step_change_nothing() {
    let mut wide = Vec::new();
    for rows in [2, 8, 16, 40] {
        for op in OpName::ALL {
            let formats = [Format::BF16, Format::Q4_1, Format::ALL[13]];
            wide.extend(cases_of(op, &formats).into_iter().filter(|c| c.plan.bucket.rows < rows).map(|mut c| {
                c.name += &format!("_in_{rows}");
                c.plan.bucket.rows = rows;
                c.plan.bucket.selected = c.plan.bucket.selected.max(rows / 2);
                c
            }));
        }
    }
    bitwise(&mut CudaBackend::new(Emulator::default()), &wide);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_conformance_is_bitwise_the_reference() {
    for stepwise in [true, false] {
        let driver = Driver::open(gpu(stepwise)).unwrap();
        let mut backend = CudaBackend::new(driver);
        let cases = tare_ops::conformance::cases_of(&backend);
        bitwise(&mut backend, &cases);
    }
}
