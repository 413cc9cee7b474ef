//! `tare doctor`: the host, its ceilings, and what would run on it.

mod kernels;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use tare_core::units::human_bytes;
use tare_core::{PageUse, Reading};
use tare_cpu::CpuConfig;
use tare_cuda::device::Device;
use tare_cuda::nvml::{self, DeviceState};
use tare_cuda::units::Unit;
use tare_cuda::{CudaConfig, CudaInfo, Driver, ceilings as device};
use tare_engine::Engine;
use tare_lab::On;
use tare_ops::Isa;
use tare_ops::conformance::{Closeness, cases_of, check};
use tare_probe::ceilings::{Ceilings, Effort, Origin};
use tare_probe::{Host, Quietness};

use crate::args::{DoctorArgs, MEASURED_MODEL};
use crate::progress::{bar, spinner};
use crate::settings::Settings;
use crate::setup::{How, cpu_config, on, open_model};
use crate::weighing::ceilings;

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, settings: &Settings) -> Result<()> {
    if args.kernels {
        return kernels::run(args, settings);
    }
    let host = Host::read();
    let cpu = cpu_config(&args.how)?;
    let stored = if args.fresh {
        let bar = spinner("measuring the ceilings of this host");
        std::fs::remove_file(settings.ceilings()).or_else(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(e),
        })?;
        let fresh = Ceilings::kept_at(&settings.ceilings(), &host, &Effort::FULL);
        bar.finish_and_clear();
        fresh
    } else {
        ceilings(settings, &host)
    };
    let quiet = Quietness::observe(std::time::Duration::from_millis(300));
    // A plan or a class means something for a model only: without one, for the model of `tare next`.
    let asks = args.how.plan.is_some() || args.how.class.is_some() || args.how.context.is_some();
    let (how, engine) = match args.model.as_deref().or(asks.then_some(MEASURED_MODEL)) {
        Some(name) => {
            let model = open_model(name, settings)?;
            let how = How::of(&args.how, &model, None, settings)?;
            let engine = how.engine(&model)?;
            (Some(how), Some(engine))
        }
        None => (None, None),
    };
    let cuda = tare_cuda::probe(0);
    let state = cuda.available().map(|_| nvml::state(0));
    let device = match on(&args.how, settings) {
        On::Cpu => None,
        On::Cuda(config) => Some(Reading::from(device::measure(&config))),
    };
    let conformance = args.conformance.then(|| hold(&on(&args.how, settings), &cpu)).transpose()?;
    if args.json {
        let plans: Option<Vec<_>> = engine.as_ref().map(|e| e.resolved().iter().map(|r| json!({
            "plan": r.plan.name, "class": r.plan.class, "bucket": r.plan.bucket, "digest": r.digest, "choices": r.choices
        })).collect());
        println!(
            "{}",
            json!({ "host": host, "ceilings": stored.ceilings, "quietness": quiet, "isa": cpu.isa,
                    "threads": cpu.threads, "cuda": cuda, "cuda_state": state, "cuda_ceilings": device, "plans": plans,
                    "pages": engine.as_ref().map(Engine::pages), "benched": engine.as_ref().map(Engine::benched), "conformance": conformance,
                    "deterministic": how.as_ref().map(|h| json!({ "class": h.class.name, "holds": h.class.depends_on().is_none(),
                                                                  "depends_on": h.class.depends_on() })),
                    "states": how.as_ref().map(|h| &h.plan.states) })
        );
        return refuse_differences(conformance.as_ref());
    }
    print_host(&host, &quiet);
    print_ceilings(&stored.ceilings, &stored.origin);
    let levels: Vec<&str> = cpu.isa.levels().iter().map(|l| l.name()).collect();
    println!("kernels     {} threads, levels {}", cpu.threads, levels.join(" "));
    print_cuda(&cuda);
    state.iter().for_each(print_state);
    device.iter().for_each(print_device);
    conformance.iter().for_each(print_conformance);
    if let (Some(e), Some(how)) = (&engine, &how) {
        print_pages(&e.pages());
        print_statements(how);
        print_plans(e);
    }
    refuse_differences(conformance.as_ref())
}

/// What a backend made of the conformance table.
#[derive(Debug, Serialize)]
struct Conformance {
    /// `cpu` or `cuda`.
    backend: String,
    /// Pairs of case and kernel.
    compared: usize,
    /// Those that do not give the bits of the reference.
    differences: Vec<String>,
}

