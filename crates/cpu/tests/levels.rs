//! Every level of this host, forced: what is left of the registry answers the conformance table, and what it falls back to is
//! the best of what is left.

use tare_cpu::{CpuBackend, CpuConfig, detect_isa};
use tare_ops::conformance::{Closeness, cases, check};
use tare_ops::{Backend, Fit};

#[test]
fn every_level_that_is_forced_passes_conformance() {
    for level in detect_isa().levels() {
        let isa = detect_isa().up_to(*level);
        let mut backend =
            CpuBackend::new(CpuConfig { threads: 2, isa: isa.clone(), pin: false, keep_workers: false }).unwrap();
        if !backend.variants().iter().any(|v| v.isa == *level) {
            continue; // No kernel needs it: what is left is that of the level below.
        }
        assert_eq!(backend.describe().isa, isa);
        let report = check(&mut backend, &cases(), Closeness::Bitwise);
        assert!(report.differences.is_empty(), "up to {level}: {report}");
        assert!(report.compared >= cases().len(), "up to {level}: {} of {}", report.compared, cases().len());
        println!("up to {level}: {} pairs of case and kernel, {} cases", report.compared, cases().len());
        for case in cases() {
            let shape = case.shape(case.call);
            let takes = |v: &&tare_ops::Variant| v.op == case.op() && !matches!(v.fit(&shape, &isa), Fit::No { .. });
            let above = backend.variants().iter().filter(takes).find(|v| v.isa > *level);
            assert!(above.is_none(), "up to {level}: {} is offered for {}", above.map_or("", |v| &v.key), case.name);
        }
    }
}
