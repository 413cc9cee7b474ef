//! BF16 in 12 bits: every kernel answers the conformance table, over emulated pairs and tiles, and over those of the processor where
//! it has them.

use tare_core::Format;
use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::conformance::{Closeness, cases, check_kernels};
use tare_ops::{Backend, Isa, OpName, Variant};

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::emulating_tiles(CpuConfig { threads, isa: detect_isa(), pin: false }).unwrap()
}

/// Holds the kernels `word` of some levels against the table; how many cases there were.
fn conforms(threads: usize, word: &str, level: impl Fn(Isa) -> bool) -> usize {
    let wanted = |v: &Variant| v.key.contains(&format!(".lossless.{word}.")) && level(v.isa);
    let report = check_kernels(&mut backend(threads), &cases(), Closeness::Bitwise, wanted);
    assert!(report.differences.is_empty(), "{report}");
    report.compared
}

/// Cases of BF16 in any order, of few rows and of many, at the least.
const CASES: usize = 3;

#[test]
fn emulated_kernels_answer_the_table() {
    for threads in [1, 3] {
        for word in ["pairs", "tiles"] {
            let compared = conforms(threads, word, |isa| isa == Isa::Portable);
            assert!(compared >= CASES, "{word}: {compared} cases");
        }
    }
}

#[test]
#[ignore = "needs a processor with AMX"]
fn amx_kernels_answer_the_table() {
    for threads in [1, 2, 3, 16] {
        for word in ["pairs", "tiles"] {
            let compared = conforms(threads, word, |isa| isa != Isa::Portable);
            assert!(compared >= CASES, "{word}: {compared} cases; AMX is {:?}", tare_probe::amx::usable());
        }
    }
}

#[test]
fn it_stands_behind_every_other_kernel() {
    let backend = backend(1);
    let variants = backend.variants();
    for op in [OpName::Linear, OpName::Embedding] {
        let of_bf16: Vec<&str> =
            variants.iter().filter(|v| v.op == op && v.format == Some(Format::BF16)).map(|v| &*v.key).collect();
        let first = of_bf16.iter().position(|key| key.contains(".lossless.")).unwrap();
        assert!(first > 0 && of_bf16[..first].iter().any(|key| key.contains("portable")), "{of_bf16:?}");
    }
}
