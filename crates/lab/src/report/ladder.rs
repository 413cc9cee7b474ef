//! A campaign as a ladder of ratios.

use std::collections::BTreeMap;
use tare_core::Reading;
use tare_core::units::human_bytes;
use tare_evidence::campaign::{Campaign, CampaignOutcome, Pair, PairRole};
use tare_evidence::identity::Peer;
use tare_evidence::ledger::Entry;
use tare_evidence::ruling::{ArmRuling, Ruled};
use tare_evidence::stats::Verdict;
use tare_evidence::study::{A_A, Design, Metric};
use tare_evidence::{Record, State};

use super::floors::floor_lines;
use super::gathered::{Stated, told};
use super::page::{figure, paragraph};
use super::ratios::{Ratios, Row, Shown, legend};
use super::svg::escape;

/// The campaign's section: its picture where it has verdicts, else why it has none.
pub(crate) fn section(campaign: &Stated<Campaign>, records: &BTreeMap<String, Entry>) -> String {
    let Stated { document, state } = campaign;
    let body = &document.body;
    let mut html = String::new();
    let state = told(state);
    if let Some(state) = &state {
        html.push_str(&paragraph("alarm", &format!("This campaign is {state}.")));
    }
    let title = title(body, records);
    match &body.outcome {
        CampaignOutcome::Unruled { why } => {
            html.push_str(&format!("<h3>{}</h3>\n", escape(&title)));
            html.push_str(&paragraph("alarm", &format!("No verdict: {why}.")));
        }
        CampaignOutcome::Ruled(_) if state.as_deref().is_some_and(|s| s.starts_with("retracted")) => {
            html.push_str(&format!("<h3>{}</h3>\n", escape(&title)));
            html.push_str(&paragraph("quiet", "What was retracted is not drawn."));
        }
        CampaignOutcome::Ruled(ruled) => {
            let ratios = Ratios {
                id: format!("c-{}", document.id),
                title: title.clone(),
                axis: format!(
                    "{} of {} / {} of the arm: to the right is faster",
                    metric(body.study.metric),
                    body.study.baseline,
                    metric(body.study.metric)
                ),
                band: ruled.a_a.detectable.available().copied(),
                rows: rows(body, ruled, records),
            };
            html.push_str(&figure(&title, &ratios.draw(), &caption(&document.id, body)));
        }
    }
    if !state.as_deref().is_some_and(|s| s.starts_with("retracted")) {
        let lines = body.floors.iter().flat_map(floor_lines);
        lines.for_each(|line| html.push_str(&paragraph("quiet", &line)));
    }
    html
}

fn metric(metric: Metric) -> &'static str {
    match metric {
        Metric::Prefill => "prefill time",
        Metric::Decode => "decode time",
        Metric::InterToken => "time between tokens",
        Metric::EndToEnd => "end-to-end time",
        Metric::Ttft => "time to the first token",
    }
}

/// What was compared, on which work; classes, files and heads by name where arms differ in them.
fn title(c: &Campaign, records: &BTreeMap<String, Entry>) -> String {
    let across = across(c, records);
    let across =
        if across.is_empty() { String::new() } else { format!("; across representations: {}", across.join(", ")) };
    format!(
        "{}: {} against {} on {}, {}{across}",
        c.study.name,
        metric(c.study.metric),
        c.study.baseline,
        c.study.work.model,
        c.study.work.lengths()
    )
}

/// Each arm with its class, file and head format, when they are not all the same.
fn across(c: &Campaign, records: &BTreeMap<String, Entry>) -> Vec<String> {
    let of = |id: &str| records.get(id).map(|e| &e.record.arm);
    let arms = c.pairs.first().map(|p| (c.study.baseline.as_str(), p.baseline.id.as_str())).into_iter();
    let arms = arms.chain(c.pairs.iter().map(|p| (p.arm.as_str(), p.candidate.id.as_str())));
    let all: Vec<(&str, [&str; 3])> = arms
        .filter_map(|(label, id)| of(id).map(|a| (label, [a.class.as_str(), &a.file_format, &a.head_format])))
        .collect();
    match all.first() {
        Some((_, first)) if all.iter().any(|(_, format)| format != first) => {
            let arm =
                |(label, [class, file, head]): &(&str, [&str; 3])| format!("{label} {class} ({file}, head {head})");
            all.iter().filter(|(label, _)| *label != A_A).map(arm).collect()
        }
        _ => Vec::new(),
    }
}

