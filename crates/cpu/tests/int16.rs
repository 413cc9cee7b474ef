//! Linears with activations in 15 bits: every level and thread count gives the bits of `tare_ops::reference::int16`.

use tare_core::{Format, Weight};
use tare_cpu::{CpuConfig, detect_isa};
use tare_formats::codec::dequantize;
use tare_ops::conformance::{Case, cases, run_kernel};
use tare_ops::reference::blocks;
use tare_ops::reference::linear::Epilogue;
use tare_ops::{Backend, BufId, Fit, Isa, Op, OpName, Rounding, WeightId};

/// What the case's call gives, by the stated arithmetic. [T, n]
fn stated(case: &Case) -> Vec<f32> {
    let Op::Linear { x, weight, bias, accumulate, out, .. } = &case.plan.calls[case.call].op else { unreachable!() };
    let weight_of = |id: WeightId| -> &Weight { &case.weights[id.0 as usize] };
    let fed = |id: BufId| {
        let table = case.plan.calls[..case.call].iter().find_map(|c| match c.op {
            Op::Embedding { table, out } if out == id => Some(table),
            _ => None,
        });
        dequantize(weight_of(table.unwrap()))
    };
    let bias = bias.map(|b| dequantize(weight_of(b)));
    let mut y = fed(*out);
    let epilogue = Epilogue { bias: bias.as_deref(), accumulate: *accumulate };
    blocks::linear::<i16>(weight_of(*weight), &fed(*x), epilogue, &mut y);
    y
}

fn rounded_cases() -> impl Iterator<Item = (Case, Format)> {
    let rounding = |c: &Case| match c.plan.calls[c.call].op {
        Op::Linear { rounding, .. } => Some(rounding),
        _ => None,
    };
    let linears = cases().into_iter().filter(move |c| c.op() == OpName::Linear && rounding(c) == Some(Rounding::Bf16));
    linears.filter_map(|c| c.format().map(|f| (c, f)))
}

#[test]
fn every_level_gives_the_stated_bits() {
    let mut compared = 0;
    let levels = [Isa::Avx512Vnni, Isa::Avx2, Isa::NeonDotprod, Isa::Neon, Isa::Portable].map(|level| ("i16", level));
    let levels = levels.into_iter().chain([("i16.tiles", Isa::Amx), ("i16.tiles", Isa::Portable)]);
    for (threads, (word, level)) in levels.flat_map(|level| [(1, level), (3, level)]) {
        let isa = detect_isa();
        if !isa.has(level) {
            continue;
        }
        let mut backend =
            tare_emulated::backend(CpuConfig { threads, isa: isa.clone(), pin: false, keep_workers: false }).unwrap();
        for (case, format) in rounded_cases() {
            let key = format!("linear.{format}.{word}.{level}");
            let Some(v) = backend.variants().iter().find(|v| v.key == key) else {
                assert!(format.value_bits() > 8, "{key} is not there");
                continue;
            };
            if matches!(v.fit(&case.shape(case.call), &isa), Fit::No { .. }) {
                continue;
            }
            let got = run_kernel(&mut backend, &case, &key).unwrap();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert!(bits(&got) == bits(&stated(&case)), "{} on {key}, {threads} threads", case.name);
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared} cases");
}
