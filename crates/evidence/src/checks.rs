//! The checks of a gate by name, and which of them stand behind a pass.
//!
//! Every version of the limits has its checks. A report that names the version and lacks one of them did not run it, and a
//! pass without it is none.

use crate::agree::emitted;
use crate::gate::GateReport;
use crate::identity::Arm;
use crate::record::Record;
use tare_core::Fault;

/// The ids of every run, warm-ups included, against those of the first.
pub const ROUNDS_AGREE: &str = "rounds-agree";
/// Warm-ups that draw fewer tokens than the request, against its first ones.
pub const WARM_UPS: &str = "warm-ups";
/// Logits of every run that emitted the ids of the first, against the same class.
pub const EMULATION_LOGIT: &str = "emulation-logit";
/// Ids of the first run, against the best ones of the same class.
pub const EMULATION_RANK: &str = "emulation-rank";
/// As [`EMULATION_LOGIT`], against class f32.
pub const ACCURACY_LOGIT: &str = "accuracy-logit";
/// As [`EMULATION_RANK`], against class f32.
pub const ACCURACY_RANK: &str = "accuracy-rank";
/// Keys and values of every layer, of every row: of several tokens.
pub const CACHE: &str = "kv";
/// The same of the token that is furthest away.
pub const CACHED_TOKENS: &str = "kv-token";
/// What each launch of a step leaves, in classes in any order.
pub const OPERATORS: &str = "operators";
/// Another engine emitted as many tokens as were asked for.
pub const OUTPUT_LENGTH: &str = "output-length";
/// Another engine emitted ids that the model has.
pub const KNOWN_IDS: &str = "ids-in-vocabulary";
/// Another engine gave a logit with each id.
pub const OUTPUT_LOGITS: &str = "output-logits";

/// The class that is the judge of all others.
pub const EXACT_CLASS: &str = "f32";
/// What the name of a class in any order ends with.
pub const ANY_ORDER: &str = "-free";
/// The cache of a plan that keeps none.
pub const NO_CACHE: &str = "recompute";

/// An arm as far as it decides which checks are made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// The arm.
    pub(crate) arm: &'a Arm,
    /// Whether any of its tokens has a logit.
    pub(crate) logits: bool,
    /// Whether warm-ups came before it that are in no record.
    pub(crate) warmed: bool,
}

/// A check, the first version of the limits that has it, and whether it is made of an arm.
type Demanded = (&'static str, u32, fn(Seen<'_>) -> bool);

/// Of what came before version 2 nothing is known.
const DEMANDED: [Demanded; 12] = [
    (ROUNDS_AGREE, 2, |_| true),
    (WARM_UPS, 3, |seen| seen.warmed),
    (EMULATION_LOGIT, 2, |seen| seen.own()),
    (EMULATION_RANK, 2, |seen| seen.own()),
    (ACCURACY_LOGIT, 2, |seen| if seen.own() { seen.inexact() } else { seen.logits }),
    (ACCURACY_RANK, 2, |seen| !seen.own() || seen.inexact()),
    (CACHE, 2, |seen| seen.cached()),
    (CACHED_TOKENS, 6, |seen| seen.cached()),
    (OPERATORS, 5, |seen| seen.own() && seen.arm.class.ends_with(ANY_ORDER)),
    (OUTPUT_LENGTH, 2, |seen| !seen.own()),
    (KNOWN_IDS, 2, |seen| !seen.own()),
    (OUTPUT_LOGITS, 2, |seen| !seen.own() && seen.logits),
];

impl<'a> Seen<'a> {
    /// The arm of a record.
    pub(crate) fn in_record(record: &'a Record, warmed: bool) -> Self {
        let (warmups, rounds) = emitted(record);
        let mut rows = warmups.iter().chain(rounds).flat_map(|e| &e.rows);
        Self { arm: &record.arm, logits: rows.any(|row| !row.logits.is_empty()), warmed }
    }

    fn own(self) -> bool {
        self.arm.peer.is_none()
    }

    fn inexact(self) -> bool {
        self.arm.class != EXACT_CLASS
    }

    fn cached(self) -> bool {
        self.own() && self.arm.cache != NO_CACHE
    }
}