fn rows(c: &Campaign, ruled: &Ruled, records: &BTreeMap<String, Entry>) -> Vec<Row> {
    let record = |id: &str| records.get(id).map(|e| (&e.record, told(&e.state)));
    let retracted = |id: &str| {
        let state = records.get(id).map(|e| &e.state).filter(|s| matches!(s, State::Retracted { .. }));
        state.map(|_| Shown::Words(format!("not drawn: record {id} was retracted")))
    };
    let mut rows = Vec::new();
    for (i, pair) in c.pairs.iter().enumerate() {
        // In a duet every arm has met a baseline of its own.
        let duet = c.study.design == Design::Duet;
        if i == 0 || duet {
            let label =
                if duet { format!("{} beside {}", c.study.baseline, pair.arm) } else { c.study.baseline.clone() };
            let shown = retracted(&pair.baseline.id).unwrap_or(Shown::Denominator);
            rows.push(row(&label, record(&pair.baseline.id), shown, String::new()));
        }
        let (shown, verdict) = match retracted(&pair.candidate.id).or_else(|| retracted(&pair.baseline.id)) {
            Some(words) => (words, String::new()),
            None => shown(pair, ruled),
        };
        rows.push(row(&pair.arm, record(&pair.candidate.id), shown, verdict));
    }
    rows
}

fn shown(pair: &Pair, ruled: &Ruled) -> (Shown, String) {
    let ratios = |logs: &[f64]| logs.iter().map(|l| l.exp()).collect::<Vec<f64>>();
    if let Some(other) = &pair.identical_to {
        return (Shown::Words(format!("kernels of {other}: drawn once")), String::new());
    }
    if pair.role == PairRole::AA {
        let detectable = match &ruled.a_a.detectable {
            Reading::Available(d) => format!("equal arms: up to {:.2} % apart", 100.0 * d.exp_m1()),
            Reading::Unavailable { why } => format!("no detectable effect: {why}"),
        };
        let (ratio, samples) = (ruled.a_a.effect().exp(), ratios(&ruled.a_a.log_ratios));
        return (Shown::Ratio { ratio, interval: None, samples }, detectable);
    }
    match ruled.rulings.iter().find(|r| r.arm == pair.arm) {
        None => (Shown::Words("no ruling".to_string()), String::new()),
        Some(r) => {
            let interval = r.interval.available().map(|i| (i.low.exp(), i.high.exp()));
            (Shown::Ratio { ratio: r.effect.exp(), interval, samples: ratios(&r.log_ratios) }, verdict(r))
        }
    }
}

fn verdict(r: &ArmRuling) -> String {
    let word = match r.verdict {
        Verdict::Keep => "keep".to_string(),
        Verdict::Reject => "reject".to_string(),
        Verdict::Inconclusive { needs_rounds } => format!("inconclusive, needs {needs_rounds} rounds"),
    };
    format!("{word}, p {:.3} adjusted {:.3}", r.p, r.p_adjusted)
}

/// How another engine was set up: a ratio to one that nobody tuned says so beside it.
fn set_up(peer: &Peer) -> String {
    let tuned = match peer.settings["tuned"]["sha256"].as_str() {
        Some(digest) => format!("tuned here ({})", digest.get(..12).unwrap_or(digest)),
        None => "NOT TUNED: its own defaults".to_string(),
    };
    let without = peer.settings["without"].as_array().into_iter().flatten().filter_map(|w| w.as_str());
    let without: String = without.map(|w| format!("; without {w}")).collect();
    format!("{} {}, {tuned}{without}", peer.name, peer.version)
}

fn row(label: &str, record: Option<(&Record, Option<String>)>, shown: Shown, verdict: String) -> Row {
    let Some((record, state)) = record else {
        return Row { label: label.into(), about: String::new(), shown, verdict, facts: Vec::new() };
    };
    let arm = &record.arm;
    let streamed = match &arm.streamed_bytes_per_token {
        Reading::Available(bytes) => format!("{} a token", human_bytes(*bytes)),
        Reading::Unavailable { why } => format!("bytes unknown: {why}"),
    };
    let about = match &state {
        Some(state) => format!("{} - {state}", arm.class),
        None => format!("{}, {streamed}", arm.class),
    };
    let mut facts = super::records::facts(record);
    facts.insert(0, ("class", format!("{} ({}, head {})", arm.class, arm.file_format, arm.head_format)));
    facts.insert(1, ("streams", streamed));
    if let Some(peer) = &arm.peer {
        facts.push(("another engine", set_up(peer)));
    }
    facts.push(("state", state.unwrap_or_else(|| "valid".to_string())));
    facts.push(("record", record.id.clone()));
    Row { label: label.into(), about, shown, verdict, facts }
}

