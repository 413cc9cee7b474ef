//! `tare ledger show`: one record or document, as a page for a person or as its file.

use anyhow::Result;
use tare_core::Reading;
use tare_core::units::human_ns;
use tare_evidence::campaign::{Campaign, CampaignOutcome, Ended};
use tare_evidence::decision::{Decided, Decision};
use tare_evidence::derive::metric_ns;
use tare_evidence::ledger::Shown;
use tare_evidence::opening::Opening;
use tare_evidence::record::Outcome;
use tare_evidence::replay::Replay;
use tare_evidence::ruling::Ruled;
use tare_evidence::sensitivity::Sensitivity;
use tare_evidence::stats::{self, Interval, Verdict};
use tare_evidence::study::{Metric, StudyPlan};
use tare_evidence::{AnyDocument, Ledger, Record};
use tare_lab::report::floor_lines;

use crate::commands::{accuracy, clock};

/// A sample farther than this many median absolute deviations from the median is flagged.
const FLAGGED_MADS: f64 = 5.0;

/// Shows whatever has `id`.
pub(super) fn run(ledger: &Ledger, id: &str, as_json: bool) -> Result<()> {
    let shown = ledger.find(id)?;
    if as_json {
        println!("{}", std::fs::read_to_string(shown.path())?.trim_end());
        return Ok(());
    }
    match &shown {
        Shown::Record(e) => {
            println!("record {}  {}", e.record.id, e.state.name());
            record(&e.record);
        }
        Shown::Document(e) => {
            let d = &e.document;
            println!("{} {}  {}", d.kind().name(), d.id(), e.state.name());
            println!("{}\n  question {}", d.about().title, d.about().question);
            document(d);
            d.about().notes.iter().for_each(|n| println!("  note     {n}"));
            println!("  host     {}, {}", d.provenance().host.name, d.about().created_at);
        }
    }
    println!("  file     {}", shown.path().display());
    Ok(())
}

fn record(record: &Record) {
    clock::print_record(record);
    let arm = &record.arm;
    println!(
        "  arm      plan {}, class {}, threads {}{}, {}, {}",
        arm.plan,
        arm.class,
        arm.threads,
        if arm.keeps_workers() { " (every worker kept in)" } else { "" },
        arm.isa,
        arm.backend
    );
    println!("  host     {}, {}", record.provenance.host.name, record.about.created_at);
    let Outcome::Timed(timed) = &record.outcome else { return };
    for metric in [Metric::Prefill, Metric::Decode] {
        let rounds = &timed.measured.samples.rounds;
        let values: Vec<f64> = rounds.iter().filter_map(|r| metric_ns(r, metric).ok()).collect();
        for i in stats::outliers(&values, FLAGGED_MADS) {
            println!(
                "  outlier  {} of round {i}: {}, more than {FLAGGED_MADS} deviations from the median; it is in every figure",
                metric.name(),
                human_ns(values[i] as u64)
            );
        }
    }
}

fn document(document: &AnyDocument) {
    match document {
        AnyDocument::Opening(d) => opening(&d.body),
        AnyDocument::Campaign(d) => campaign(&d.body),
        AnyDocument::Replay(d) => replay(&d.body),
        AnyDocument::Sensitivity(d) => sensitivity(&d.body),
        AnyDocument::Decision(d) => decision(&d.body),
        AnyDocument::Accuracy(d) => accuracy::print(d),
    }
}

fn study(study: &StudyPlan) {
    println!("  thought  {}\n  unless   {}", study.hypothesis, study.falsifier);
    let labels = study.labels().join(", ");
    let (design, metric) = (study.design.name(), study.metric.name());
    println!("  design   {design}, {} rounds of {labels}; {metric} is compared", study.rounds);
    println!("  work     {}, {}", study.work.model, study.work.lengths());
}

fn opening(opening: &Opening) {
    study(&opening.study);
    println!("  attempt  {}, before its first sample", opening.attempt);
}

