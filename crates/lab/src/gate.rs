//! The gate: are the tokens that were timed the right ones?
//!
//! It looks at what the timed path gave out, warm-ups included: ids, logits and, from one run of the same executable,
//! every cached key and value. Stage 1 holds them against one pass over the whole sequence in the same class, made by
//! an engine of its own from weights of its own, in the reference's order of sums. Stage 2 holds the same tokens against class f32.
//! In classes whose kernels add in any order, steps of the timed path are judged launch by launch as well ([`crate::operators`]).
//!
//! Of several sequences that run together each is judged as one that runs alone, and by the same passes.

mod cache;
mod emitted;

use cache::Differences;
use tare_engine::{Engine, Retained};
use tare_evidence::checks::{
    ACCURACY_LOGIT, ACCURACY_RANK, CACHE, CACHED_TOKENS, EMULATION_LOGIT, EMULATION_RANK, OPERATORS, ROUNDS_AGREE,
    WARM_UPS,
};
use tare_evidence::gate::{Check, GateReport, Miss};
use tare_evidence::samples::RowTokens;
use tare_ops::{Class, Order, class::CLASSES};

use crate::LabError;
use crate::operators;
use crate::reference::{ReferenceStore, Score, Scoring};
use crate::rig::Rig;
use crate::sequences::{Sequences, run_and_retain, step};
use crate::thresholds::Thresholds;
use crate::work::ClockedRequest;

/// Misses that are written out for one check; all of them count.
const MISSES_SHOWN: usize = 8;

/// What a run of the timed path emitted.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// For people: `warm-up 0`, `round 3`.
    pub label: &'a str,
    /// Tokens of each sequence in order, with their logits.
    pub rows: &'a [RowTokens],
}

impl<'a> Run<'a> {
    /// The tokens of sequence `n`; none when the run has no such sequence.
    pub(crate) fn ids(&self, n: usize) -> &'a [u32] {
        self.rows.get(n).map_or(&[], |row| &row.ids)
    }

    /// Their logits.
    pub(crate) fn logits(&self, n: usize) -> &'a [f32] {
        self.rows.get(n).map_or(&[], |row| &row.logits)
    }

    /// Whether it drew what `other` drew, in every sequence.
    fn drew(&self, other: &Run<'_>) -> bool {
        self.rows.iter().map(|r| &r.ids).eq(other.rows.iter().map(|r| &r.ids))
    }

    /// A place in sequence `n`, for people.
    fn at(&self, n: usize) -> String {
        if self.rows.len() > 1 { format!("{} sequence {n}", self.label) } else { self.label.to_string() }
    }
}

/// Judges runs of one request, or of several that run together.
#[derive(Debug)]
pub struct Gate<'a> {
    /// The set-up that is timed.
    pub rig: &'a Rig<'a>,
    /// The request of each sequence.
    pub requests: &'a [ClockedRequest],
    /// Limits.
    pub thresholds: &'a Thresholds,
    /// Where reference scores are kept.
    pub store: &'a ReferenceStore,
}