/// Runs the conformance table; on a device launch by launch, so that an error names its kernel.
fn hold(on: &On, cpu: &CpuConfig) -> Result<Conformance> {
    if let On::Cuda(config) = on {
        compile(config)?;
    }
    let bar = spinner("holding every kernel against the reference");
    let mut backend = match on {
        On::Cpu => On::Cpu.backend(cpu)?,
        On::Cuda(config) => On::Cuda(CudaConfig { stepwise: true, ..config.clone() }).backend(cpu)?,
    };
    let cases = cases_of(&*backend);
    let report = check(&mut *backend, &cases, Closeness::Bitwise);
    bar.finish_and_clear();
    let differences = report.differences.iter().map(|d| format!("{} on {}: {}", d.case, d.kernel, d.what)).collect();
    Ok(Conformance { backend: backend.describe().name, compared: report.compared, differences })
}

/// Compiles every kernel of a device that is not kept yet, several at a time, and tells what the compiler had to say.
fn compile(config: &CudaConfig) -> Result<()> {
    let driver = Driver::open(config.clone())?;
    let hopper = driver.isa().has(Isa::Hopper);
    let units: Vec<Unit> = Unit::all().into_iter().filter(|unit| hopper || !unit.hopper).collect();
    let missing = driver.cubins().missing(&units);
    let bar = bar(missing.len() as u64, "{spinner} compiling {msg:34} {bar:30} {pos} of {len}, {elapsed}")?;
    let threads = std::thread::available_parallelism()?.get();
    driver.cubins().prepare(&missing, threads, &|done, unit| {
        bar.set_position(done as u64);
        bar.set_message(unit.name.clone());
    })?;
    bar.finish_and_clear();
    for (unit, said) in driver.cubins().said(&units) {
        eprintln!("the compiler says of {unit}: {said}");
    }
    Ok(())
}

fn print_conformance(c: &Conformance) {
    let right = c.compared.saturating_sub(c.differences.len());
    println!("conformance {}: {right} of {} bit for bit the reference", c.backend, c.compared);
    c.differences.iter().for_each(|d| println!("            {d}"));
}

fn refuse_differences(held: Option<&Conformance>) -> Result<()> {
    let different = held.map_or(0, |c| c.differences.len());
    if different == 0 { Ok(()) } else { bail!("{different} kernels do not give the bits of the reference") }
}

fn print_device(ceilings: &Reading<device::Ceilings>) {
    match ceilings {
        Reading::Available(c) => {
            let rate = |samples: &[device::Sample]| Reading::from(device::Ceilings::rate(samples).ok_or("no sample"));
            let read = rate(&c.read).map(|r| format!("{:.0} GB/s", r / 1e9));
            let flops = rate(&c.flops).map(|r| format!("{:.1} TFLOP/s", r / 1e12));
            let products = match c.products() {
                Reading::Available(samples) => rate(samples).map(|r| format!("{:.1} TFLOP/s", r / 1e12)),
                Reading::Unavailable { why } => Reading::unavailable(why),
            };
            println!("            reads {read}, multiply-adds in F32 {flops}, products of BF16 {products}");
        }
        Reading::Unavailable { why } => println!("            ceilings unavailable: {why}"),
    }
}

fn print_state(state: &Reading<DeviceState>) {
    match state {
        Reading::Available(s) => {
            let mhz = |r: &Reading<u64>| r.clone().map(|hz| format!("{} MHz", hz / 1_000_000));
            let watts = |r: &Reading<u64>| r.clone().map(|mw| format!("{:.0} W", mw as f64 / 1e3));
            let reasons = s.throttle_reasons.clone().map(|all| all.join(", "));
            println!(
                "            multiprocessors at {} of {}, memory at {}",
                mhz(&s.sm_hz),
                mhz(&s.most_sm_hz),
                mhz(&s.memory_hz)
            );
            println!(
                "            {} of {}, {} °C, slowed by: {reasons}",
                watts(&s.milliwatts),
                watts(&s.most_milliwatts),
                s.celsius
            );
        }
        Reading::Unavailable { why } => println!("            clocks and power unavailable: {why}"),
    }
}

fn print_cuda(cuda: &Reading<CudaInfo>) {
    match cuda {
        Reading::Available(c) => println!(
            "cuda        {}, {}, {} multiprocessors, {}, driver for CUDA {}, compiler {}",
            c.name,
            c.arch,
            c.multiprocessors,
            human_bytes(c.memory_bytes),
            c.driver,
            c.nvrtc
        ),
        Reading::Unavailable { why } => println!("cuda        unavailable: {why}"),
    }
}

fn print_host(host: &Host, quiet: &Quietness) {
    println!("processor   {}", host.cpu.model_name);
    println!("system      {} {}, kernel {}", host.os, host.arch, host.kernel);
    let hypervisor = host.hypervisor.clone().map(|h| h.unwrap_or_else(|| "none".into()));
    println!("hypervisor  {hypervisor}");
    println!("threads     {} usable, {} online", host.usable_threads, host.cpu.threads_online);
    println!("features    {}", host.features.names().join(" "));
    println!(
        "memory      {}, {} available",
        host.memory.total_bytes.clone().map(human_bytes),
        host.memory.available_bytes.clone().map(human_bytes)
    );
    println!("huge pages  {}", host.memory.transparent_huge_pages);
    println!(
        "quietness   {:.1} % of a spin loop lost, stolen {}",
        quiet.spin.lost_share * 100.0,
        quiet.steal_share.clone().map(|s| format!("{:.1} %", s * 100.0))
    );
}