/// The checks that `version` of the limits makes of an arm.
pub(crate) fn demanded(version: u32, seen: Seen<'_>) -> impl Iterator<Item = &'static str> {
    DEMANDED.into_iter().filter(move |(_, since, of)| version >= *since && of(seen)).map(|(name, ..)| name)
}

/// The version of the limits that a report names.
///
/// # Errors
/// When it is no number: nothing could be demanded of it.
pub(crate) fn version(report: &GateReport) -> Result<u32, Fault> {
    report.thresholds_version.parse().map_err(|_| {
        let found = format!("`{}`", report.thresholds_version);
        Fault::new("gate.thresholds_version", "the number of a version of `gates.toml`", found)
    })
}

/// Checks that a passed gate lacks.
pub(crate) fn faults(report: &GateReport, seen: Seen<'_>) -> Vec<Fault> {
    let version = match version(report) {
        Ok(version) => version,
        Err(fault) => return vec![fault],
    };
    let lacking = |name: &&str| report.checks.iter().all(|c| c.name != **name);
    let fault = |name: &str| {
        let expected = format!("the check, which version {version} of the limits has");
        Fault::new(format!("gate.checks: {name}"), expected, "none")
            .remedy("a check was left out: restore the file as it was written")
    };
    demanded(version, seen).filter(lacking).map(fault).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gate::Check;
    use crate::identity::Peer;
    use tare_core::Reading;

    /// An arm of which nothing else is known.
    pub(crate) fn arm(class: &str, cache: &str, peer: Option<Peer>) -> Arm {
        let text = String::new;
        Arm {
            plan: text(),
            plan_sha256: text(),
            binary_sha256: text(),
            class: class.into(),
            file_format: text(),
            file_sha256: text(),
            head_format: text(),
            cache: cache.into(),
            page_tokens: Reading::unavailable("a test"),
            threads: Reading::unavailable("a test"),
            isa: text(),
            backend: text(),
            streamed_bytes_per_token: Reading::unavailable("a test"),
            peer,
            settings: None,
            delay: None,
        }
    }

    fn other_engine() -> Peer {
        Peer { name: "p".into(), version: "1".into(), settings: serde_json::Value::Null }
    }

    fn report(version: &str, checks: &[&str]) -> GateReport {
        let check = |name: &&str| Check { name: (*name).into(), compared: 1, max_error: 0.0, limit: 0.0 };
        let checks = checks.iter().map(check).collect();
        GateReport { thresholds_version: version.into(), checks, misses: vec![] }
    }

    /// Everything that the laboratory checks of each kind of arm, by the newest version of the limits.
    #[test]
    fn a_pass_without_a_check_of_its_version_is_none() {
        const TOKENS: [&str; 3] = ["rounds-agree", "emulation-logit", "emulation-rank"];
        const EXACT: [&str; 2] = ["accuracy-logit", "accuracy-rank"];
        const CACHED: [&str; 2] = ["kv", "kv-token"];
        const EMITTED: [&str; 4] = ["rounds-agree", "output-length", "ids-in-vocabulary", "accuracy-rank"];
        let kinds = [
            (arm("w4a16", "paged", None), true, [&TOKENS[..], &EXACT, &CACHED].concat()),
            (arm("w8a8", "concatenate", None), true, [&TOKENS[..], &EXACT, &CACHED].concat()),
            (arm("w4a16-free", "paged", None), true, [&TOKENS[..], &EXACT, &CACHED, &["operators"]].concat()),
            (arm("w4a16", "recompute", None), true, [&TOKENS[..], &EXACT].concat()),
            (arm("f32", "paged", None), true, [&TOKENS[..], &CACHED].concat()),
            (arm("w4a8", "its own", Some(other_engine())), false, EMITTED.to_vec()),
            (
                arm("w4a8", "its own", Some(other_engine())),
                true,
                [&EMITTED[..], &["accuracy-logit", "output-logits"]].concat(),
            ),
        ];
        for (arm, logits, mut checks) in kinds {
            for warmed in [false, true] {
                checks.extend(warmed.then_some("warm-ups"));
                let seen = Seen { arm: &arm, logits, warmed };
                for version in ["6", "7"] {
                    assert!(faults(&report(version, &checks), seen).is_empty(), "{}: {checks:?}", arm.class);
                    for left_out in &checks {
                        let others: Vec<&str> = checks.iter().copied().filter(|c| c != left_out).collect();
                        let found: Vec<String> =
                            faults(&report(version, &others), seen).into_iter().map(|f| f.at).collect();
                        assert_eq!(found, [format!("gate.checks: {left_out}")], "{}", arm.class);
                    }
                }
            }
        }
    }

    #[test]
    fn a_check_is_asked_for_from_its_version_on() {
        let arm = arm("bf16-free", "paged", None);
        let lacking = |version: &str, checks: &[&str]| {
            let faults = faults(&report(version, checks), Seen { arm: &arm, logits: true, warmed: false });
            faults.into_iter().map(|f| f.at).collect::<Vec<_>>()
        };
        let oldest = ["rounds-agree", "emulation-logit", "emulation-rank", "accuracy-logit", "accuracy-rank", "kv"];
        assert_eq!(lacking("4", &oldest), [""; 0]);
        assert_eq!(lacking("5", &oldest), ["gate.checks: operators"]);
        assert_eq!(lacking("6", &oldest), ["gate.checks: kv-token", "gate.checks: operators"]);
        assert_eq!(lacking("1", &["a check of its own"]), [""; 0]);
        for version in ["", "6.1", "six", "-6"] {
            assert_eq!(lacking(version, &oldest), ["gate.thresholds_version"], "{version}");
        }
    }
}