impl Gate<'_> {
    /// Judges `runs`, the cached keys and values of one more, untimed run of `engine`, and in classes in any order the
    /// launches of another.
    ///
    /// # Errors
    /// When a judge cannot be made or an engine fails. Wrong answers are no errors: they are misses in the report.
    pub fn judge(&self, engine: &mut Engine, runs: &[Run<'_>]) -> Result<GateReport, LabError> {
        let mut report = self.judge_tokens(runs)?;
        if let Some(first) = runs.first() {
            self.judge_cache(engine, first, &mut report)?;
            self.judge_operators(engine, first, &mut report)?;
        }
        Ok(report)
    }

    /// Judges the ids and logits of `runs`.
    ///
    /// # Errors
    /// As [`Gate::judge`].
    pub fn judge_tokens(&self, runs: &[Run<'_>]) -> Result<GateReport, LabError> {
        let mut report =
            GateReport { thresholds_version: self.thresholds.version.clone(), checks: vec![], misses: vec![] };
        let Some(first) = runs.first() else {
            return Err(LabError::Judge("there is no run to judge".to_string()));
        };
        report.add(ROUNDS_AGREE, 0.0, &differing_ids(first, runs));
        let same_class = self.scores(self.rig.class, first)?;
        let limits = self.thresholds.emulation(self.rig.class);
        report.add(EMULATION_LOGIT, limits.logit, &logit_errors(first, &same_class, runs));
        report.add(EMULATION_RANK, limits.rank_gap, &rank_gaps(&same_class));
        if self.rig.class.name != CLASSES[0].name {
            let exact = self.scores(CLASSES[0], first)?;
            let limits = self.thresholds.accuracy(self.rig.class.name)?;
            report.add(ACCURACY_LOGIT, limits.logit, &logit_errors(first, &exact, runs));
            report.add(ACCURACY_RANK, limits.rank_gap, &rank_gaps(&exact));
        }
        Ok(report)
    }

    /// Adds the comparison of the cached keys and values of one more, untimed run of `engine`.
    ///
    /// # Errors
    /// As [`Gate::judge`].
    pub fn judge_cache(&self, engine: &mut Engine, run: &Run<'_>, report: &mut GateReport) -> Result<(), LabError> {
        if let Some(found) = self.cached(engine, run)? {
            let limits = self.thresholds.emulation(self.rig.class);
            report.add(CACHE, limits.kv, &found.several);
            report.add(CACHED_TOKENS, limits.kv_token, &found.furthest);
        }
        Ok(())
    }

    /// Adds, in a class in any order, the comparison of what each launch leaves in steps of one more, untimed run of
    /// `engine`: errors are shares of what the rounding of that launch alone allows.
    ///
    /// # Errors
    /// As [`Gate::judge`], or when the backend does not take steps apart.
    pub fn judge_operators(&self, engine: &mut Engine, run: &Run<'_>, report: &mut GateReport) -> Result<(), LabError> {
        if self.rig.class.order == Order::Free {
            let found = operators::judge(self.rig, self.requests, engine, run)?;
            report.add_of(OPERATORS, self.thresholds.operators.share, found.compared, &found.all);
        }
        Ok(())
    }

    /// Scores of what `run` drew, for each sequence.
    fn scores(&self, class: Class, run: &Run<'_>) -> Result<Vec<Vec<Score>>, LabError> {
        let digest = self.rig.model.values_digest()?;
        let of = |(n, request): (usize, &ClockedRequest)| {
            let (input, emitted) = (request.input(), run.ids(n));
            let what = Scoring { weights_values_sha256: &digest, class: class.name, input: &input, emitted };
            Ok(self.store.scores(what, || self.rig.judge(class))?.0)
        };
        self.requests.iter().enumerate().map(of).collect()
    }

    /// Differences of the cached keys and values of each sequence; none when the plan keeps no cache.
    fn cached(&self, engine: &mut Engine, run: &Run<'_>) -> Result<Option<Differences>, LabError> {
        let Some(kept) = self.run_and_keep(engine, run)? else {
            return Ok(None);
        };
        let mut differences = Differences::default();
        for (n, (request, kept)) in self.requests.iter().zip(kept).enumerate() {
            let found = engine.export_retained(kept)?;
            engine.release_retained(kept);
            let (mut tokens, emitted) = (request.input(), run.ids(n));
            tokens.extend(emitted.iter().take(emitted.len().saturating_sub(1)));
            let of_sequence = if found.tokens == tokens {
                let mut judge = self.rig.judge(self.rig.class)?;
                let Some(kept) = run_and_retain(&mut judge, tokens, 0)? else {
                    return Err(LabError::Judge("the judge kept no cache".to_string()));
                };
                Differences::between(&judge.export_retained(kept)?, &found)
            } else {
                Differences::of_tokens(&tokens, &found.tokens)
            };
            let named = if self.requests.len() > 1 { format!("sequence {n} ") } else { String::new() };
            differences.extend(of_sequence, &named);
        }
        Ok(Some(differences))
    }

    /// Runs the request once more and keeps the keys and values of each sequence; none when the plan keeps no cache.
    fn run_and_keep(&self, engine: &mut Engine, run: &Run<'_>) -> Result<Option<Vec<Retained>>, LabError> {
        if let [one] = self.requests {
            return Ok(run_and_retain(engine, one.input(), run.ids(0).len())?.map(|kept| vec![kept]));
        }
        let (mut sequences, mut drawn) = (Sequences::begin(engine, self.requests, true)?, Vec::new());
        sequences.submit(engine)?;
        sequences.prefill(engine, &mut step, &mut drawn)?;
        for _ in 1..run.ids(0).len() {
            sequences.draw(engine, &mut step, &mut drawn)?;
        }
        sequences.end(engine, &mut step)?;
        Ok(sequences.kept())
    }
}

/// One value that was compared.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) at: String,
    pub(crate) error: f64,
    pub(crate) expected: String,
    pub(crate) found: String,
}