fn print_ceilings(c: &Ceilings, origin: &Origin) {
    let bytes = |r: &tare_core::Reading<u64>| r.clone().map(|v| format!("{:.1} GB/s", v as f64 / 1e9));
    let flops = |r: &tare_core::Reading<u64>| r.clone().map(|v| format!("{:.1} GFLOP/s", v as f64 / 1e9));
    let ops = |r: &tare_core::Reading<u64>| r.clone().map(|v| format!("{:.1} GOP/s", v as f64 / 1e9));
    println!(
        "read        {} one thread, {} all {}",
        bytes(&c.readings.read_1t_bytes_per_s),
        bytes(&c.readings.read_all_bytes_per_s),
        c.threads
    );
    println!(
        "fma f32     {} one thread, {} all {}",
        flops(&c.readings.fma_f32_1t_flop_per_s),
        flops(&c.readings.fma_f32_all_flop_per_s),
        c.threads
    );
    let tiles = c.readings.tiles_all_flop_per_s.available().is_some();
    match (&c.readings.dot_int8_1t_op_per_s, &c.readings.dot_int8_all_op_per_s) {
        (Reading::Unavailable { why }, _) => println!("dot int8    unavailable: {why}"),
        (one, all) => {
            let how = if tiles { ", taken as twice the tiles" } else { "" };
            println!("dot int8    {} one thread, {} all {}{how}", ops(one), ops(all), c.threads);
        }
    }
    match (&c.readings.tiles_1t_flop_per_s, &c.readings.tiles_all_flop_per_s) {
        (Reading::Unavailable { why }, _) => println!("tiles bf16  unavailable: {why}"),
        (one, all) => println!(
            "tiles bf16  {} one thread, {} all {} out of L2, {} between registers",
            flops(one),
            flops(all),
            c.threads,
            flops(&c.readings.tile_registers_all_flop_per_s)
        ),
    }
    let from = match origin {
        Origin::Kept => "kept from earlier in this boot; --fresh measures again".to_string(),
        Origin::Measured => "measured now and kept for this boot".to_string(),
        Origin::MeasuredNotKept { why } => format!("measured now, not kept: {why}"),
    };
    println!("            ({from})");
}

/// How much of each kind of memory lies in huge pages; what was never touched lies nowhere yet.
fn print_pages(pages: &Reading<BTreeMap<String, PageUse>>) {
    match pages {
        Reading::Available(all) => {
            for (what, p) in all {
                let [huge, here, all] = [p.huge_bytes, p.resident_bytes, p.bytes].map(human_bytes);
                println!("pages       {what}: {all}, {here} resident, {huge} of it in huge pages");
            }
        }
        Reading::Unavailable { why } => println!("pages       unavailable: {why}"),
    }
}

/// What the plan claims, and on what an answer may depend in the class.
fn print_statements(how: &How) {
    let s = &how.plan.states;
    println!("\nplan {} ({})", how.plan.name, how.plan.rung);
    for (name, text) in [
        ("invariant", &s.invariant),
        ("why faster", &s.why_faster),
        ("wins", &s.wins),
        ("loses", &s.loses),
        ("fallback", &s.fallback),
        ("misleads", &s.misleads),
    ] {
        println!("  {name:11} {}", text.trim());
    }
    match how.class.depends_on() {
        None => println!("class {}: an answer depends on its request alone, to the bit", how.class.name),
        Some(what) => println!(
            "class {}: the last bits of an answer may depend on {what}; class {} depends on the request alone",
            how.class.name,
            tare_model::classes::deterministic(how.class, how.on.name()).name
        ),
    }
}

fn print_plans(engine: &Engine) {
    for r in engine.resolved() {
        let b = r.plan.bucket;
        println!(
            "\nplan {} class {} for up to {} rows, {} of them read ({}...)",
            r.plan.name,
            r.plan.class,
            b.rows,
            b.selected,
            &r.digest[..12]
        );
        for c in &r.choices {
            println!("  {:>3} x {:12} {}", c.calls.len(), c.op.to_string(), c.chosen);
            if let Some(why) = &c.fallback {
                println!("        a fallback: {why}");
            }
            if let Some(id) = &c.guard {
                println!("        a guard of the plan, set by {id}");
            }
            // Kernels of other formats are no alternatives; --json lists them too.
            let format = |key: &str| key.rsplit_once('.').map(|(rest, _)| rest.to_string());
            for no in c.refused.iter().filter(|no| format(&no.key) == format(&c.chosen)) {
                println!("        not {}: {}", no.key, no.why);
            }
        }
    }
}
