//! Whether a measurement that was made again says the same.

use crate::compare;
use crate::derive::{Phase, Spread};
use crate::record::Record;
use crate::ruling::Ruled;
use crate::stats::Verdict;
use serde::Serialize;
use tare_core::{Fault, Reading};

/// The rule for a record, in words.
pub const RECORD_RULE: &str = "a record replicates when the same work passes the gate on a host of the same class and \
    the ranges of the prefill and the decode rate over the rounds, each widened by 5 % of its median, overlap";

/// The rule for a campaign, in words.
pub const CAMPAIGN_RULE: &str = "a campaign replicates when the same study is ruled again, the interval of every \
    candidate's effect overlaps the one that was found before, and no verdict turned from keep to reject or back; times \
    are not compared, so that the host may be another";

/// How far a range of rates is widened, as a share of its median: what two runs of one binary on one host differ by.
const WIDENING: f64 = 0.05;

/// What a repetition says about what it repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Replication {
    /// It says the same.
    Replicates,
    /// It does not.
    DoesNotReplicate {
        /// Each figure that differs.
        why: Vec<String>,
    },
    /// Its times say nothing: it ran on a host of another class.
    OtherHostClass,
}

/// Holds `again` against the record that it repeats, by [`RECORD_RULE`].
///
/// # Errors
/// When the work is not the same, or the first record has no times.
pub fn record(first: &Record, again: &Record) -> Result<Replication, Fault> {
    compare::same_work(&first.work, &again.work).map_err(|e| {
        Fault::new("work", format!("that of {}", first.id), e.to_string())
            .remedy("name the model and the seed of the prompt: `--model`, `--seed`")
    })?;
    let Some(expected) = first.derived() else {
        return Err(Fault::new(&first.id, "a record with times", "one whose gate failed"));
    };
    let Some(found) = again.derived() else {
        return Ok(Replication::DoesNotReplicate { why: vec!["the gate failed".into()] });
    };
    if first.provenance.host.class_sha256 != again.provenance.host.class_sha256 {
        return Ok(Replication::OtherHostClass);
    }
    let phases = [
        ("prefill", Some(&expected.prefill), Some(&found.prefill)),
        ("decode", available(&expected.decode), available(&found.decode)),
    ];
    let why: Vec<String> = phases.into_iter().filter_map(|(name, a, b)| rates_apart(name, a?, b?)).collect();
    Ok(if why.is_empty() { Replication::Replicates } else { Replication::DoesNotReplicate { why } })
}

fn available(phase: &Reading<Phase>) -> Option<&Phase> {
    phase.available()
}

fn rates_apart(name: &str, first: &Phase, again: &Phase) -> Option<String> {
    let widened = |s: &Spread| (s.min - WIDENING * s.median, s.max + WIDENING * s.median);
    let (a, b) = (&first.rate_tokens_per_s, &again.rate_tokens_per_s);
    let ((a_low, a_high), (b_low, b_high)) = (widened(a), widened(b));
    (a_low > b_high || b_low > a_high)
        .then(|| format!("{name}: {:.2} to {:.2} tokens/s, then {:.2} to {:.2}", a.min, a.max, b.min, b.max))
}

/// Holds the rulings of a campaign that was run again against those of the first, by [`CAMPAIGN_RULE`].
pub fn campaign(first: &Ruled, again: &Ruled) -> Replication {
    let mut why = Vec::new();
    for ruling in &first.rulings {
        let Some(repeated) = again.rulings.iter().find(|r| r.arm == ruling.arm) else {
            why.push(format!("{}: not ruled again", ruling.arm));
            continue;
        };
        if let (Verdict::Keep, Verdict::Reject) | (Verdict::Reject, Verdict::Keep) = (ruling.verdict, repeated.verdict)
        {
            let name = |v: Verdict| if v == Verdict::Keep { "keep" } else { "reject" };
            why.push(format!("{}: {}, then {}", ruling.arm, name(ruling.verdict), name(repeated.verdict)));
        }
        match (&ruling.interval, &repeated.interval) {
            (Reading::Available(a), Reading::Available(b)) if a.low <= b.high && b.low <= a.high => {}
            (Reading::Available(a), Reading::Available(b)) => why.push(format!(
                "{}: {:.4} to {:.4}, then {:.4} to {:.4} (log-ratios)",
                ruling.arm, a.low, a.high, b.low, b.high
            )),
            (Reading::Unavailable { why: few }, _) | (_, Reading::Unavailable { why: few }) => {
                why.push(format!("{}: no interval: {few}", ruling.arm));
            }
        }
    }
    if why.is_empty() { Replication::Replicates } else { Replication::DoesNotReplicate { why } }
}
