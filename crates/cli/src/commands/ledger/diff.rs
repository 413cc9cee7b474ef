//! `tare ledger diff`: two records side by side.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::path::Path;
use tare_evidence::compare::{self, Difference};
use tare_evidence::{Ledger, Record};

/// Shows what differs between the records that `names` name, by id or by file.
pub(super) fn run(ledger: &Ledger, names: (&str, &str), as_json: bool) -> Result<()> {
    let (a, b) = (read(ledger, names.0)?, read(ledger, names.1)?);
    let work = compare::work_differences(&a.work, &b.work)?;
    let arm = compare::arm_differences(&a.arm, &b.arm)?;
    let figures = figures(&a, &b)?;
    let refusal = compare::comparable(&a, &b).err().map(|e| e.to_string());
    if as_json {
        let shown = |d: &[Difference]| -> Value {
            d.iter().map(|d| (d.field.clone(), json!([d.left, d.right]))).collect::<Map<_, _>>().into()
        };
        let figures: Map<_, _> = figures.into_iter().map(|(name, a, b)| (name, json!([a, b]))).collect();
        let (work, arm, comparable) = (shown(&work), shown(&arm), refusal.is_none());
        println!(
            "{}",
            json!({ "work": work, "arm": arm, "figures": figures, "comparable": comparable, "why_not": refusal })
        );
        return refuse(refusal);
    }
    println!("{}  {}\n{}  {}", a.id, a.about.title, b.id, b.about.title);
    for (name, differences) in [("work", &work), ("arm", &arm)] {
        println!("{name}: {}", if differences.is_empty() { "the same" } else { "differs in" });
        for d in differences {
            println!("  {}: {} | {}", d.field, d.left, d.right);
        }
    }
    for (name, left, right) in &figures {
        println!("  {name:36} {left:>16.1} {right:>16.1}");
    }
    if refusal.is_none() {
        println!("the times of these records may be compared");
    }
    refuse(refusal)
}

/// Times that may not be compared are an error, so that a script sees it.
fn refuse(refusal: Option<String>) -> Result<()> {
    match refusal {
        None => Ok(()),
        Some(why) => bail!("the times of these records may not be compared: {why}"),
    }
}

fn read(ledger: &Ledger, name: &str) -> Result<Record> {
    let path = Path::new(name);
    if path.is_file() {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        return Record::parse(&text).with_context(|| name.to_string());
    }
    Ok(ledger.show(name)?.record)
}

/// Medians that both records have, by name.
fn figures(a: &Record, b: &Record) -> Result<Vec<(String, f64, f64)>> {
    let value = |r: &Record| Ok::<Value, anyhow::Error>(serde_json::to_value(r.derived())?);
    let (a, b) = (value(a)?, value(b)?);
    let mut found = Vec::new();
    for name in [
        "/prefill/rate_tokens_per_s/median",
        "/prefill/percent_of_floor",
        "/decode/rate_tokens_per_s/median",
        "/decode/percent_of_floor",
        "/ttft_ns/median",
        "/end_to_end_ns/median",
        "/inter_token_ns/p50",
        "/inter_token_ns/p99",
    ] {
        let at = |v: &Value| v.pointer(name).and_then(Value::as_f64);
        if let (Some(left), Some(right)) = (at(&a), at(&b)) {
            found.push((name.trim_start_matches('/').replace('/', "."), left, right));
        }
    }
    Ok(found)
}
