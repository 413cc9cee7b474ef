//! A closed campaign for a person: one row an arm, and what a careful engineer would say about it.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use tare_core::Reading;
use tare_evidence::campaign::{Campaign, CampaignOutcome, PairRole};
use tare_evidence::derive::{Derived, Phase};
use tare_evidence::identity::together_told;
use tare_evidence::ruling::{ArmRuling, Ruled};
use tare_evidence::stats::{Interval, Verdict};
use tare_evidence::study::{Metric, Rule, StudyPlan};
use tare_evidence::{Record, SatOut};
use tare_lab::campaign::Closed;
use tare_lab::report::floor_lines;

/// Prints it.
pub(crate) fn print(closed: &Closed) {
    let campaign = &closed.document.body;
    println!("{}", heading(&campaign.study));
    match &campaign.outcome {
        CampaignOutcome::Unruled { why } => println!("  no verdict: {why}"),
        CampaignOutcome::Ruled(ruled) => {
            println!("{}", table(campaign, ruled, &closed.records));
            for sentence in sentences(campaign, ruled) {
                println!("  {sentence}");
            }
        }
    }
    short_handed(&closed.records).iter().for_each(|line| println!("  {line}"));
    if let Some(floors) = &campaign.floors {
        floor_lines(floors).iter().for_each(|line| println!("  {line}"));
    }
    for c in &campaign.control {
        if let Reading::Available(drift) = &c.drift {
            println!("  the baseline alone was {} after attempt {} than before it", faster(*drift), c.attempt);
        }
    }
    println!("  closing  {}", closed.path.display());
}

/// What was asked, of which work.
fn heading(study: &StudyPlan) -> String {
    format!("{}: {}\n  {}, {}", study.name, study.question, study.work.model, study.work.lengths())
}

/// The unit of the figures: a rate is that of all sequences, a time that of all of them or of a step of theirs.
fn unit(study: &StudyPlan) -> String {
    let unit = if matches!(study.metric, Metric::Prefill | Metric::Decode) { "tok/s" } else { "ms" };
    unit.to_string() + &together_told(study.work.sequences)
}

fn table(campaign: &Campaign, ruled: &Ruled, records: &[Record]) -> Table {
    let metric = campaign.study.metric;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let unit = unit(&campaign.study);
    table.set_header(["arm", unit.as_str(), "beside it", "ratio", "interval", "% of floor", "verdict"]);
    let find = |id: &str| records.iter().find(|r| r.id == id);
    for pair in &campaign.pairs {
        let (Some(baseline), Some(arm)) = (find(&pair.baseline.id), find(&pair.candidate.id)) else { continue };
        let (of_arm, of_baseline) = (figure(arm, metric), figure(baseline, metric));
        let ruling = ruled.rulings.iter().find(|r| r.arm == pair.arm);
        let (ratio, interval, verdict) = match (ruling, pair.role) {
            (Some(r), _) => (r.effect.exp(), percents(&r.interval), word(r.verdict)),
            (None, PairRole::AA) => {
                let mean = ruled.a_a.log_ratios.iter().sum::<f64>() / ruled.a_a.log_ratios.len().max(1) as f64;
                let seen = ruled.a_a.detectable.available().map(|d| format!("±{:.1} %", 100.0 * d.exp_m1()));
                (mean.exp(), seen.unwrap_or_else(|| "unknown".to_string()), "twin".to_string())
            }
            (None, PairRole::Candidate) => {
                let other = pair.identical_to.clone().unwrap_or_default();
                (1.0, "none".to_string(), format!("runs as {other}"))
            }
        };
        table.add_row([
            pair.arm.clone(),
            of_arm.0,
            format!("{} {}", campaign.study.baseline, of_baseline.0),
            format!("{ratio:.3}"),
            interval,
            of_arm.1,
            verdict,
        ]);
    }
    for i in [1, 3, 5] {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The median of a metric and its percent of floor.
fn figure(record: &Record, metric: Metric) -> (String, String) {
    let none = || ("void".to_string(), "void".to_string());
    let Some(d) = record.derived() else { return none() };
    let of = |p: &Phase| {
        let floor = p.percent_of_floor.available().map_or_else(|| "unknown".to_string(), |p| format!("{p:.0}"));
        (format!("{:.2}", p.rate_tokens_per_s.median), floor)
    };
    let whole = |ns: f64| (format!("{:.1}", ns / 1e6), "no floor".to_string());
    // The median step beside the floor of all steps.
    let step = |ns: f64, p: &Phase| (whole(ns).0, of(p).1);
    let Derived { prefill, decode, ttft_ns, end_to_end_ns, inter_token_ns, .. } = d;
    match metric {
        Metric::Prefill => of(prefill),
        Metric::Decode => decode.available().map_or_else(none, of),
        Metric::InterToken => {
            inter_token_ns.available().zip(decode.available()).map_or_else(none, |(p, d)| step(p.p50, d))
        }
        Metric::EndToEnd => whole(end_to_end_ns.median),
        Metric::Ttft => whole(ttft_ns.median),
    }
}

/// Ratios as percents of gain: `+2.1 % to +3.4 %`.
fn percents(interval: &Reading<Interval>) -> String {
    match interval {
        Reading::Available(i) => format!("{:+.1} % to {:+.1} %", 100.0 * i.low.exp_m1(), 100.0 * i.high.exp_m1()),
        Reading::Unavailable { .. } => "too few rounds".to_string(),
    }
}

fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Keep => "keep".to_string(),
        Verdict::Reject => "reject".to_string(),
        Verdict::Inconclusive { needs_rounds } => format!("inconclusive, needs {needs_rounds} rounds"),
    }
}

