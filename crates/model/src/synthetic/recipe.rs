//! What makes a synthetic model peaky: how large each weight is, and the few places that are not random.
//!
//! *Residual stream.* The embedding has unit variance. All attention blocks together add [`GROWTH`], and all MLPs
//! together the same, so that the stream grows by a factor of three however deep the model is.
//!
//! *Scores.* Query and key gains give attention scores a standard deviation of [`SCORE_SPREAD`] before the softmax:
//! over thousands of keys a head listens to a handful, another head to another handful.
//!
//! *Needles.* One token in sixteen is a needle: its key is louder than others by [`NEEDLE_SCORE`] for every query.
//! Columns 0..8 of the stream, the anchors, hold the same large value for every token, and columns 8..16 a large one
//! for needles alone; no block writes to them. Each query head reads the anchors, and each key head the needle
//! columns, into the pair of dimensions that turns slowest, so that it holds at any distance. Pages of 16 to 64 tokens
//! so have a needle each, give or take chance, and a page that is lost, swapped or stale is seen by some head.
//!
//! *Logits* have a standard deviation of [`LOGIT_SPREAD`]. The final norm's gains have random signs: with a tied head
//! the last token's own embedding would otherwise win every step.

use std::sync::Arc;
use tare_formats::{ModelConfig, Part, Role};

use super::stream::Stream;

/// Variance that all attention blocks add to the stream, and all MLPs again.
const GROWTH: f64 = 4.0;
/// Standard deviation of scores before the softmax.
const SCORE_SPREAD: f64 = 2.5;
/// How much louder a needle is.
const NEEDLE_SCORE: f64 = 4.0;
/// Standard deviation of logits.
const LOGIT_SPREAD: f64 = 3.0;
/// Root mean square of what attention and `silu(gate) * up` give for normal inputs.
const BLOCK_RMS: f64 = 0.6;
/// Rows that must not write to the marked columns of the stream are this much smaller.
const QUIET: f64 = 1.0 / 64.0;
/// A high element in standard deviations: a uniform one ends at sqrt(3), and the top sixteenth starts 1/8 below.
const HIGH: f64 = 1.732_050_8 * 15.0 / 16.0;
/// Marked columns: the first half are anchors, the second half tells needles apart.
pub(super) const MARKED: usize = 16;

/// What an element is instead of random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// In the top sixteenth of its range.
    High,
    /// In the middle sixteenth.
    Low,
}

/// How one tensor is made.
pub(super) struct Recipe {
    config: Arc<ModelConfig>,
    role: Role,
    seed: u64,
    /// Random words of the tensor's elements.
    pub(super) elements: Stream,
    /// Random words of its scales.
    pub(super) scales: Stream,
}

/// Whether `token` is a needle in models of `seed`.
pub fn is_needle(seed: u64, token: u32) -> bool {
    Stream::new(seed, "needles").word(u64::from(token)) >> 60 == 0
}

impl Recipe {
    /// The recipe of `role`.
    pub(super) fn new(config: Arc<ModelConfig>, role: Role, seed: u64) -> Self {
        let elements = Stream::new(seed, &role.to_string());
        let scales = Stream::new(seed, &format!("{role} scales"));
        Self { config, role, seed, elements, scales }
    }

    /// Name of the tensor.
    pub(super) fn name(&self) -> String {
        self.role.to_string()
    }

    /// Standard deviation of the elements of a row.
    pub(super) fn row_std(&self, row: usize) -> f64 {
        let c = &self.config;
        let per_input = |n: usize| 1.0 / (n as f64).sqrt();
        let block = (GROWTH / c.layers as f64).sqrt() / BLOCK_RMS;
        let quiet = if row < MARKED { QUIET } else { 1.0 };
        match self.role {
            Role::Layer { part: Part::Q | Part::K, .. } if !c.qk_norm => SCORE_SPREAD.sqrt() * per_input(c.hidden),
            Role::Layer { part: Part::O, .. } => quiet * block * per_input(c.heads * c.head_size),
            Role::Layer { part: Part::Down, .. } => quiet * block * per_input(c.ffn),
            Role::Layer { .. } => per_input(c.hidden),
            _ => 1.0,
        }
    }

    /// What the element at `row` and a column below [`MARKED`] is, when it is not random.
    pub(super) fn mark(&self, row: usize, col: usize) -> Option<Mark> {
        let anchor = col < MARKED / 2;
        let high = |is: bool| Some(if is { Mark::High } else { Mark::Low });
        let slowest = row % self.config.head_size == self.config.head_size / 2 - 1;
        match self.role {
            Role::Embed => high(anchor || is_needle(self.seed, row as u32)),
            Role::Layer { part: Part::Q, .. } => high(slowest && anchor),
            Role::Layer { part: Part::K, .. } => high(slowest && !anchor),
            Role::Layer { part: Part::V, .. } => high(false),
            _ => None,
        }
    }

    /// Gain of element `col` of a norm before its random spread; its sign is random when [`Recipe::signed`].
    pub(super) fn gain(&self, col: usize) -> f64 {
        let c = &self.config;
        match self.role {
            Role::FinalNorm if col < MARKED => 0.0,
            Role::FinalNorm => LOGIT_SPREAD / (c.hidden as f64).sqrt(),
            Role::Layer { layer, part: Part::AttnNorm } if col < MARKED => self.marked_gain(layer),
            Role::Layer { part: Part::QNorm | Part::KNorm, .. } => SCORE_SPREAD.sqrt(),
            _ => 1.0,
        }
    }

    /// Whether gains have random signs.
    pub(super) fn signed(&self) -> bool {
        self.role == Role::FinalNorm
    }

    /// The gain that gives needles their score at `layer`.
    ///
    /// A marked product sums MARKED / 2 terms, each of a high element of unit variance and one of variance 1 / D. The
    /// stream's growth has shrunk the embedding under the norm. The query's and the key's products are both `signal`,
    /// and `signal^2 * SCORE_SPREAD / sqrt(E)` is the score.
    fn marked_gain(&self, layer: usize) -> f64 {
        let c = &self.config;
        let signal = (NEEDLE_SCORE * (c.head_size as f64).sqrt() / SCORE_SPREAD).sqrt();
        let stream_rms = (1.0 + 2.0 * GROWTH * layer as f64 / c.layers as f64).sqrt();
        let product = HIGH * HIGH * (MARKED / 2) as f64 / (c.hidden as f64).sqrt();
        signal * stream_rms / product
    }
}