trait Add {
    /// Adds a check of one value a finding.
    fn add(&mut self, name: &str, limit: f64, findings: &[Finding]) {
        self.add_of(name, limit, findings.len() as u64, findings);
    }

    /// Adds a check of `compared` values: the largest finite error and a miss for each error over the limit or that is not
    /// a number.
    fn add_of(&mut self, name: &str, limit: f64, compared: u64, findings: &[Finding]);
}

impl Add for GateReport {
    fn add_of(&mut self, name: &str, limit: f64, compared: u64, findings: &[Finding]) {
        let finite = findings.iter().map(|f| f.error).filter(|e| e.is_finite()).fold(0.0, f64::max);
        self.checks.push(Check { name: name.into(), compared, max_error: finite, limit });
        let over: Vec<&Finding> = findings.iter().filter(|f| f.error.is_nan() || f.error > limit).collect();
        for f in over.iter().take(MISSES_SHOWN) {
            self.misses.push(Miss {
                check: name.into(),
                at: f.at.clone(),
                expected: f.expected.clone(),
                found: f.found.clone(),
            });
        }
        if over.len() > MISSES_SHOWN {
            self.misses.push(Miss {
                check: name.into(),
                at: "further places".into(),
                expected: format!("errors of at most {limit}"),
                found: format!("{} more", over.len() - MISSES_SHOWN),
            });
        }
    }
}

fn differing_ids(first: &Run<'_>, runs: &[Run<'_>]) -> Vec<Finding> {
    let of_row = |run: &Run<'_>, n: usize| {
        let (expected, found, at) = (first.ids(n), run.ids(n), run.at(n));
        (0..expected.len().max(found.len()))
            .map(|i| {
                let (a, b) = (expected.get(i), found.get(i));
                Finding {
                    at: format!("{at} token {i}"),
                    error: f64::from(u8::from(a != b)),
                    expected: format!("{a:?} as in {}", first.label),
                    found: format!("{b:?}"),
                }
            })
            .collect::<Vec<_>>()
    };
    let each =
        |run: &Run<'_>| (0..first.rows.len().max(run.rows.len())).flat_map(|n| of_row(run, n)).collect::<Vec<_>>();
    runs.iter().flat_map(each).collect()
}

/// Differences of logits, over all runs that drew what `first` drew, which was scored.
fn logit_errors(first: &Run<'_>, scores: &[Vec<Score>], runs: &[Run<'_>]) -> Vec<Finding> {
    let mut out = Vec::new();
    for run in runs.iter().filter(|r| r.drew(first)) {
        for (n, scores) in scores.iter().enumerate() {
            let at = run.at(n);
            for (i, (score, &logit)) in scores.iter().zip(run.logits(n)).enumerate() {
                out.push(Finding {
                    at: format!("{at} token {i} (id {})", score.token),
                    error: (f64::from(score.logit) - f64::from(logit)).abs(),
                    expected: format!("logit {}", score.logit),
                    found: format!("logit {logit}"),
                });
            }
        }
    }
    out
}

