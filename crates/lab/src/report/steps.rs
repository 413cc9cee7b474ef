//! Replays of a step, the first and the last of the same step side by side.

use std::collections::BTreeMap;
use tare_core::Reading;
use tare_evidence::State;
use tare_evidence::replay::{Replay, ReplayedStep, StepPhase};

use super::gathered::{Stated, told};
use super::page::{figure, paragraph};
use super::shares::{Group, Shares, Side};
use super::svg::escape;

/// The section of all replays that were not retracted.
pub(crate) fn section(replays: &[Stated<Replay>]) -> String {
    let mut html = String::new();
    let mut steps: BTreeMap<String, Vec<&Stated<Replay>>> = BTreeMap::new();
    for replay in replays {
        if let Some(state) = told(&replay.state) {
            html.push_str(&paragraph("alarm", &format!("Replay {} is {state}.", replay.document.id)));
        }
        if !matches!(replay.state, State::Retracted { .. }) {
            let (host, step) = (&replay.document.provenance.host.name, &replay.document.body.measured.step);
            steps.entry(named(step, host)).or_default().push(replay);
        }
    }
    for (title, of_step) in steps {
        html.push_str(&draw(&title, &of_step));
    }
    html
}

/// A step and its host in words: what must be the same for two replays to stand side by side.
pub(crate) fn named(s: &ReplayedStep, host: &str) -> String {
    let phase = match s.phase {
        StepPhase::Prefill => format!("a prefill step of {} rows", s.rows),
        StepPhase::Decode => "a decode step".to_string(),
    };
    format!("{phase} of {} at depth {}, class {}, {} threads, on {host}", s.model, s.depth, s.class, s.threads)
}

fn draw(title: &str, replays: &[&Stated<Replay>]) -> String {
    let (first, last) = (replays[0], replays[replays.len() - 1]);
    let sides = match replays.len() {
        1 => vec![side("", first)],
        _ => vec![side("before", first), side("after", last)],
    };
    let shares =
        Shares { id: format!("s-{}", first.document.id), title: format!("Where {title} spends its time"), sides };
    let mut caption = String::new();
    for replay in [first, last].into_iter().take(replays.len().min(2)) {
        let (id, m, d) = (&replay.document.id, &replay.document.body.measured, &replay.document.body.derived);
        let covered = if m.coverage.complete { "complete" } else { "INCOMPLETE" };
        caption.push_str(&format!(
            "Evidence <span class=\"id\">{}</span>: plan {}, coverage {covered} ({}); the groups add up to {:.3} ms of a \
             step of {:.3} ms, the remainder of {:.1} % is {}. ",
            escape(id),
            escape(&m.step.plan),
            escape(&m.coverage.reason),
            d.sum_ns / 1e6,
            d.step_ns.median / 1e6,
            d.remainder_percent,
            escape(&m.remainder_is)
        ));
    }
    if replays.len() > 2 {
        caption.push_str(&format!("{} replays between them are not drawn. ", replays.len() - 2));
    }
    caption.push_str(
        "Shares tell where time goes, not what a change would bring: before and after are two replays, and no verdict.",
    );
    figure(&shares.title, &shares.draw(), &caption)
}

fn side(name: &str, replay: &Stated<Replay>) -> Side {
    let Replay { measured, derived } = &replay.document.body;
    let groups = measured.groups.iter().zip(&derived.groups).map(|(m, d)| Group {
        name: d.name.clone(),
        ns: d.ns.median,
        share_percent: d.share_percent,
        floor_ns: m.floor_ns.available().copied(),
        percent_of_floor: match &d.percent_of_floor {
            Reading::Available(percent) => Ok(*percent),
            Reading::Unavailable { why } => Err(why.clone()),
        },
    });
    Side {
        name: name.into(),
        evidence: replay.document.id.clone(),
        groups: groups.collect(),
        remainder_ns: derived.remainder_ns,
    }
}