fn campaign(campaign: &Campaign) {
    study(&campaign.study);
    for a in &campaign.attempts {
        let ended = match &a.ended {
            Ended::Complete => "complete".to_string(),
            Ended::Interrupted => "interrupted".to_string(),
            Ended::Lost { why } => format!("lost: {why}"),
        };
        println!("  attempt  {}: {} rounds, {ended}, {} to {}", a.number, a.rounds, a.opened_at, a.ended_at);
    }
    for c in &campaign.control {
        let drift = c.drift.clone().map(|d| format!("{} from start to end", percent(d)));
        println!("  control  attempt {}: {drift}", c.attempt);
    }
    for p in &campaign.pairs {
        let same = p.identical_to.as_ref().map_or(String::new(), |to| format!(", runs what `{to}` runs"));
        println!("  pair     {}: {} against {}{same}", p.arm, p.candidate.id, p.baseline.id);
    }
    match &campaign.outcome {
        CampaignOutcome::Ruled(r) => ruled(r),
        CampaignOutcome::Unruled { why } => println!("  unruled  {why}"),
    }
    for line in campaign.floors.iter().flat_map(floor_lines) {
        println!("  floor    {line}");
    }
}

fn ruled(ruled: &Ruled) {
    let detectable = ruled.a_a.detectable.clone().map(percent);
    println!("  A/A      detectable effect {detectable}, spread {}", ruled.a_a.spread.clone().map(percent));
    flagged("a-a", &ruled.a_a.log_ratios);
    for r in &ruled.rulings {
        let between = |i: &Reading<Interval>| i.clone().map(|i| format!("{} to {}", percent(i.low), percent(i.high)));
        let verdict = match r.verdict {
            Verdict::Inconclusive { needs_rounds } => format!("inconclusive: needs about {needs_rounds} rounds"),
            other => Decided::from(other).name().to_string(),
        };
        println!("  {:8} {verdict}: {} ({}), p {:.4}", r.arm, percent(r.effect), between(&r.interval), r.p_adjusted);
        println!("           end to end {}", between(&r.end_to_end_interval));
        flagged(&r.arm, &r.log_ratios);
    }
}

fn flagged(arm: &str, log_ratios: &[f64]) {
    for i in stats::outliers(log_ratios, FLAGGED_MADS) {
        println!("  outlier  {arm}, sample {i}: {}; it is in every figure", percent(log_ratios[i]));
    }
}

/// A log-ratio as a change in percent.
fn percent(log_ratio: f64) -> String {
    format!("{:+.2} %", 100.0 * log_ratio.exp_m1())
}

fn replay(replay: &Replay) {
    let (m, d) = (&replay.measured, &replay.derived);
    println!("  step     {}, plan {}, class {}, depth {}", m.step.model, m.step.plan, m.step.class, m.step.depth);
    for (g, f) in m.groups.iter().zip(&d.groups) {
        let floor = f.percent_of_floor.clone().map(|p| format!("{p:.1} % of floor"));
        let time = human_ns(f.ns.median as u64);
        println!("  {:16} {:4} calls  {time:>10}  {:5.1} %  {floor}", g.name, g.calls, f.share_percent);
    }
    let (sum, step) = (human_ns(d.sum_ns as u64), human_ns(d.step_ns.median as u64));
    println!("  sum      {sum} of a step of {step}; remainder {:.1} %: {}", d.remainder_percent, m.remainder_is);
    let complete = if m.coverage.complete { "complete" } else { "incomplete" };
    println!("  coverage {complete}: {}", m.coverage.reason);
}

fn sensitivity(sensitivity: &Sensitivity) {
    let (m, d) = (&sensitivity.measured, &sensitivity.derived);
    let interval = d.interval.clone().map(|i| format!("{:.2} to {:.2}", i.low, i.high));
    println!("  group    {}, as {} has it", m.group, m.replay);
    println!("  slope    {:.2} ns of the request for each ns of the group ({interval})", d.slope);
}

fn decision(decision: &Decision) {
    println!("  verdict  {}", decision.verdict.name());
    for (name, text) in [
        ("dominant", &decision.dominant_group),
        ("because", &decision.mechanism),
        ("thought", &decision.hypothesis),
        ("unless", &decision.falsifier),
        ("observed", &decision.observed_effect),
        ("next", &decision.next_experiment),
    ] {
        println!("  {name:8} {text}");
    }
    println!("  support  {}", decision.support.join(", "));
    if let Some(r) = &decision.rests_on {
        println!("  rests on {}, arm {}", r.campaign, r.arm);
    }
}
