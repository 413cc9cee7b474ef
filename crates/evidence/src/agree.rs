//! Facts that a record has in two places say the same in both.
//!
//! An arm, a work and a method are short; the plan and the configuration that they sum up are free JSON. Where tare
//! writes a fact into both, a record in which they differ was edited. Another writer leaves the places empty that it
//! does not have, and nothing is asked of an engine that is not tare, whose configuration has its own words.

use crate::floor::Demand;
use crate::identity::{EosRule, Work};
use crate::record::{Method, Outcome, Record};
use crate::samples::Emitted;
use crate::study::Design;
use serde_json::{Value, json};
use tare_core::{Fault, Reading};

/// Everything that the record says in two ways.
pub(crate) fn faults(record: &Record) -> Vec<Fault> {
    let mut faults = round_faults(record);
    faults.extend(method_faults(&record.method));
    faults.extend(untimed_fault(record));
    if record.arm.peer.is_none() {
        faults.extend(named_twice(record));
        faults.extend(context_fault(record));
    }
    faults.extend(kv_fault(record));
    faults
}

/// The warm-ups and the rounds of a record, whether its gate passed or not.
pub(crate) fn emitted(record: &Record) -> (&[Emitted], Vec<&Emitted>) {
    match &record.outcome {
        Outcome::Timed(t) => {
            (&t.measured.samples.warmups, t.measured.samples.rounds.iter().map(|r| &r.emitted).collect())
        }
        Outcome::Void(v) => (&v.samples.warmups, v.samples.rounds.iter().collect()),
    }
}

/// Whether every row has its logits.
pub(crate) fn all_logits(record: &Record) -> bool {
    let (warmups, rounds) = emitted(record);
    warmups.iter().chain(rounds).flat_map(|e| &e.rows).all(|row| row.logits.len() == row.ids.len())
}

/// The plan of the widest bucket: `plan.resolved.widest`, or `plan.resolved` where that is one plan alone. Null for
/// another engine.
pub(crate) fn widest(record: &Record) -> &Value {
    if record.arm.peer.is_some() {
        return &Value::Null;
    }
    let resolved = &record.plan.resolved;
    resolved.get("widest").unwrap_or(resolved)
}

fn contradiction(at: &str, expected: String, found: String) -> Fault {
    Fault::new(at, expected, found).remedy("restore the file as it was written, or mend its writer")
}

fn method_faults(method: &Method) -> Vec<Fault> {
    let planned = method.planned_rounds as usize;
    let empty = method.order.iter().any(|arms| arms.is_empty() || arms.iter().any(String::is_empty));
    let expected = || format!("the arms of each of {planned} rounds, as `method.planned_rounds` says");
    let mut faults = Vec::new();
    if let Some(label) = &method.label
        && !method.order.iter().all(|arms| arms.contains(label))
    {
        faults.push(contradiction("method.label", "a name in every round of `method.order`".into(), label.clone()));
    }
    if method.order.len() != planned {
        faults.push(contradiction("method.order", expected(), format!("{} rounds", method.order.len())));
    }
    if empty {
        faults.push(contradiction(
            "method.order",
            expected(),
            "a round without an arm, or an arm without a name".into(),
        ));
    }
    faults
}

/// Only arms that take turns have tokens that count in no figure.
fn untimed_fault(record: &Record) -> Option<Fault> {
    let Outcome::Timed(timed) = &record.outcome else { return None };
    let scheme = &record.method.scheme;
    let picked = timed.measured.samples.rounds.iter().find(|r| !r.timing.untimed.is_empty())?;
    (scheme != Design::Duet.name()).then(|| {
        let expected = format!("nothing, as `method.scheme` is `{scheme}`");
        contradiction("samples: untimed", expected, format!("{:?}", picked.timing.untimed))
    })
}

fn round_faults(record: &Record) -> Vec<Fault> {
    let (warmups, rounds) = emitted(record);
    let mut faults = Vec::new();
    for (at, numbers) in [
        ("samples.warmups", warmups.iter().map(|e| e.round).collect::<Vec<_>>()),
        ("samples.rounds", rounds.iter().map(|e| e.round).collect()),
    ] {
        if let Some(i) = numbers.iter().enumerate().position(|(i, &n)| n as usize != i) {
            faults.push(contradiction(at, format!("round {i} in place {i}"), format!("round {}", numbers[i])));
        }
    }
    let (planned, ran) = (record.method.planned_rounds as usize, rounds.len());
    if planned != ran {
        faults.push(
            Fault::new("method.planned_rounds", format!("{ran}, the rounds in `samples`"), planned.to_string())
                .remedy("run the missing rounds as a new attempt; rounds are neither dropped nor added"),
        );
    }
    faults
}