/// A log-ratio in words: the speed that was gained or lost.
fn faster(log_ratio: f64) -> String {
    let percent = 100.0 * log_ratio.exp_m1();
    format!("{:.1} % {}", percent.abs(), if percent >= 0.0 { "faster" } else { "slower" })
}

/// What may be said.
fn sentences(campaign: &Campaign, ruled: &Ruled) -> Vec<String> {
    let study = &campaign.study;
    let mut out = Vec::new();
    let spread = match &ruled.a_a.spread {
        Reading::Available(s) => format!("{:.2} %", 100.0 * s),
        Reading::Unavailable { why } => format!("unknown ({why})"),
    };
    out.push(match &ruled.a_a.detectable {
        Reading::Available(d) => format!(
            "two runs of the same arm spread by {spread} a sample: in {} rounds this study sees effects of {:.1} % and more",
            study.rounds,
            100.0 * d.exp_m1()
        ),
        Reading::Unavailable { why } => format!("two runs of the same arm spread by {spread} a sample; {why}"),
    });
    out.extend(ruled.rulings.iter().map(|r| sentence(study, r)));
    let same = campaign.pairs.iter().filter_map(|p| Some((p, p.identical_to.as_ref()?)));
    out.extend(
        same.map(|(p, other)| format!("{} dispatches the same kernels as {other}: it is no arm of its own", p.arm)),
    );
    out
}

/// A line for each record whose threads sat out: its times are not those of all its threads.
fn short_handed(records: &[Record]) -> Vec<String> {
    let told = |r: &Record| {
        let sat_out = SatOut::of(&r.provenance.host)?;
        Some(format!("{} ({}): {sat_out}", r.method.label.as_deref().unwrap_or("an arm"), r.id))
    };
    records.iter().filter_map(told).collect()
}

fn sentence(study: &StudyPlan, r: &ArmRuling) -> String {
    let what = study.metric.name().replace('_', " ");
    let level = 100.0 * (1.0 - study.alpha);
    let seen = format!("{} in {what} ({level:.0} % interval {})", faster(r.effect), percents(&r.interval));
    match (r.verdict, study.rule) {
        (Verdict::Keep, Rule::Gain) => format!("keep {}: {seen}, and the whole request is not slower", r.arm),
        (Verdict::Keep, Rule::NoRegression) => format!("{} does not lose: {seen}", r.arm),
        (Verdict::Reject, Rule::Gain) => {
            format!("reject {}: {seen}; no gain worth keeping is left, or the whole loses", r.arm)
        }
        (Verdict::Reject, Rule::NoRegression) => format!("{} loses: {seen}", r.arm),
        (Verdict::Inconclusive { needs_rounds }, _) => {
            format!("{}: {seen}; these rounds do not tell, about {needs_rounds} would at this spread", r.arm)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_evidence::{AnyDocument, Ledger};

    #[test]
    fn verdicts_say_whose_threads_sat_out() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/intel-xeon-2t");
        let mut record = Ledger::at(root).list().unwrap().swap_remove(0).record;
        assert!(short_handed(std::slice::from_ref(&record)).is_empty());
        record.method.label = Some("kept".to_string());
        let told = serde_json::json!([{ "regions": 8, "short": 2, "most": 1 }]);
        record.provenance.host.state.insert("benched_after_requests".to_string(), Reading::Available(told));
        let said = short_handed(&[record]);
        assert!(said[0].starts_with("kept (") && said[0].contains("2 of 8 parallel regions"), "{said:?}");
    }

    /// A committed campaign of several sequences and one of a sequence alone.
    #[test]
    fn a_campaign_says_how_many_sequences_ran_together() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/intel-xeon-2t");
        let documents = Ledger::at(root).documents().unwrap();
        let study = |sequences: u32| {
            let campaigns = documents.iter().filter_map(|e| match &e.document {
                AnyDocument::Campaign(d) => Some(d.body.study.clone()),
                _ => None,
            });
            campaigns.into_iter().find(|s| s.work.sequences == sequences).unwrap()
        };
        let (eight, one) = (study(8), study(1));
        assert!(heading(&eight).contains(", 8 sequences of "), "{}", heading(&eight));
        assert!(unit(&eight).ends_with(" of 8 sequences together"), "{}", unit(&eight));
        assert!(!unit(&one).contains("sequences"), "{}", unit(&one));
        assert!(!heading(&one).contains("sequences of"), "{}", heading(&one));
    }
}