/// Adds the judgement of `starts`, runs that drew the first tokens of what `whole` drew, which is judged itself: the same
/// ids, and logits that are at most `limit` away where the engine gives them out.
pub(crate) fn judge_starts(starts: &[Run<'_>], whole: &Run<'_>, limit: f64, report: &mut GateReport) {
    let findings: Vec<Finding> = starts.iter().flat_map(|run| start_errors(whole, run)).collect();
    if !findings.is_empty() {
        report.add(WARM_UPS, limit, &findings);
    }
}

fn start_errors(whole: &Run<'_>, run: &Run<'_>) -> Vec<Finding> {
    let shown =
        |run: &Run<'_>, n, i: usize| format!("id {:?} with logit {:?}", run.ids(n).get(i), run.logits(n).get(i));
    let each = |n: usize, i: usize| {
        let error = match (whole.logits(n).get(i), run.logits(n).get(i)) {
            _ if whole.ids(n).get(i) != run.ids(n).get(i) => f64::INFINITY,
            (Some(a), Some(b)) => (f64::from(*a) - f64::from(*b)).abs(),
            (None, None) => 0.0,
            _ => f64::INFINITY,
        };
        let at = format!("{} token {i}", run.at(n));
        Finding { at, error, expected: shown(whole, n, i), found: shown(run, n, i) }
    };
    (0..run.rows.len()).flat_map(|n| (0..run.ids(n).len()).map(move |i| (n, i))).map(|(n, i)| each(n, i)).collect()
}

fn rank_gaps(scores: &[Vec<Score>]) -> Vec<Finding> {
    let gap = |s: &Score| {
        let gap = f64::from(s.best_logit) - f64::from(s.logit);
        match s.best == s.token {
            // A reference that is no number bears nothing out.
            _ if gap.is_nan() => f64::NAN,
            true => 0.0,
            // A tie that went to the higher id has gap 0 and is still another token than the reference's.
            false => gap.max(f64::MIN_POSITIVE),
        }
    };
    let several = scores.len() > 1;
    let of_sequence = |(n, scores): (usize, &Vec<Score>)| {
        let within = if several { format!("sequence {n} ") } else { String::new() };
        let each = |(i, s): (usize, &Score)| Finding {
            at: format!("{within}token {i}"),
            error: gap(s),
            expected: format!("id {} with logit {}", s.best, s.best_logit),
            found: format!("id {} with logit {}", s.token, s.logit),
        };
        scores.iter().enumerate().map(each).collect::<Vec<_>>()
    };
    scores.iter().enumerate().flat_map(of_sequence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(error: f64) -> Finding {
        Finding { at: "x".into(), error, expected: "e".into(), found: "f".into() }
    }

    fn row(ids: &[u32], logits: &[f32]) -> RowTokens {
        RowTokens { ids: ids.to_vec(), logits: logits.to_vec() }
    }

    #[test]
    fn a_value_that_is_no_number_is_a_miss() {
        let mut r = GateReport { thresholds_version: "t".into(), checks: vec![], misses: vec![] };
        r.add("a", 1.0, &[finding(0.5), finding(f64::NAN)]);
        assert_eq!((r.checks[0].max_error, r.misses.len()), (0.5, 1));
        r.add("b", 0.0, &vec![finding(1.0); 20]);
        assert_eq!(r.misses.len(), 1 + MISSES_SHOWN + 1);
        assert!(r.misses.last().unwrap().found.contains("12 more"));
    }

    #[test]
    fn a_tie_that_went_to_the_higher_id_is_seen() {
        let s = Score { token: 5, logit: 1.0, best: 3, best_logit: 1.0, second_logit: 1.0, log_sum: 1.7 };
        assert!(rank_gaps(&[vec![s]])[0].error > 0.0);
        assert_eq!(rank_gaps(&[vec![Score { token: 3, ..s }]])[0].error, 0.0);
        for unknown in [Score { logit: f32::NAN, ..s }, Score { token: 3, logit: f32::NAN, best_logit: f32::NAN, ..s }]
        {
            assert!(rank_gaps(&[vec![unknown]])[0].error.is_nan(), "a reference that is no number");
        }
    }

    #[test]
    fn a_warm_up_is_the_beginning_of_its_request() {
        let rows = [row(&[1, 2, 3], &[0.5, 1.5, 2.5])];
        let whole = Run { label: "round", rows: &rows };
        let misses = |ids: &[u32], logits: &[f32]| {
            let mut r = GateReport { thresholds_version: "t".into(), checks: vec![], misses: vec![] };
            judge_starts(&[Run { label: "warm-up 0", rows: &[row(ids, logits)] }], &whole, 0.1, &mut r);
            (r.checks[0].compared, r.misses.len())
        };
        assert_eq!(misses(&[1, 2], &[0.5, 1.55]), (2, 0));
        assert_eq!(misses(&[1, 9], &[0.5, 1.5]), (2, 1), "another id is a miss under any limit");
        assert_eq!(misses(&[1, 2], &[0.5, 1.9]), (2, 1));
        assert_eq!(misses(&[1, 2], &[]), (2, 2), "logits that are missing on one side");
        assert_eq!(misses(&[1, 2, 3, 4], &[0.5, 1.5, 2.5, 3.5]), (4, 1), "more than the request drew");
    }

    #[test]
    fn a_run_of_other_ids_is_named() {
        let (whole, short) = ([row(&[1, 2], &[0.0, 0.0])], [row(&[1], &[0.0])]);
        let a = Run { label: "round 0", rows: &whole };
        let b = Run { label: "round 1", rows: &short };
        let f = differing_ids(&a, &[a, b]);
        assert_eq!(f.iter().filter(|x| x.error > 0.0).count(), 1);
        assert!(f[3].at.contains("round 1 token 1"));
        let two = [&whole[..], &short[..]].concat();
        let both = Run { label: "round 0", rows: &two };
        let f = differing_ids(&both, &[both, a]);
        assert_eq!(f.iter().filter(|x| x.error > 0.0).count(), 1, "a sequence that is missing");
    }
}
