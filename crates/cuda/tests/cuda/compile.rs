//! Every kernel compiles for the architectures that are listed and keeps its registers. It needs no GPU: the compiler was
//! fetched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use tare_cuda::nvrtc::Nvrtc;
use tare_cuda::units::Unit;

/// Registers that a thread of a kernel may have, by the beginning of the kernel's name. They decide how many blocks a
/// multiprocessor holds.
const REGISTERS: [(&str, u32); 16] = [
    ("linear_many", 128),
    ("linear_gated", 160),
    ("linear_few", 144),
    ("gemv_16", 226),
    ("gemv_gated_16", 226),
    ("gemv", 128),
    ("tiles_mma", 128),
    ("tiles", 168),
    ("gated", 168),
    ("attention_mma", 255),
    ("attention_", 168),
    ("attention", 80),
    ("heads", 64),
    ("ceiling_products", 168),
    ("widen", 56),
    ("", 48),
];

/// Bytes of local memory that are known, by the beginnings of unit and kernel; more is a fault. Attention by warpgroups has a
/// frame of 8 bytes for heads of 64 and of 128 alike, though a thread holds half as much of a head of 64: no spill.
const LOCAL: [(&str, &str, u32); 1] = [("attention_wgmma", "attention_wgmma", 8)];

/// What one kernel takes.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    registers: u32,
    /// Bytes of local memory: registers that did not fit.
    spilled: u32,
}

fn asset(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/assets").join(name)
}

/// What `cuobjdump` says of each kernel in a cubin.
fn usages(unit: &Unit, arch: &str, cubin: &[u8]) -> BTreeMap<String, Usage> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.{arch}.cubin", unit.name));
    std::fs::write(&file, cubin).unwrap();
    let out = Command::new(asset("cuobjdump")).arg("-res-usage").arg(&file).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    parse(&String::from_utf8_lossy(&out.stdout))
}

fn parse(text: &str) -> BTreeMap<String, Usage> {
    let mut found = BTreeMap::new();
    let mut kernel = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("Function ") {
            kernel = Some(name.trim_end_matches(':').to_string());
        } else if let (Some(_), Some(kernel)) = (line.strip_prefix("REG:"), kernel.take()) {
            let number = |key: &str| -> u32 {
                let value = line.split_whitespace().find_map(|w| w.strip_prefix(key)).unwrap();
                value.parse().unwrap()
            };
            let spilled = number("STACK:") + number("LOCAL:");
            found.insert(kernel, Usage { registers: number("REG:"), spilled });
        }
    }
    found
}

/// What the kernels of a unit take beyond their limits.
fn beyond(nvrtc: &Nvrtc, unit: &Unit, arch: &str) -> Vec<String> {
    let cubin = nvrtc.compile(&unit.name, &unit.text, arch).unwrap_or_else(|e| panic!("{} for {arch}: {e}", unit.name));
    let usages = usages(unit, arch, &cubin);
    assert_eq!(usages.len(), unit.kernels.len(), "{}: {usages:?}", unit.name);
    let over = |kernel: &&&str| {
        let usage = &usages[**kernel];
        let (_, most) = REGISTERS.iter().find(|(start, _)| kernel.starts_with(start)).unwrap();
        let local = LOCAL.iter().find(|(of, start, _)| unit.name.starts_with(of) && kernel.starts_with(start));
        usage.registers > *most || usage.spilled > local.map_or(0, |l| l.2)
    };
    let said = |kernel: &&str| format!("{} {kernel} for {arch}: {:?}", unit.name, usages[*kernel]);
    unit.kernels.iter().filter(over).map(said).collect()
}

fn compiler() -> Nvrtc {
    Nvrtc::at(&asset("libnvrtc.so.13")).unwrap()
}

#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_compiler_takes_every_kernel_within_its_limits() {
    let nvrtc = compiler();
    assert_eq!(nvrtc.version(), (13, 0));
    let beyond: Vec<String> = Unit::all().iter().flat_map(|unit| beyond(&nvrtc, unit, "sm_90a")).collect();
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
    let refused = nvrtc.compile("broken", "extern \"C\" __global__ void f() { g(); }", "sm_90a").unwrap_err();
    assert!(refused.contains("broken.cu") && refused.contains("undefined"), "{refused}");
}

/// What they take differs little from layout to layout: one of plain elements, one of groups, and all without a matrix.
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_compiler_takes_one_kernel_of_each_kind_for_other_architectures() {
    let nvrtc = compiler();
    let layout = |unit: &Unit| unit.name.split_once('.').map_or(String::new(), |(_, layout)| layout.to_string());
    let units: Vec<Unit> =
        Unit::all().into_iter().filter(|u| ["", "bf16", "q4g128b"].contains(&layout(u).as_str())).collect();
    assert_eq!(units.len(), 12 + 6 + 3 * 2 + 1);
    for arch in ["sm_80", "sm_100a"] {
        let others = units.iter().filter(|unit| !unit.hopper);
        let beyond: Vec<String> = others.flat_map(|unit| beyond(&nvrtc, unit, arch)).collect();
        assert!(beyond.is_empty(), "{}", beyond.join("\n"));
    }
}

#[test]
fn resource_lines_are_read() {
    let text =
        "Resource usage:\n Common:\n  GLOBAL:0\n Function a:\n  REG:40 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:96\n";
    assert_eq!(parse(text), BTreeMap::from([("a".to_string(), Usage { registers: 40, spilled: 24 })]));
}
