//! `tare inspect`: what a model is, what a token costs, how long a context may be.

use anyhow::{Context, Result};
use tare_core::Reading;
use tare_core::units::{grouped, human_bytes};
use tare_model::inspect::{Inspect, Question};
use tare_model::limits::Memory;
use tare_probe::Host;

use crate::args::InspectArgs;
use crate::settings::Settings;
use crate::setup::open_model;

const GIB: f64 = (1u64 << 30) as f64;

/// Runs the command.
pub(crate) fn run(args: &InspectArgs, settings: &Settings) -> Result<()> {
    // The command line demands one of the two.
    let name = args.model.as_ref().or(args.named.as_ref()).context("expected a model, found none: name one")?;
    let model = open_model(name, settings)?;
    let (usable_bytes, source) = match args.memory_gib {
        Some(g) => (Reading::Available((g * GIB) as u64), "--memory-gib"),
        None => (Host::read().memory.available_bytes, "the host (MemAvailable)"),
    };
    let memory = Memory { usable_bytes, source: source.into(), reserve_bytes: (args.reserve_gib * GIB) as u64 };
    let question = Question { class: args.class.as_deref(), configured: args.context.map(|c| c as u64), memory };
    let inspect = Inspect::of(&model, &question)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&inspect)?);
    } else {
        print(&inspect, args.tensors);
    }
    Ok(())
}

fn print(i: &Inspect, tensors: bool) {
    let m = &i.model;
    println!("{}  ({}, {}, mostly {})", m.spec, m.kind, m.arch, m.format);
    let s = &i.shape;
    println!("layers      {} of width {}, ffn {}", s.layers, s.hidden, s.ffn);
    println!(
        "attention   {} heads, {} kv heads, of {}{}",
        s.heads,
        s.kv_heads,
        s.head_size,
        if s.qk_norm { ", QK-norm" } else { "" }
    );
    println!(
        "vocabulary  {}, head {} in {}",
        grouped(s.vocab as u64),
        if s.tied_head { "tied to the embedding" } else { "of its own" },
        i.head_format
    );
    println!("rope        theta {}, scaling {}", s.rope_theta, s.rope_scaling);
    println!("weights     {} in {}", grouped(i.parameters), human_bytes(m.bytes));
    for f in &i.formats {
        println!(
            "            {:>4} tensors {:8} {:>14} weights, {:>10}, {:.4} bits each",
            f.tensors,
            f.format.to_string(),
            grouped(f.weights),
            human_bytes(f.bytes),
            f.bits_per_weight
        );
    }
    let t = &i.token;
    println!("a token     {} streamed weights, {:.3} GFLOP", grouped(t.streamed_weights), t.flops as f64 / 1e9);
    println!(
        "            {:.3} GB in this file ({:.4} bits a weight), {:.3} GB in BF16",
        t.streamed_bytes as f64 / 1e9,
        t.bits_per_weight,
        t.streamed_bytes_bf16 as f64 / 1e9
    );
    println!("            {} bytes of KV in class {}", grouped(t.kv_bytes), i.class);
    for c in &i.classes {
        let note = if c.default { " (default on a processor)" } else { "" };
        match &c.kv_bytes_per_token {
            Reading::Available(kv) => println!(
                "class       {:6} yes{note}: {}; {} bytes of KV a token",
                c.class,
                c.summary,
                grouped(*kv as u64)
            ),
            Reading::Unavailable { why } => println!("class       {:6} no: {why}", c.class),
        }
    }
    println!("context     {}", i.context.arithmetic);
    for term in &i.context.terms {
        println!("            {:10} {}  from {}", term.name, term.tokens.clone().map(grouped), term.source);
    }
    for missing in &i.missing {
        println!("missing     {}: {}", missing.what, missing.consequence);
    }
    for name in &i.ignored {
        println!("ignored     {name}");
    }
    if tensors {
        for t in &i.tensors {
            println!("  {:44} {:8} [{}, {}] {}", t.name, t.format.to_string(), t.rows, t.cols, human_bytes(t.bytes));
        }
    }
}