/// What a place of the free JSON says about a field, where it says anything.
fn named_twice(record: &Record) -> Vec<Fault> {
    let (arm, config, plan) = (&record.arm, &record.provenance.config, widest(record));
    let (warmups, rounds) = emitted(record);
    let known = |r: &Reading<u32>| r.available().map_or(Value::Null, |n| json!(n));
    // A record that does not say so is from before there was a choice.
    let not_kept = json!(false);
    let pairs = [
        ("arm.plan", json!(arm.plan), "plan.resolved", plan.get("name")),
        ("arm.class", json!(arm.class), "plan.resolved", plan.get("class")),
        ("arm.plan", json!(arm.plan), "provenance.config.plan.name", config.pointer("/plan/name")),
        ("arm.class", json!(arm.class), "provenance.config.class", config.get("class")),
        ("arm.cache", json!(arm.cache), "provenance.config.plan.cache", config.pointer("/plan/cache")),
        ("arm.page_tokens", known(&arm.page_tokens), "provenance.config.plan", config.pointer("/plan/page_tokens")),
        ("arm.threads", known(&arm.threads), "provenance.config.threads", config.get("threads")),
        (
            "arm.settings",
            json!(arm.keeps_workers()),
            "provenance.config.keep_workers",
            config.get("keep_workers").or(Some(&not_kept)),
        ),
        ("samples.rounds", json!(rounds.len()), "provenance.config.rounds", config.get("rounds")),
        ("samples.warmups", json!(warmups.len()), "provenance.config.warmups", config.get("warmups")),
    ];
    let says_other = |said: &Value, value: &Value| !said.is_null() && !value.is_null() && said != value;
    pairs
        .into_iter()
        .filter_map(|(at, value, place, said)| {
            let said = said.filter(|said| says_other(said, &value))?;
            Some(contradiction(at, format!("{said}, as `{place}` says"), value.to_string()))
        })
        .collect()
}

/// Depth, prompt and output of every row fit into the configured context.
fn context_fault(record: &Record) -> Option<Fault> {
    let context = record.provenance.config.get("context")?.as_u64()?;
    let work = &record.work;
    let longest = work
        .prompt_lengths
        .iter()
        .zip(&work.output_lengths)
        .map(|(&p, &o)| u64::from(work.depth) + u64::from(p) + u64::from(o))
        .max()?;
    let at = "work.depth, work.prompt_lengths, work.output_lengths";
    (longest > context).then(|| {
        let expected = format!("at most {context} tokens in all, as `provenance.config.context` says");
        contradiction(at, expected, format!("{longest} tokens"))
    })
}

/// Prefill and decode write the same bytes for a token, and as many as the plan says.
///
/// Of work that may stop early, only the prefill is counted: the steps of its decode differ from round to round.
fn kv_fault(record: &Record) -> Option<Fault> {
    let Outcome::Timed(timed) = &record.outcome else { return None };
    let Work { prompt_lengths, output_lengths, eos, .. } = &record.work;
    let sum = |lengths: &[u32], less: u32| lengths.iter().map(|&n| u128::from(n.saturating_sub(less))).sum::<u128>();
    let (prefilled, decoded) = (sum(prompt_lengths, 0), sum(output_lengths, 1));
    let demands = &timed.measured.demands;
    let written = |d: &Reading<Demand>| d.available().map(|d| u128::from(d.kv_write_bytes));
    let (prefill, decode) = (written(&demands.prefill), written(&demands.decode).filter(|_| *eos == EosRule::Ignore));
    let said = plan_token_bytes(widest(record));
    let at = "demands.kv_write_bytes";
    let phases = [("prefill", prefill, prefilled), ("decode", decode, decoded)];
    let unplanned = phases.into_iter().find_map(|(phase, bytes, tokens)| {
        let (bytes, each) = (bytes?, said?);
        let expected =
            format!("{} in {phase}: {tokens} tokens of {each} bytes, as `plan.resolved` says", each * tokens);
        (bytes != each * tokens).then(|| contradiction(at, expected, bytes.to_string()))
    });
    if unplanned.is_some() {
        return unplanned;
    }
    let (prefill, decode) = (prefill?, decode?);
    (prefill * decoded != decode * prefilled).then(|| {
        let expected = "the same bytes a token in prefill and decode".to_string();
        let found = format!("{prefill} for {prefilled} tokens of prefill, {decode} for {decoded} of decode");
        contradiction(at, expected, found)
    })
}

/// Keys and values of one token over all layers, in bytes: `2 * layers * kv_heads * head_size * bytes of an element`.
fn plan_token_bytes(plan: &Value) -> Option<u128> {
    let kv = plan.get("kv")?;
    let number = |key: &str| kv.get(key)?.as_u64().filter(|&n| n <= u64::from(u32::MAX)).map(u128::from);
    let element = match kv.get("dtype")?.as_str()? {
        "f32" => 4,
        "bf16" => 2,
        _ => return None,
    };
    // Three 32-bit numbers and a factor of 8 stay below 2^99.
    Some(2 * number("layers")? * number("kv_heads")? * number("head_size")? * element)
}
