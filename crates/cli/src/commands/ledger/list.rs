//! `tare ledger list`

use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use tare_core::Reading;
use tare_evidence::campaign::CampaignOutcome;
use tare_evidence::decision::Decided;
use tare_evidence::identity::together_told;
use tare_evidence::present::Present;
use tare_evidence::{AnyDocument, Ledger, Record, State};
use tare_lab::host;
use tare_lab::thresholds::Thresholds;
use tare_probe::Host;

/// One line of the listing.
struct Line {
    id: String,
    kind: &'static str,
    title: String,
    state: State,
    /// What has moved on since; a hint of the moment.
    reopened: Vec<String>,
    /// Rates or verdicts.
    says: String,
    json: Value,
}

/// Lists the ledger in `folder`.
pub(super) fn run(folder: &Path, as_json: bool) -> Result<()> {
    let ledger = Ledger::at(folder);
    let present = present()?;
    let mut lines: Vec<Line> = Vec::new();
    for e in ledger.list()? {
        let reopened = present.reopens(&e.record);
        lines.push(Line {
            says: rates(&e.record),
            json: json!({
                "path": e.path, "passed": e.record.passed(), "sequences": e.record.work.rows, "rates": rates_json(&e.record),
            }),
            id: e.record.id,
            kind: "record",
            title: e.record.about.title,
            state: e.state,
            reopened,
        });
    }
    for e in ledger.documents()? {
        let d = &e.document;
        let (says, verdicts) = verdicts(d);
        lines.push(Line {
            id: d.id().to_string(),
            kind: d.kind().name(),
            title: d.about().title.clone(),
            reopened: present.reopens_document(d.provenance(), d.schema_version()),
            says,
            json: json!({ "path": e.path, "verdicts": verdicts }),
            state: e.state,
        });
    }
    lines.sort_by(|a, b| a.id.cmp(&b.id));
    if as_json {
        println!("{}", Value::Array(lines.into_iter().map(Line::into_json).collect()));
        return Ok(());
    }
    for line in &lines {
        println!("{}  {:11}  {}  {}  {}", line.id, line.kind, line.shown_state(), line.says, line.title);
    }
    eprintln!("[{} records and documents in {}]", lines.len(), folder.display());
    Ok(())
}

impl Line {
    fn shown_state(&self) -> String {
        let here = self.state == State::Valid && !self.reopened.is_empty();
        if here { format!("reopened here ({})", self.reopened.join(", ")) } else { self.state.name().to_string() }
    }

    fn into_json(self) -> Value {
        let mut value = json!({
            "id": self.id, "kind": self.kind, "title": self.title, "state": self.state, "reopened_here": self.reopened,
        });
        if let (Value::Object(all), Value::Object(own)) = (&mut value, self.json) {
            all.extend(own);
        }
        value
    }
}

/// The host and the limits of the moment.
fn present() -> Result<Present> {
    Ok(Present {
        host_class_sha256: host::describe(&Host::read(), host::Moment::default())?.class_sha256,
        thresholds_version: Thresholds::built_in()?.version,
    })
}

fn rates(record: &Record) -> String {
    let Some(d) = record.derived() else { return "gate FAILED".to_string() };
    let decode = match &d.decode {
        Reading::Available(p) => format!("{:.1}", p.rate_tokens_per_s.median),
        Reading::Unavailable { .. } => "no".to_string(),
    };
    let prefill = d.prefill.rate_tokens_per_s.median;
    format!("prefill {prefill:.1}, decode {decode} tok/s{}", together_told(record.work.rows))
}

fn rates_json(record: &Record) -> Value {
    record.derived().map_or(Value::Null, |d| {
        let decode = d.decode.clone().map(|p| p.rate_tokens_per_s.median);
        json!({ "prefill_tokens_per_s": d.prefill.rate_tokens_per_s.median, "decode_tokens_per_s": decode })
    })
}

/// What a document says, in a few words and as data.
fn verdicts(document: &AnyDocument) -> (String, Value) {
    match document {
        AnyDocument::Opening(d) => (format!("attempt {} of {}", d.body.attempt, d.about.campaign), Value::Null),
        AnyDocument::Campaign(d) => match &d.body.outcome {
            CampaignOutcome::Ruled(ruled) => {
                let verdicts: Vec<(String, &str)> =
                    ruled.rulings.iter().map(|r| (r.arm.clone(), Decided::from(r.verdict).name())).collect();
                let text = verdicts.iter().map(|(arm, v)| format!("{arm} {v}")).collect::<Vec<_>>().join(", ");
                let text = text + &together_told(d.body.study.work.sequences);
                (text, json!(verdicts.into_iter().collect::<std::collections::BTreeMap<_, _>>()))
            }
            CampaignOutcome::Unruled { why } => (format!("unruled: {why}"), Value::Null),
        },
        AnyDocument::Replay(d) => {
            let remainder = d.body.derived.remainder_percent;
            (format!("{} groups, remainder {remainder:.1} %", d.body.measured.groups.len()), Value::Null)
        }
        AnyDocument::Sensitivity(d) => {
            (format!("{}: {:.2} of each nanosecond", d.body.measured.group, d.body.derived.slope), Value::Null)
        }
        AnyDocument::Decision(d) => (d.body.verdict.name().to_string(), json!(d.body.verdict)),
        AnyDocument::Accuracy(d) => {
            let figures = &d.body.derived;
            (format!("{} arms over {} tokens", figures.arms.len(), figures.scored), Value::Null)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of several sequences are no rates of one.
    #[test]
    fn a_line_says_how_many_sequences_ran_together() {
        let ledger = Ledger::at(concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/intel-xeon-2t"));
        let mut seen = [0; 2];
        for e in ledger.list().unwrap() {
            let several = e.record.work.rows > 1;
            seen[usize::from(several)] += 1;
            let says = rates(&e.record);
            assert_eq!(
                says.ends_with(&format!("tok/s of {} sequences together", e.record.work.rows)),
                several,
                "{says}"
            );
        }
        assert!(seen.iter().all(|&n| n > 0), "records of one sequence and of several: {seen:?}");
        for e in ledger.documents().unwrap() {
            let AnyDocument::Campaign(d) = &e.document else { continue };
            let says = verdicts(&e.document).0;
            assert_eq!(says.contains(" sequences together"), d.body.study.work.sequences > 1, "{says}");
        }
    }
}
