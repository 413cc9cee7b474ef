//! Scores of a sequence by an engine that sees all of it at once: what emitted tokens are judged by.
//!
//! Computing them is the larger part of a gate, and they depend on nothing but the weights' values, the tokens, the
//! class and the code that scores. They are therefore kept in a folder under the digest of those four. The code is told
//! by the digest of the binary: a kernel that was mended is never judged by scores from before.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tare_core::digest::sha256_hex;
use tare_engine::{Engine, Event, PromptLogits, Request};
use tare_ops::exact::log_sum;

use crate::LabError;

/// Changed when the meaning of [`Score`] or of the key changes.
const VERSION: u32 = 2;

/// What the reference says about one emitted token, given everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The emitted token.
    pub token: u32,
    /// Its logit.
    pub logit: f32,
    /// The most likely token; the lower id on a tie.
    pub best: u32,
    /// Its logit.
    pub best_logit: f32,
    /// The second largest logit.
    pub second_logit: f32,
    /// Natural logarithm of the sum of exponentials, in F64: `logit - log_sum` is the log-probability.
    pub log_sum: f64,
}

/// Scores of the emitted tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    version: u32,
    weights_values_sha256: String,
    class: String,
    ids_sha256: String,
    scores: Vec<Score>,
    scores_sha256: String,
}

/// A folder of scores.
#[derive(Clone, Debug)]
pub struct ReferenceStore {
    kept: Option<(PathBuf, String)>,
}

/// What is scored.
#[derive(Clone, Copy, Debug)]
pub struct Scoring<'a> {
    /// Digest of the weights' values.
    pub weights_values_sha256: &'a str,
    /// Name of the class in which it is scored.
    pub class: &'a str,
    /// Prefix and prompt.
    pub input: &'a [u32],
    /// The tokens drawn.
    pub emitted: &'a [u32],
}

impl ReferenceStore {
    /// Scores kept in `folder` for the build whose binary has the digest `build`.
    pub fn at(folder: PathBuf, build: &str) -> Self {
        Self { kept: Some((folder, build.to_string())) }
    }

    /// Nothing is kept: every score is computed anew.
    pub fn none() -> Self {
        Self { kept: None }
    }

    /// The scores: read when they are kept and intact, computed by `judge` otherwise. Says which.
    ///
    /// # Errors
    /// When the judge cannot be made or fails. A store that cannot be written is not an error: the scores are right.
    pub fn scores(
        &self,
        what: Scoring<'_>,
        judge: impl FnOnce() -> Result<Engine, LabError>,
    ) -> Result<(Vec<Score>, bool), LabError> {
        let ids: Vec<u32> = what.input.iter().chain(what.emitted).copied().collect();
        let bytes: Vec<u8> = ids.iter().flat_map(|t| t.to_le_bytes()).collect();
        let ids_sha256 = sha256_hex(&bytes);
        let what_for = format!("{} {} {ids_sha256} {}", what.weights_values_sha256, what.class, what.input.len());
        let path = self.kept.as_ref().map(|(folder, build)| {
            let key = format!("{VERSION} {build} {what_for}");
            folder.join(format!("{}.json", sha256_hex(key.as_bytes())))
        });
        if let Some(scores) = path.as_deref().and_then(|p| read(p, what.emitted)) {
            return Ok((scores, true));
        }
        let scores = score(&mut judge()?, what.input, what.emitted)?;
        if let Some(p) = path {
            let kept = Kept {
                version: VERSION,
                weights_values_sha256: what.weights_values_sha256.to_string(),
                class: what.class.to_string(),
                ids_sha256,
                scores_sha256: digest(&scores),
                scores: scores.clone(),
            };
            write(&p, &kept);
        }
        Ok((scores, false))
    }
}

fn digest(scores: &[Score]) -> String {
    sha256_hex(serde_json::to_string(scores).unwrap_or_default().as_bytes())
}

fn read(path: &Path, emitted: &[u32]) -> Option<Vec<Score>> {
    let kept: Kept = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let same = kept.scores.iter().map(|s| s.token).eq(emitted.iter().copied());
    (same && kept.version == VERSION && digest(&kept.scores) == kept.scores_sha256).then_some(kept.scores)
}

