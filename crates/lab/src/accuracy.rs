//! How far packings, classes and other engines stray from a model in F32 on a text.
//!
//! The reference's logits of the whole text are kept, 4 bytes for each word of the vocabulary and each scored token (400 MB
//! for 2,048 tokens and 49,152 words), so that arms may come one after the other. Divergence is
//! `sum(p * ln(p / q))`, in F64 from F32 logits, `p` the reference's.

use serde_json::json;
use std::path::Path;
use tare_engine::Engine;
use tare_evidence::accuracy::{Accuracy, ScoredArm, Scorer};
use tare_evidence::document::Document;
use tare_formats::Role as Weights;
use tare_model::Model;
use tare_ops::exact::log_sum;

use crate::LabError;
use crate::facts;
use crate::peers::PeerRunner;
use crate::reference::{self, best_of};
use crate::rig::Rig;

/// What gives the logits of every position of a sequence.
pub trait Logits {
    /// Gives position and logits of each token of `ids`, a sequence of its own, to `row`.
    ///
    /// # Errors
    /// When it refuses or fails, or does not give a row for every position.
    fn rows(&mut self, ids: &[u32], row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError>;
}

impl Logits for Engine {
    fn rows(&mut self, ids: &[u32], row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError> {
        reference::rows(self, ids.to_vec(), row)
    }
}

/// Another engine, and a file that its shim may write.
#[derive(Debug)]
pub struct PeerLogits<'a> {
    /// The engine.
    pub peer: &'a mut PeerRunner,
    /// The file; it is removed after each window.
    pub file: &'a Path,
}

impl Logits for PeerLogits<'_> {
    fn rows(&mut self, ids: &[u32], row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError> {
        self.peer.rows(ids, self.file, row)
    }
}

/// A text as ids, cut into windows that do not overlap; in each, all tokens but the first are scored.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Its ids.
    pub ids: &'a [u32],
    /// Tokens of a window, at least 2.
    pub window: usize,
}

impl Text<'_> {
    /// Gives number, target and logits of each scored token to `each`.
    fn score(&self, by: &mut dyn Logits, each: &mut dyn FnMut(usize, u32, &[f32])) -> Result<(), LabError> {
        let mut before = 0;
        for window in self.ids.chunks(self.window).filter(|w| w.len() > 1) {
            by.rows(window, &mut |at, logits| {
                if let Some(&target) = window.get(at + 1) {
                    each(before + at, target, logits);
                }
            })?;
            before += window.len() - 1;
        }
        Ok(())
    }
}

/// The distributions that all others are held against.
#[derive(Debug)]
pub struct Reference {
    logits: Vec<f32>,
    width: usize,
    log_sums: Vec<f64>,
    /// The negative logarithm of the probability of each scored token, in nats.
    pub nll: Vec<f64>,
}

/// An arm's scores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The negative logarithm of the probability of each scored token, in nats.
    pub nll: Vec<f64>,
    /// Divergence from the reference at each of them, in nats.
    pub kl: Vec<f64>,
    /// Those at which another token is the likeliest.
    pub other_best: Vec<u32>,
}

impl Reference {
    /// Scores `text` by `engine` and keeps all of its logits.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn of(text: Text<'_>, engine: &mut dyn Logits) -> Result<Self, LabError> {
        let mut all = Self { logits: Vec::new(), width: 0, log_sums: Vec::new(), nll: Vec::new() };
        text.score(engine, &mut |_, target, logits| {
            let sum = log_sum(logits);
            all.width = logits.len();
            all.logits.extend_from_slice(logits);
            all.log_sums.push(sum);
            all.nll.push(nats(sum - f64::from(logits[target as usize])));
        })?;
        Ok(all)
    }

    /// Scores the same text by another one.
    ///
    /// # Errors
    /// When it fails, or its vocabulary has another size.
    pub fn scores(&self, text: Text<'_>, by: &mut dyn Logits) -> Result<Scores, LabError> {
        let mut scores = Scores::default();
        let mut other_width = None;
        text.score(by, &mut |n, target, logits| {
            if logits.len() != self.width {
                return other_width = Some(logits.len());
            }
            let (p, q) = (&self.logits[n * self.width..][..self.width], logits);
            let (p_sum, q_sum) = (self.log_sums[n], log_sum(q));
            let part = |(&p, &q): (&f32, &f32)| {
                let (p, q) = (f64::from(p) - p_sum, f64::from(q) - q_sum);
                // A word that cannot come adds nothing, whatever the other says of it.
                if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
            };
            scores.nll.push(nats(q_sum - f64::from(q[target as usize])));
            scores.kl.push(nats(p.iter().zip(q).map(part).sum()));
            if best_of(p) != best_of(q) {
                scores.other_best.push(n as u32);
            }
        })?;
        match other_width {
            None => Ok(scores),
            Some(found) => {
                Err(LabError::Judge(format!("a vocabulary of {found} words where {} are scored", self.width)))
            }
        }
    }
}

/// Nats, to the billionth: more digits are noise. What rounding left below 0 is 0; what is no number stays none, and is refused
/// where figures are made of it.
fn nats(x: f64) -> f64 {
    if x.is_nan() { x } else { (x * 1e9).round().max(0.0) / 1e9 }
}

/// Who `engine`, which `rig` made, is in a document.
///
/// # Errors
/// When the model cannot be read.
pub fn scorer(rig: &Rig<'_>, engine: &Engine, label: &str) -> Result<Scorer, LabError> {
    Ok(Scorer {
        label: label.to_string(),
        class: rig.class.name.to_string(),
        file_format: rig.model.describe()?.format.to_string(),
        head_format: rig.model.weight(Weights::Head)?.format().to_string(),
        weights_values_sha256: rig.model.values_digest()?,
        peer: None,
        config: facts::config(rig, engine),
    })
}

