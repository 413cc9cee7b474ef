//! An HTTP measurement on a terminal.

use tare_core::Reading;
use tare_core::units::human_ns;
use tare_evidence::derive::{Percentiles, Spread};
use tare_lab::http_clock::{Figures, HttpClock, Overhead, Round};

use super::{AtDepth, failed, notes};
use crate::commands::clock::gate_lines;

/// Prints everything that was measured.
pub(super) fn print(url: &str, clock: &HttpClock, depths: &[AtDepth], overhead: &Overhead) {
    println!("{} at {url}, {}", clock.model, clock.endpoint().path());
    for d in depths {
        let w = &d.work;
        println!("depth {}: {} in, {} out, {} rounds", w.depth, d.requests[0].prompt.len(), w.max_tokens, w.rounds);
        match &d.gate {
            Reading::Available(report) => gate_lines(report, !failed(&d.gate)),
            Reading::Unavailable { why } => println!("  gate     unavailable: {why}"),
        }
        if let Some(f) = Figures::of(&d.rounds).filter(|_| !failed(&d.gate)) {
            figures(&f, &d.rounds);
        }
        for note in notes(clock, d) {
            println!("  note     {note}");
        }
    }
    let made: Vec<String> = clock.connections_ns().iter().map(|&ns| human_ns(ns)).collect();
    println!("  connect  {} (in no figure but the first warm-up's)", made.join(", "));
    let ns = |v: f64| human_ns(v as u64);
    println!(
        "  client   {} of every TTFT, {} of a chunk's time (p99 {}): {}",
        ns(overhead.ttft_ns),
        ns(overhead.chunk_p50_ns),
        ns(overhead.chunk_p99_ns),
        overhead.how
    );
}

fn figures(f: &Figures, rounds: &[Round]) {
    println!("  TTFT     {}", spread_ms(&f.ttft_ns));
    println!("  prompt   {}", rate(&f.prompt_rate_tokens_per_s));
    match (&f.decode_rate_at_least_tokens_per_s, &f.decode_rate_at_most_tokens_per_s) {
        (least, most) if least == most => println!("  decode   {}", rate(least)),
        (least, most) => {
            println!("  decode   at least {}", rate(least));
            println!("           at most  {}", rate(most));
        }
    }
    println!("  between chunks  {}", percentiles_ms(&f.between_chunks_ns));
    println!("  between tokens  {}", percentiles_ms(&f.inter_token_ns));
    println!("  whole    {}", spread_ms(&f.end_to_end_ns));
    if let Some(first) = rounds.first() {
        let shown = |r: &Reading<u64>| match r {
            Reading::Available(n) => n.to_string(),
            Reading::Unavailable { why } => format!("unknown ({why})"),
        };
        let template = match &first.template_tokens {
            Reading::Available(n) => format!("{n} beyond the ids sent"),
            Reading::Unavailable { why } => format!("unknown beyond what was sent ({why})"),
        };
        println!(
            "  counts   {} tokens in {} chunks; prompt {}, {template}",
            shown(&first.tokens),
            first.chunks,
            shown(&first.prompt_tokens)
        );
    }
}

fn spread_ms(s: &Spread) -> String {
    format!("{:.2} ms ({:.2} to {:.2})", s.median / 1e6, s.min / 1e6, s.max / 1e6)
}

fn rate(reading: &Reading<Spread>) -> String {
    match reading {
        Reading::Available(s) => format!("{:.1} tok/s ({:.1} to {:.1})", s.median, s.min, s.max),
        Reading::Unavailable { why } => format!("unavailable: {why}"),
    }
}

fn percentiles_ms(reading: &Reading<Percentiles>) -> String {
    match reading {
        Reading::Available(p) => {
            let ms = |ns: f64| format!("{:.2}", ns / 1e6);
            format!("p50 {}  p90 {}  p99 {}  max {} ms", ms(p.p50), ms(p.p90), ms(p.p99), ms(p.max))
        }
        Reading::Unavailable { why } => format!("unavailable: {why}"),
    }
}