fn write(path: &Path, kept: &Kept) {
    let temp = path.with_extension(format!("{}.part", std::process::id()));
    let done = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&temp, serde_json::to_vec(kept).unwrap_or_default()))
        .and_then(|()| std::fs::rename(&temp, path));
    if done.is_err() {
        drop(std::fs::remove_file(&temp));
    }
}

/// Runs `ids` through `engine` in one pass, and gives position and logits of each to `row`.
///
/// # Errors
/// When the engine refuses or fails, or does not give a row for every position.
pub fn rows(engine: &mut Engine, ids: Vec<u32>, row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError> {
    let (positions, mut given) = (ids.len(), 0);
    engine.submit(Request { prompt_logits: PromptLogits::All, ..Request::greedy(ids, 0) })?;
    while engine.has_work() {
        for event in engine.step()?.events {
            if let Event::PromptLogits { first_position, logits, .. } = event {
                logits.iter().enumerate().for_each(|(i, l)| row(first_position + i, l));
                given += logits.len();
            }
        }
    }
    if given == positions {
        Ok(())
    } else {
        Err(LabError::Judge(format!("{given} of {positions} positions were given")))
    }
}

/// Scores `emitted` after `input` with one pass of `judge`.
///
/// # Errors
/// When the judge refuses or fails, or does not give a row for every position.
pub fn score(judge: &mut Engine, input: &[u32], emitted: &[u32]) -> Result<Vec<Score>, LabError> {
    let Some((last, before)) = emitted.split_last() else { return Ok(Vec::new()) };
    let ids: Vec<u32> = input.iter().chain(before).copied().collect();
    let targets: Vec<u32> = before.iter().chain([last]).copied().collect();
    let mut scores = Vec::with_capacity(targets.len());
    rows(judge, ids, &mut |position, row| {
        if let Some(n) = (position + 1).checked_sub(input.len()) {
            scores.push(score_row(row, targets[n]));
        }
    })?;
    if scores.len() == targets.len() {
        Ok(scores)
    } else {
        Err(LabError::Judge(format!("{} of {} positions were scored", scores.len(), targets.len())))
    }
}

fn score_row(logits: &[f32], token: u32) -> Score {
    let mut best = 0;
    let mut second = f32::NEG_INFINITY;
    for (i, &l) in logits.iter().enumerate().skip(1) {
        if l > logits[best] {
            second = logits[best];
            best = i;
        } else if l > second {
            second = l;
        }
    }
    Score {
        token,
        logit: logits[token as usize],
        best: best as u32,
        best_logit: logits[best],
        second_logit: second,
        log_sum: log_sum(logits),
    }
}

/// The likeliest token, the lower id on a tie.
pub(crate) fn best_of(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_scored_with_its_runner_up() {
        let s = score_row(&[1.0, 3.0, 2.0, 3.0], 2);
        assert_eq!((s.best, s.best_logit, s.second_logit, s.logit), (1, 3.0, 3.0, 2.0));
        let sum = 1f64.exp() + 2.0 * 3f64.exp() + 2f64.exp();
        assert!((s.log_sum - sum.ln()).abs() < 1e-12);
        assert_eq!(score_row(&[5.0, 1.0], 1).second_logit, 1.0);
    }

    #[test]
    fn a_spoiled_file_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.json");
        let scores = vec![score_row(&[0.5, 2.0], 1)];
        let kept = Kept {
            version: VERSION,
            weights_values_sha256: "w".into(),
            class: "f32".into(),
            ids_sha256: "i".into(),
            scores_sha256: digest(&scores),
            scores: scores.clone(),
        };
        write(&path, &kept);
        assert_eq!(read(&path, &[1]), Some(scores));
        assert_eq!(read(&path, &[0]), None, "scores of another token");
        let edited = std::fs::read_to_string(&path).unwrap().replace("\"logit\":2.0", "\"logit\":2.5");
        std::fs::write(&path, edited).unwrap();
        assert_eq!(read(&path, &[1]), None, "an edited score");
    }
}