/// Who `peer` is on the file of `model`.
///
/// # Errors
/// When the model cannot be read, or the engine declares no class.
pub fn peer_scorer(peer: &PeerRunner, model: &Model, label: &str) -> Result<Scorer, LabError> {
    Ok(Scorer {
        label: label.to_string(),
        class: peer.class()?.to_string(),
        file_format: model.describe()?.format.to_string(),
        head_format: model.weight(Weights::Head)?.format().to_string(),
        weights_values_sha256: model.values_digest()?,
        peer: Some(peer.identity()),
        config: json!({ "proof": peer.proof(), "reservations": peer.reservations() }),
    })
}

/// An arm of a document.
pub fn arm(scorer: Scorer, scores: Scores) -> ScoredArm {
    let Scores { nll, kl, other_best } = scores;
    ScoredArm { scorer, nll, kl, other_best }
}

/// Heads of the columns of [`rows`].
pub const HEAD: [&str; 9] =
    ["arm", "class", "weights", "head", "perplexity", "KL mean, nats", "+- of the mean", "KL p99", "same likeliest"];

/// A line for the reference and one for each arm.
pub fn rows(accuracy: &Accuracy) -> Vec<Vec<String>> {
    let who = |s: &Scorer| {
        let by = s.peer.as_ref().map(|p| format!(" ({} {})", p.name, p.version)).unwrap_or_default();
        vec![s.label.clone(), format!("{}{by}", s.class), s.file_format.clone(), s.head_format.clone()]
    };
    let (m, d) = (&accuracy.measured, &accuracy.derived);
    let none = || std::iter::repeat_n("-".to_string(), 4);
    let reference = who(&m.reference).into_iter().chain([format!("{:.4}", d.reference_perplexity)]).chain(none());
    let arm = |(arm, f): (&ScoredArm, &tare_evidence::accuracy::ArmFigures)| {
        let figures = [
            format!("{:.4}", f.perplexity),
            format!("{:.3e}", f.kl_mean),
            format!("{:.1e}", f.kl_standard_error),
            format!("{:.3e}", f.kl_p99),
            format!("{:.2} %", 100.0 * f.same_best),
        ];
        who(&arm.scorer).into_iter().chain(figures).collect::<Vec<String>>()
    };
    std::iter::once(reference.collect()).chain(m.arms.iter().zip(&d.arms).map(arm)).collect()
}

/// The document as a table in Markdown, with its id.
pub fn markdown(document: &Document<Accuracy>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let text = &document.body.measured.text;
    let head = line(HEAD.map(str::to_string).to_vec()) + &line(vec!["---".to_string(); HEAD.len()]);
    let body: String = rows(&document.body).into_iter().map(line).collect();
    let (scored, window) = (text.scored(), text.window);
    format!("{head}{body}\n{scored} tokens of {} in windows of {window}; accuracy {}\n", text.name, document.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the same rows whatever is asked, from the first on in each window.
    struct Rows(Vec<Vec<f32>>);

    impl Logits for Rows {
        fn rows(&mut self, ids: &[u32], row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError> {
            ids.iter().enumerate().for_each(|(at, _)| row(at, &self.0[at]));
            Ok(())
        }
    }

    #[test]
    fn what_is_no_number_is_no_perfect_score() {
        let text = Text { ids: &[0, 1, 0], window: 3 };
        let reference = Reference::of(text, &mut Rows(vec![vec![1.0, 0.0]; 3])).unwrap();
        for odd in [f32::NAN, f32::INFINITY] {
            let scores = reference.scores(text, &mut Rows(vec![vec![odd, 0.0]; 3])).unwrap();
            assert!(scores.nll[0].is_nan() && scores.kl[0].is_nan(), "{odd}: {scores:?}");
        }
        // A word that cannot come by the reference adds nothing.
        let sure = Reference::of(text, &mut Rows(vec![vec![1.0, f32::NEG_INFINITY]; 3])).unwrap();
        let scores = sure.scores(text, &mut Rows(vec![vec![1.0, f32::NEG_INFINITY]; 3])).unwrap();
        assert_eq!(scores.kl, [0.0; 2]);
    }

    #[test]
    fn divergence_is_that_of_the_distributions() {
        let text = Text { ids: &[0, 1, 0, 1, 1], window: 3 };
        // Odds of 3 to 1 and of 1 to 1; the last row of a window predicts nothing.
        let ln3 = 3f32.ln();
        let mut odds = Rows(vec![vec![ln3, 0.0], vec![7.0, 7.0], vec![9.0, 0.0]]);
        let reference = Reference::of(text, &mut odds).unwrap();
        let want = [4f64.ln(), 2f64.ln(), 4f64.ln()];
        assert!(reference.nll.len() == 3 && reference.nll.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-7));
        let own = reference.scores(text, &mut odds).unwrap();
        assert_eq!((own.kl, own.other_best, own.nll), (vec![0.0; 3], vec![], reference.nll.clone()));
        // Against even odds: 3/4 ln(3/2) + 1/4 ln(1/2).
        let even =
            reference.scores(text, &mut Rows(vec![vec![1.0, 1.0 + 1e-6], vec![7.0, 7.0], vec![0.0, 0.0]])).unwrap();
        let kl = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((even.kl[0] - kl).abs() < 1e-6 && even.kl[1] == 0.0, "{even:?}");
        assert_eq!(even.other_best, [0, 2], "another one is likeliest; of two equal ones the lower id counts");
        let wide = reference.scores(text, &mut Rows(vec![vec![0.0; 3]; 3])).unwrap_err().to_string();
        assert!(wide.contains("3 words where 2"), "{wide}");
    }
}
