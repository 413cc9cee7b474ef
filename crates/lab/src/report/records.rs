//! Records as rows: what was computed, whether it was right, how far it was from its floor.

use tare_core::Reading;
use tare_core::units::{human_bytes, human_ns};
use tare_evidence::derive::{Phase, metric_ns};
use tare_evidence::identity::together_told;
use tare_evidence::samples::TimedRound;
use tare_evidence::study::Metric;
use tare_evidence::{Outcome, Record, State};

use super::gathered::told;
use super::page::{figure, table};
use super::ratios::far_out;
use super::svg::{Anchor, Picture, Scale, short};

const WIDTH: f64 = 860.0;
const PLOT: (f64, f64) = (360.0, 700.0);
const BAR: f64 = 14.0;
const ROW: f64 = 56.0;
const TOP: f64 = 12.0;
const FOOT: f64 = 44.0;

/// Gate, rates and percent of floor of a record.
pub(crate) fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let misses = match &record.outcome {
        Outcome::Timed(_) => "passed".to_string(),
        Outcome::Void(v) => format!("FAILED, {} misses: no times", v.gate.report().misses.len()),
    };
    let mut facts = vec![("gate", misses)];
    let Some(d) = record.derived() else { return facts };
    let rate = |p: &Phase| short(p.rate_tokens_per_s.median) + &together_told(record.work.rows);
    facts.push(("prefill tok/s", rate(&d.prefill)));
    facts.push(("TTFT", human_ns(d.ttft_ns.median as u64)));
    match &d.decode {
        Reading::Available(p) => facts.push(("decode tok/s", rate(p))),
        Reading::Unavailable { why } => facts.push(("decode tok/s", format!("unavailable: {why}"))),
    }
    facts.push((
        "percent of floor",
        format!("prefill {}, decode {}", of_floor(Some(&d.prefill)), of_floor(d.decode.available())),
    ));
    facts
}

fn of_floor(phase: Option<&Phase>) -> String {
    match phase.map(|p| &p.percent_of_floor) {
        Some(Reading::Available(percent)) => format!("{percent:.1} %"),
        Some(Reading::Unavailable { why }) => format!("unavailable ({why})"),
        None => "unavailable".to_string(),
    }
}

/// Rounds whose decode, or prefill where there is none, lies far from the others.
fn far_rounds(record: &Record) -> String {
    let Outcome::Timed(timed) = &record.outcome else { return "no times".to_string() };
    let rounds = &timed.measured.samples.rounds;
    // Decode by the record's own rule, which leaves out the first step after another arm's turn.
    let ns = |r: &TimedRound| metric_ns(r, Metric::Decode).unwrap_or(r.timing.prefill_ns as f64);
    let far = far_out(&rounds.iter().map(ns).collect::<Vec<_>>());
    let numbers: Vec<String> = far.iter().enumerate().filter(|(_, f)| **f).map(|(n, _)| n.to_string()).collect();
    match numbers.len() {
        0 => format!("{}", rounds.len()),
        _ => format!("{}; far out: {}", rounds.len(), numbers.join(", ")),
    }
}

/// The section of records that stand alone: percent of floor as a picture, everything as a table.
pub(crate) fn section(records: &[(&Record, &State)]) -> String {
    let drawn: Vec<&Record> =
        records.iter().filter(|(r, s)| r.passed() && !matches!(s, State::Retracted { .. })).map(|(r, _)| *r).collect();
    let caption = "Lower bars for prefill, upper for decode; 100 is the least time that the measured ceilings allow. More \
                   than 100 means that a ceiling was measured too low or a cache held the weights. Times of different \
                   campaigns are never divided by each other: these bars are each against their own floor.";
    let mut html = String::new();
    if !drawn.is_empty() {
        html.push_str(&figure("Percent of floor, record by record", &floors(&drawn), caption));
    }
    let rows: Vec<Vec<String>> = records.iter().map(|(r, s)| cells(r, s)).collect();
    let head = [
        "record",
        "state",
        "host",
        "work",
        "plan, class",
        "streams",
        "gate",
        "prefill tok/s",
        "decode tok/s",
        "TTFT",
        "percent of floor",
        "rounds",
    ];
    html.push_str(&table("Records outside campaigns", &head, &rows));
    html
}

fn cells(record: &Record, state: &State) -> Vec<String> {
    let facts = facts(record);
    let fact = |name: &str| facts.iter().find(|(n, _)| *n == name).map_or_else(String::new, |(_, v)| v.clone());
    let streams = match &record.arm.streamed_bytes_per_token {
        Reading::Available(bytes) => human_bytes(*bytes),
        Reading::Unavailable { why } => format!("unknown: {why}"),
    };
    vec![
        record.id.clone(),
        told(state).unwrap_or_else(|| "valid".to_string()),
        record.provenance.host.name.clone(),
        work(record),
        format!("{}, {} ({})", record.arm.plan, record.arm.class, record.arm.file_format),
        streams,
        fact("gate"),
        fact("prefill tok/s"),
        fact("decode tok/s"),
        fact("TTFT"),
        fact("percent of floor"),
        far_rounds(record),
    ]
}

