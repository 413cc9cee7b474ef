//! Linears in tiles: the conformance table over emulated tiles, and over those of the processor where it has them.

use tare_core::Format;
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::conformance::{Closeness, cases, check_kernels};
use tare_ops::{Isa, OpName, Variant};

/// A backend that has every kernel of tiles, over emulated tiles too.
fn backend(threads: usize) -> CpuBackend {
    CpuBackend::emulating_tiles(CpuConfig { threads, isa: detect_isa(), pin: false }).unwrap()
}

fn in_tiles(v: &Variant) -> bool {
    v.op == OpName::Linear && v.key.contains(".tiles.")
}

/// The table over the kernels of tiles of these levels.
fn conforms(threads: usize, wanted: impl Fn(&Variant) -> bool) -> usize {
    let report = check_kernels(&mut backend(threads), &cases(), Closeness::Bitwise, |v| in_tiles(v) && wanted(v));
    assert!(report.differences.is_empty(), "{report}");
    report.compared
}

#[test]
fn emulated_tiles_answer_the_table() {
    for threads in [1, 3] {
        let compared = conforms(threads, |v| v.isa != Isa::Amx);
        // Four cases of five rows and more in each format that has kernels of tiles.
        assert!(compared >= 4 * (Format::ALL.len() - 2), "{compared}");
    }
}