fn caption(id: &str, c: &Campaign) -> String {
    let mut said = format!(
        "{}. Evidence <span class=\"id\">{}</span>; {} design, {} rounds, ",
        legend(),
        escape(id),
        c.study.design.name(),
        c.rounds.len()
    );
    said.push_str(&match c.attempts.len() {
        1 => "one attempt".to_string(),
        n => format!("{n} attempts, all pooled"),
    });
    let drift = c
        .control
        .iter()
        .filter_map(|control| control.drift.available())
        .map(|d| format!("{:+.2} %", 100.0 * d.exp_m1()));
    let drift: Vec<String> = drift.collect();
    if !drift.is_empty() {
        said.push_str(&format!("; the baseline alone changed by {} from start to end", drift.join(", ")));
    }
    said.push_str(&format!(". Question: {} Falsifier: {}", escape(&c.study.question), escape(&c.study.falsifier)));
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Committed records of two classes, standing in for the arms of a campaign.
    fn records() -> (BTreeMap<String, Entry>, [String; 2]) {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/amd-epyc-2t");
        let all = tare_evidence::Ledger::at(root).list().unwrap();
        let of = |class: &str| all.iter().find(|e| e.record.arm.class == class).unwrap().clone();
        let two = [of("w4a16"), of("bf16")];
        let ids = two.clone().map(|e| e.record.id);
        (two.into_iter().map(|e| (e.record.id.clone(), e)).collect(), ids)
    }

    fn campaign(outcome: Value) -> (Stated<Campaign>, BTreeMap<String, Entry>) {
        let (records, [base, other]) = records();
        let record = records[&base].record.clone();
        let reference = |id: &str| json!({ "id": id, "sha256": "0" });
        let pair = |arm: &str, role: &str, id: &str| json!({ "arm": arm, "role": role, "baseline": reference(&base), "candidate": reference(id) });
        let mut same = pair("same", "candidate", &base);
        same["identical_to"] = json!("base");
        let study = json!({
            "name": "ladder", "question": "Which?", "hypothesis": "h", "falsifier": "None gains.", "under_study": ["class"],
            "design": "duet", "metric": "decode", "rounds": 6, "rounds_by": "fixed", "rule": "gain", "alpha": 0.05,
            "worthwhile": 0.01, "tolerance": 0.01, "baseline": "base", "warmups": 1, "turn_tokens": 8, "role": "screening",
            "work": { "model": "the-model", "prompt_tokens": 128, "output_tokens": 65, "depth": 0, "seed": 0, "prefill_logits": "last" },
            "arms": [{ "label": "base", "what": {} }, { "label": "other", "what": {} }, { "label": "same", "what": {} }],
        });
        let body = json!({
            "openings": [], "study": study, "attempts": [], "rounds": [], "control": [], "outcome": outcome,
            "pairs": [pair("a-a", "a_a", &base), pair("other", "candidate", &other), same],
        });
        let document = json!({
            "schema_version": 1, "kind": "campaign", "id": "the-campaign", "about": record.about,
            "provenance": record.provenance, "state": "valid", "body": body,
        });
        (Stated { document: serde_json::from_value(document).unwrap(), state: State::Valid }, records)
    }

    fn ruled() -> Value {
        let logs = [0.40, 0.41, 0.39, 0.40, 0.42, 0.40];
        json!({ "ruled": {
            "a_a": { "log_ratios": [0.001, -0.002, 0.0, 0.003, -0.001, 0.002], "spread": 0.002, "detectable": 0.004 },
            "rulings": [{ "arm": "other", "log_ratios": logs, "end_to_end_log_ratios": logs, "effect": 0.4033,
                "interval": { "low": 0.39, "high": 0.42 }, "end_to_end_interval": { "low": 0.39, "high": 0.42 },
                "p": 0.03, "p_adjusted": 0.03, "verdict": "keep" }],
        } })
    }

    #[test]
    fn a_ratio_across_classes_names_both_in_its_title() {
        let (campaign, records) = campaign(ruled());
        let html = section(&campaign, &records);
        let heading = html.split("<h3>").nth(1).unwrap().split("</h3>").next().unwrap();
        for part in ["decode time against base", "base w4a16", "other bf16", "head"] {
            assert!(heading.contains(part), "{part}: {heading}");
        }
        assert_eq!(html.matches("<circle class=\"sample").count(), 12, "six of the twin and six of the arm");
        assert!(html.contains("class=\"band\"") && html.contains("drawn once") && html.contains("the-campaign"));
        for id in records.keys() {
            assert!(html.contains(id.as_str()), "{id}");
        }
        assert!(html.contains("a token") && html.contains("passed"), "streamed bytes and gates stand beside the arms");
        assert!(
            html.contains("base beside a-a") && html.contains("base beside other"),
            "each met a baseline of its own"
        );
    }

    #[test]
    fn a_title_says_how_many_sequences_ran_together() {
        let heading = |sequences: u32| {
            let (mut campaign, records) = campaign(ruled());
            campaign.document.body.study.work.sequences = sequences;
            let html = section(&campaign, &records);
            html.split("<h3>").nth(1).unwrap().split("</h3>").next().unwrap().to_string()
        };
        assert!(heading(8).contains("on the-model, 8 sequences of 128 in, 65 out, depth 0"), "{}", heading(8));
        assert!(heading(1).contains("on the-model, 128 in, 65 out, depth 0"), "{}", heading(1));
    }

    #[test]
    fn a_state_is_told_and_what_was_retracted_is_not_drawn() {
        let (mut campaign, records) = campaign(ruled());
        campaign.state = State::Stale { why: "a new kernel".into() };
        let html = section(&campaign, &records);
        assert!(html.contains("stale: a new kernel") && html.contains("<svg"));
        campaign.state = State::Retracted { why: "a wrong model".into() };
        let html = section(&campaign, &records);
        assert!(html.contains("retracted: a wrong model") && !html.contains("<svg"));
    }

    #[test]
    fn a_ratio_over_a_retracted_record_is_not_drawn() {
        let samples = |retract: &dyn Fn(&str, &str) -> bool| {
            let (campaign, mut records) = campaign(ruled());
            let other = campaign.document.body.pairs[1].candidate.id.clone();
            for (id, entry) in &mut records {
                if retract(id, &other) {
                    entry.state = State::Retracted { why: "a wrong clock".into() };
                }
            }
            let html = section(&campaign, &records);
            assert!(html.contains("retracted: a wrong clock"), "it is told");
            html.matches("<circle class=\"sample").count()
        };
        assert_eq!(samples(&|id, other| id == other), 6, "the twin's are left");
        assert_eq!(samples(&|id, other| id != other), 0, "every ratio rests on the baseline");
    }

    #[test]
    fn a_peer_says_how_it_was_set_up() {
        let (campaign, mut records) = campaign(ruled());
        let id = &campaign.document.body.pairs[1].candidate.id;
        let mut said = |settings: Value| {
            let peer = Peer { name: "engine".into(), version: "7".into(), settings };
            records.get_mut(id).unwrap().record.arm.peer = Some(peer);
            section(&campaign, &records)
        };
        assert!(said(json!({ "tuned": null })).contains("engine 7, NOT TUNED"));
        let html = said(json!({ "tuned": { "sha256": "abcdef0123456789" }, "without": ["OpenMP"] }));
        assert!(html.contains("tuned here (abcdef012345)") && html.contains("without OpenMP"), "{html}");
    }

    #[test]
    fn what_the_ceiling_arm_measured_stands_beside_the_ratios() {
        let (mut campaign, records) = campaign(ruled());
        let phase = json!({ "bytes_per_s": 12.3e9, "flops_per_s": 1e9, "percent_of_floor": 61.5 });
        let floors = json!({
            "ceilings": [{
                "arm": "top", "name": "memory-read", "resource": "bytes", "threads": 2, "working_set_bytes": 2_147_483_648_u64,
                "samples": 36, "median_per_s": 20e9, "min_per_s": 19e9, "max_per_s": 21e9,
            }],
            "arms": [{ "arm": "llama.cpp", "record": "x", "prefill": phase, "decode": phase }],
        });
        campaign.document.body.floors = Some(serde_json::from_value(floors).unwrap());
        let html = section(&campaign, &records);
        assert!(
            html.contains("top: 20.0 GB/s (19.0 GB/s to 21.0 GB/s, 36 samples) over 2.00 GiB, 2 threads"),
            "{html}"
        );
        assert!(html.contains("llama.cpp: prefill 12.3 GB/s, 61.5 % of floor"), "{html}");
    }

    #[test]
    fn a_campaign_without_a_verdict_says_why() {
        let (campaign, records) = campaign(json!({ "unruled": { "why": "a child was lost" } }));
        let html = section(&campaign, &records);
        assert!(html.contains("No verdict: a child was lost") && !html.contains("<svg"));
    }
}
