//! Sensitivities as rows: what became of the request when one group was slowed down.

use tare_core::Reading;
use tare_evidence::sensitivity::Sensitivity;
use tare_evidence::{State, stats::Interval};

use super::gathered::{Stated, told};
use super::page::{paragraph, table};
use super::steps::named;

/// The section of all sensitivities; of a retracted one its state alone.
pub(crate) fn section(all: &[Stated<Sensitivity>]) -> String {
    let head = ["sensitivity", "state", "group", "step", "slope", "interval", "rounds", "delays", "replay"];
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let means = "A group was made slower on purpose, and the request was timed. The slope says how many nanoseconds of the \
                 request came with each nanosecond of the group: near 1, a faster group is a faster request.";
    format!("{}{}", paragraph("", means), table("Delays that were planted, and what they cost", &head, &rows))
}

fn row(s: &Stated<Sensitivity>) -> Vec<String> {
    let Sensitivity { measured: m, derived: d } = &s.document.body;
    let state = told(&s.state).unwrap_or_else(|| "valid".to_string());
    let retracted = matches!(s.state, State::Retracted { .. });
    let interval = |i: &Interval| format!("{:.2} to {:.2}", i.low, i.high);
    let (slope, interval) = match (&d.interval, retracted) {
        (_, true) => ("not shown".to_string(), String::new()),
        (Reading::Available(i), _) => (format!("{:.2}", d.slope), interval(i)),
        (Reading::Unavailable { why }, _) => (format!("{:.2}", d.slope), format!("unavailable: {why}")),
    };
    let mut percents: Vec<f64> = m.samples.iter().map(|s| s.percent).collect();
    percents.sort_by(f64::total_cmp);
    percents.dedup();
    let percents: Vec<String> = percents.iter().map(|p| format!("{p} %")).collect();
    vec![
        s.document.id.clone(),
        state,
        m.group.clone(),
        named(&m.step, &s.document.provenance.host.name),
        slope,
        interval,
        d.slopes.len().to_string(),
        percents.join(", "),
        m.replay.clone(),
    ]
}
