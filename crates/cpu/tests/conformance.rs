//! Every kernel of every instruction set answers the conformance table bit for bit, on one, two and three threads.

use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::conformance::{Closeness, cases, check};
use tare_ops::{Backend, Fit, Isa, Order, Variant};

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuConfig { threads, isa: detect_isa(), pin: false, keep_workers: false }).unwrap()
}

fn bitwise(threads: usize) {
    let report = check(&mut backend(threads), &cases(), Closeness::Bitwise);
    assert!(report.differences.is_empty(), "{report}");
    assert!(report.compared >= cases().len());
}

#[test]
fn one_thread_is_bitwise_the_reference() {
    bitwise(1);
}

#[test]
fn two_threads_are_bitwise_the_reference() {
    bitwise(2);
}

#[test]
fn three_threads_are_bitwise_the_reference() {
    bitwise(3);
}

#[test]
fn a_level_taken_away_leaves_a_named_fallback() {
    let isa = detect_isa().up_to(Isa::Portable);
    let backend = CpuBackend::new(CpuConfig { threads: 1, isa: isa.clone(), pin: false, keep_workers: false }).unwrap();
    for case in cases() {
        let shape = case.shape(case.call);
        let ordered = |v: &&Variant| v.op == case.op() && v.order == Order::Reference;
        let fits: Vec<Fit> = backend.variants().iter().filter(ordered).map(|v| v.fit(&shape, &isa)).collect();
        let portable = fits.iter().filter(|f| !matches!(f, Fit::No { .. })).count();
        assert_eq!(portable, 1, "{}: one kernel is left, of plain Rust", case.name);
    }
}
