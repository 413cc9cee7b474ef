//! What a packing, an arithmetic class or another engine costs in accuracy on a text: perplexity, and the Kullback-Leibler
//! divergence from the model in F32, token by token.
//!
//! A text is cut into windows that do not overlap. In each, every token but the first is scored from those of its window
//! before it.

use crate::check;
use crate::document::{Body, Document, Kind};
use crate::identity::Peer;
use crate::record::About;
use crate::shelf::Shelf;
use crate::stats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use tare_core::Fault;

/// What was scored, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// What was scored.
    pub measured: AccuracyMeasured,
    /// What follows from it.
    pub derived: AccuracyFigures,
}

/// What was scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccuracyMeasured {
    /// The text.
    pub text: ScoredText,
    /// The model as it was given, in class f32: from its distributions all others are held to stray.
    pub reference: Scorer,
    /// The negative logarithm of the reference's probability of each scored token, in nats.
    pub reference_nll: Vec<f64>,
    /// Packings, classes and engines.
    pub arms: Vec<ScoredArm>,
}

/// A text, as ids of the model's vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoredText {
    /// Name of its file.
    pub name: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Canonical digest of the list of its ids.
    pub ids_sha256: String,
    /// How many ids it has.
    pub tokens: u32,
    /// Tokens of a window; the last one may be shorter.
    pub window: u32,
}

impl ScoredText {
    /// Tokens that are scored: all but the first of each window.
    pub fn scored(&self) -> usize {
        (self.tokens - self.tokens.div_ceil(self.window.max(1))) as usize
    }
}

/// Who gave the probabilities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scorer {
    /// Its name in the document.
    pub label: String,
    /// Arithmetic class.
    pub class: String,
    /// Format of most weights of the file.
    pub file_format: String,
    /// Format of the output head.
    pub head_format: String,
    /// Digest of the packed values, as a record's `work` has it.
    pub weights_values_sha256: String,
    /// Another engine; none where it is tare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// The configuration that ran: plan, threads, levels, kernels; of another engine the lines of its log.
    pub config: Value,
}

/// One arm: the same tokens from other weights, other arithmetic or another engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoredArm {
    /// Who.
    pub scorer: Scorer,
    /// The negative logarithm of its probability of each scored token, in nats.
    pub nll: Vec<f64>,
    /// Kullback-Leibler divergence of its distribution from the reference's at each place, `sum(p * ln(p / q))` with `p` the
    /// reference's, in nats.
    pub kl: Vec<f64>,
    /// Places, from 0, at which another token than the reference's is the likeliest.
    pub other_best: Vec<u32>,
}

/// Every figure of an accuracy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccuracyFigures {
    /// Tokens that were scored.
    pub scored: u32,
    /// The reference's perplexity: the exponential of its mean.
    pub reference_perplexity: f64,
    /// One for each arm, in their order.
    pub arms: Vec<ArmFigures>,
}

/// The figures of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmFigures {
    /// Its name.
    pub label: String,
    /// The exponential of the mean of its negative log-probabilities.
    pub perplexity: f64,
    /// Mean divergence, in nats.
    pub kl_mean: f64,
    /// Standard deviation of the divergence over the root of the tokens: that of the mean if tokens were independent.
    pub kl_standard_error: f64,
    /// 99th percentile of the divergence, nearest rank.
    pub kl_p99: f64,
    /// Largest divergence.
    pub kl_largest: f64,
    /// Share of places whose likeliest token is the reference's.
    pub same_best: f64,
}

impl Accuracy {
    /// An accuracy with its figures.
    ///
    /// # Errors
    /// When nothing was scored, or an arm has not a value for every token.
    pub fn of(measured: AccuracyMeasured) -> Result<Self, Fault> {
        let derived = figures(&measured)?;
        Ok(Self { measured, derived })
    }
}

fn figures(m: &AccuracyMeasured) -> Result<AccuracyFigures, Fault> {
    let scored = m.text.scored();
    let counted = |at: String, values: &[f64]| {
        let fits = scored > 0 && values.len() == scored && values.iter().all(|v| v.is_finite() && *v >= 0.0);
        let found = || format!("{} values", values.len());
        if fits {
            Ok(())
        } else {
            Err(Fault::new(at, format!("a value of 0 or more for each of {scored} tokens"), found()))
        }
    };
    let perplexity = |nll: &[f64]| (nll.iter().sum::<f64>() / nll.len() as f64).exp();
    counted("reference_nll".into(), &m.reference_nll)?;
    let arm = |arm: &ScoredArm| {
        let label = &arm.scorer.label;
        counted(format!("arms: {label}: nll"), &arm.nll)?;
        counted(format!("arms: {label}: kl"), &arm.kl)?;
        let few = || Fault::new(format!("arms: {label}: kl"), "at least 2 values", "fewer");
        Ok(ArmFigures {
            label: label.clone(),
            perplexity: perplexity(&arm.nll),
            kl_mean: arm.kl.iter().sum::<f64>() / scored as f64,
            kl_standard_error: stats::standard_deviation(&arm.kl).ok_or_else(few)? / (scored as f64).sqrt(),
            kl_p99: stats::nearest_rank(&arm.kl, 0.99).ok_or_else(few)?,
            kl_largest: stats::nearest_rank(&arm.kl, 1.0).ok_or_else(few)?,
            same_best: 1.0 - arm.other_best.len() as f64 / scored as f64,
        })
    };
    Ok(AccuracyFigures {
        scored: scored as u32,
        reference_perplexity: perplexity(&m.reference_nll),
        arms: m.arms.iter().map(arm).collect::<Result<_, Fault>>()?,
    })
}

impl Body for Accuracy {
    const KIND: Kind = Kind::Accuracy;

    fn faults(&self, _about: &About) -> Vec<Fault> {
        let m = &self.measured;
        let mut faults = Vec::new();
        if m.text.window < 2 {
            faults.push(Fault::new("text.window", "at least 2 tokens", m.text.window.to_string()));
        }
        if m.reference.class != "f32" || m.reference.peer.is_some() {
            faults.push(Fault::new("reference", "tare in class f32", m.reference.class.as_str()));
        }
        let labels: BTreeSet<&str> = m.arms.iter().map(|a| a.scorer.label.as_str()).collect();
        if labels.len() != m.arms.len() || m.arms.is_empty() {
            faults.push(Fault::new("arms", "at least one, and of each label one", format!("{labels:?}")));
        }
        for arm in &m.arms {
            let inside = arm.other_best.iter().all(|&at| (at as usize) < m.text.scored());
            if !inside || !arm.other_best.is_sorted_by(|a, b| a < b) {
                let at = format!("arms: {}: other_best", arm.scorer.label);
                faults.push(Fault::new(at, "places of scored tokens, each once and in order", "others"));
            }
        }
        check::follows("derived", figures(m), &self.derived, &mut faults);
        faults
    }

    /// It rests on no other file: everything that its figures follow from is in it.
    fn faults_in(_document: &Document<Self>, _shelf: &Shelf) -> Vec<Fault> {
        Vec::new()
    }
}
