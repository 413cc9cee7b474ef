//! `tare doctor`: the host, its ceilings, and what would run on it.

use anyhow::Result;
use serde_json::json;
use tare_core::units::human_bytes;
use tare_engine::Engine;
use tare_probe::ceilings::{Ceilings, Effort, Origin};
use tare_probe::{Host, Quietness};

use crate::args::{DoctorArgs, MEASURED_MODEL};
use crate::settings::Settings;
use crate::setup::{How, cpu_config, open_model};
use crate::weighing::{ceilings, spinner};

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, settings: &Settings) -> Result<()> {
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
    let engine = match args.model.as_deref().or(asks.then_some(MEASURED_MODEL)) {
        Some(name) => {
            let model = open_model(name, settings)?;
            Some(How::of(&args.how, &model, None)?.engine(&model)?)
        }
        None => None,
    };
    if args.json {
        let plans: Option<Vec<_>> = engine.as_ref().map(|e| e.resolved().iter().map(|r| json!({
            "plan": r.plan.name, "class": r.plan.class, "bucket": r.plan.bucket, "digest": r.digest, "choices": r.choices
        })).collect());
        println!(
            "{}",
            json!({ "host": host, "ceilings": stored.ceilings, "quietness": quiet, "isa": cpu.isa,
                    "threads": cpu.threads, "cuda": { "unavailable": "this build has no CUDA backend yet" }, "plans": plans })
        );
        return Ok(());
    }
    print_host(&host, &quiet);
    print_ceilings(&stored.ceilings, &stored.origin);
    let levels: Vec<&str> = cpu.isa.levels().iter().map(|l| l.name()).collect();
    println!("kernels     {} threads, levels {}", cpu.threads, levels.join(" "));
    println!("cuda        unavailable: this build has no CUDA backend yet");
    if let Some(e) = &engine {
        print_plans(e);
    }
    Ok(())
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
    let from = match origin {
        Origin::Kept => "kept from earlier in this boot; --fresh measures again".to_string(),
        Origin::Measured => "measured now and kept for this boot".to_string(),
        Origin::MeasuredNotKept { why } => format!("measured now, not kept: {why}"),
    };
    println!("            ({from})");
}

fn print_plans(engine: &Engine) {
    for r in engine.resolved() {
        let b = r.plan.bucket;
        println!("\nplan {} class {} for up to {} rows ({}...)", r.plan.name, r.plan.class, b.rows, &r.digest[..12]);
        for c in &r.choices {
            println!("  {:>3} x {:12} {}", c.calls.len(), c.op.to_string(), c.chosen);
            if let Some(why) = &c.fallback {
                println!("        a fallback: {why}");
            }
            // Kernels of other formats are no alternatives; --json lists them too.
            let format = |key: &str| key.rsplit_once('.').map(|(rest, _)| rest.to_string());
            for no in c.refused.iter().filter(|no| format(&no.key) == format(&c.chosen)) {
                println!("        not {}: {}", no.key, no.why);
            }
        }
    }
}