fn work(record: &Record) -> String {
    format!("{}: {}", record.work.shape, record.work.lengths())
}

fn floors(records: &[&Record]) -> String {
    let percent = |p: Option<&Phase>| p.and_then(|p| p.percent_of_floor.available().copied());
    let of = |r: &Record| {
        let d = r.derived();
        [percent(d.map(|d| &d.prefill)), percent(d.and_then(|d| d.decode.available()))]
    };
    let highest = records.iter().flat_map(|r| of(r)).flatten().fold(100.0, f64::max);
    let scale = Scale::from_zero(highest, PLOT);
    let bottom = TOP + ROW * records.len() as f64;
    let mut p = Picture::new(WIDTH, bottom + FOOT);
    for tick in scale.ticks() {
        p.line("grid", (scale.at(tick), TOP), (scale.at(tick), bottom));
        p.text("tick", (scale.at(tick), bottom + 16.0), Anchor::Middle, short(tick));
    }
    p.line("one", (scale.at(100.0), TOP), (scale.at(100.0), bottom));
    p.text("axis", ((PLOT.0 + PLOT.1) / 2.0, bottom + 35.0), Anchor::Middle, "percent of floor");
    let mut said = Vec::new();
    for (n, record) in records.iter().enumerate() {
        let top = TOP + ROW * n as f64;
        p.text("label", (PLOT.0 - 14.0, top + 19.0), Anchor::End, work(record));
        let threads = record.arm.threads.available().map_or_else(String::new, |n| format!(", {n} threads"));
        let about = format!("{} {}{threads} on {}", record.arm.plan, record.arm.class, record.provenance.host.name);
        p.text("about", (PLOT.0 - 14.0, top + 32.0), Anchor::End, about);
        p.text("about", (PLOT.0 - 14.0, top + 45.0), Anchor::End, &record.id);
        for (i, (name, value)) in ["decode", "prefill"].into_iter().zip(of(record).into_iter().rev()).enumerate() {
            let y = top + 10.0 + (BAR + 2.0) * i as f64;
            let text = match value {
                Some(v) => {
                    p.bar(
                        ["bar second", "bar first"][i],
                        (PLOT.0, scale.at(v)),
                        (y, BAR),
                        &format!("{name}: {v:.1} %"),
                    );
                    format!("{name} {v:.0} %")
                }
                None => format!("{name}: floor unknown"),
            };
            p.text("about", (PLOT.1 + 14.0, y + 11.0), Anchor::Start, &text);
            said.push(format!("{} {text}", record.id));
        }
    }
    p.finish("floors", "Percent of floor of each record", &format!("{}.", said.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_evidence::Ledger;

    /// A rate of several sequences is no rate of one.
    #[test]
    fn rates_say_how_many_sequences_ran_together() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/intel-xeon-2t");
        let records = Ledger::at(root).list().unwrap().into_iter().map(|e| e.record);
        let eight = records.filter(Record::passed).find(|r| r.work.rows == 8).unwrap();
        let rates = |record: &Record| {
            let said = facts(record).into_iter().filter(|(name, _)| name.ends_with("tok/s"));
            said.map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(rates(&eight).len(), 2);
        assert!(rates(&eight).iter().all(|r| r.ends_with(" of 8 sequences together")), "{:?}", rates(&eight));
        let mut alone = eight.clone();
        alone.work.rows = 1;
        assert!(rates(&alone).iter().all(|r| !r.contains("sequences")), "{:?}", rates(&alone));
    }

    #[test]
    fn a_step_that_counts_in_no_figure_makes_no_round_far() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/amd-epyc-2t");
        let mut record = Ledger::at(root).list().unwrap().into_iter().map(|e| e.record).find(Record::passed).unwrap();
        let Outcome::Timed(timed) = &mut record.outcome else { panic!("a record with times") };
        let rounds = &mut timed.measured.samples.rounds;
        let first = rounds[0].clone();
        rounds.clear();
        for n in 0..6 {
            let mut round = first.clone();
            round.timing.token_ns.iter_mut().for_each(|ns| *ns = 1_000_000 + 1000 * n);
            rounds.push(round);
        }
        rounds[5].timing.token_ns[0] = 900_000_000;
        assert_eq!(far_rounds(&record), "6; far out: 5");
        let Outcome::Timed(timed) = &mut record.outcome else { panic!("a record with times") };
        timed.measured.samples.rounds[5].timing.untimed = vec![0];
        assert_eq!(far_rounds(&record), "6");
    }
}
