//! Every kernel compiles for the architectures that are listed, without a word of warning, and keeps its registers. It needs no
//! GPU: the compiler was fetched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use tare_cuda::cubins::Cubins;
use tare_cuda::nvrtc::{Compiled, Nvrtc};
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
/// frame of 8 bytes for heads of 64 and of 128 alike, though a thread holds half as much of a head of 64: no spill. Products of
/// one row have chunks of weights under way and three blocks to fit: a few registers are spilled, fewest on `sm_90a`.
const LOCAL: [(&str, &str, u32); 2] = [("attention_wgmma", "attention_wgmma", 8), ("gemv", "gemv", 80)];

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

/// What the kernels of a unit take beyond their limits, and what the compiler had to say: that it serialises products of
/// warpgroups, for example, which it does without an error.
fn beyond(nvrtc: &Nvrtc, unit: &Unit, arch: &str) -> Vec<String> {
    let compiled = nvrtc.compile(&unit.name, &unit.text, arch);
    let Compiled { cubin, log } = compiled.unwrap_or_else(|e| panic!("{} for {arch}: {e}", unit.name));
    let usages = usages(unit, arch, &cubin);
    assert_eq!(usages.len(), unit.kernels.len(), "{}: {usages:?}", unit.name);
    let over = |kernel: &&&str| {
        let usage = &usages[**kernel];
        let (_, most) = REGISTERS.iter().find(|(start, _)| kernel.starts_with(start)).unwrap();
        let local = LOCAL.iter().find(|(of, start, _)| unit.name.starts_with(of) && kernel.starts_with(start));
        usage.registers > *most || usage.spilled > local.map_or(0, |l| l.2)
    };
    let said = |kernel: &&str| format!("{} {kernel} for {arch}: {:?}", unit.name, usages[*kernel]);
    let warned = (!log.is_empty()).then(|| format!("{} for {arch}: {log}", unit.name));
    unit.kernels.iter().filter(over).map(said).chain(warned).collect()
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

/// The log of a success is kept: products whose sums are touched before they are waited for cost time, not an error.
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_compiler_says_what_it_makes_of_products_that_are_not_waited_for() {
    let unit = Unit::all().into_iter().find(|unit| unit.name == "ceilings_wgmma").unwrap();
    let hasty =
        unit.text.replacen("end_products();\n        //", "end_products();\n        d[0] *= 0.5f;\n        //", 1);
    assert_ne!(hasty, unit.text);
    let log = |text: &str| compiler().compile(&unit.name, text, "sm_90a").unwrap().log;
    assert_eq!(log(&unit.text), "");
    let said = log(&hasty);
    assert!(said.contains("(C75") && said.contains("ceiling_products"), "{said}");
}

/// Threads that compile the same units at once leave whole files and nothing else.
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_compiler_fills_a_folder_on_many_threads() {
    let (nvrtc, folder) = (compiler(), tempfile::tempdir().unwrap());
    let cubins = Cubins { nvrtc: &nvrtc, arch: "sm_90a", folder: Some(folder.path()) };
    let of = |name: &str| Unit::all().into_iter().find(|unit| unit.name == name).unwrap();
    let units = ["rope", "norm", "rope", "delay", "norm", "rope"].map(of);
    assert_eq!(cubins.missing(&units).len(), 3, "each is missing once");
    let told = Mutex::new(Vec::new());
    cubins.prepare(&units, 4, &|done, unit| told.lock().unwrap().push((done, unit.name.clone()))).unwrap();
    let mut counts: Vec<usize> = told.into_inner().unwrap().into_iter().map(|(done, _)| done).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6]);
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(files.len() == 3 && files.iter().all(|f| f.extension().is_some_and(|e| e == "cubin")), "{files:?}");
    assert!(cubins.missing(&units).is_empty());
    let of_all = || units.iter().all(|unit| cubins.of(unit).unwrap().starts_with(b"\x7fELF"));
    assert!(of_all());
    // Files that were cut short, changed and emptied are made anew.
    let spoils: [fn(&mut Vec<u8>); 3] = [|b| b.truncate(b.len() / 2), |b| b[100] ^= 1, |b| b.clear()];
    for (file, spoil) in files.iter().zip(spoils) {
        let mut bytes = std::fs::read(file).unwrap();
        spoil(&mut bytes);
        std::fs::write(file, bytes).unwrap();
    }
    assert_eq!(cubins.missing(&units).len(), 3);
    assert!(of_all() && cubins.missing(&units).is_empty());
    let broken = Unit { text: "extern \"C\" __global__ void f() { g(); }".into(), ..of("rope") };
    let refused = cubins.prepare(&[broken], 2, &|_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("rope") && refused.contains("undefined"), "{refused}");
}

/// What they take differs little from layout to layout: one of plain elements, one of groups, and all without a matrix.
#[test]
#[ignore = "needs fetched assets: cargo xtask fetch"]
fn fetched_compiler_takes_one_kernel_of_each_kind_for_other_architectures() {
    let nvrtc = compiler();
    let layout = |unit: &Unit| unit.name.split_once('.').map_or(String::new(), |(_, layout)| layout.to_string());
    let units: Vec<Unit> =
        Unit::all().into_iter().filter(|u| ["", "bf16", "q4g128b"].contains(&layout(u).as_str())).collect();
    assert_eq!(units.len(), 13 + 6 + 3 * 2 + 1);
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
