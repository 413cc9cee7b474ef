//! The requests that a server is asked: drawn so that what it cached of others is known.

use anyhow::Result;
use tare_core::digest::sha256_hex;
use tare_lab::http_clock::Ask;
use tare_lab::{ClockedRequest, Lengths};

use crate::args::WorkArgs;
use crate::setup::read_ids;

/// Where prompts come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    /// Ids are drawn below this.
    pub(super) vocabulary: usize,
    /// Mixed into every seed, so that no prompt was ever seen before; none where one prompt is judged.
    pub(super) nonce: Option<u64>,
}

impl Source {
    /// The request of the warm-up and those of the rounds. With a nonce, each has a prompt and a prefix of its own, which
    /// no prefix cache knows, unless the prompt is given; without, all are the same.
    pub(super) fn requests(&self, work: &WorkArgs) -> Result<(ClockedRequest, Vec<ClockedRequest>)> {
        let given = work.ids.as_deref().map(read_ids).transpose()?;
        let prompt_tokens = given.as_ref().map_or(work.prompt_tokens, Vec::len);
        let lengths = Lengths { depth: work.depth, prompt_tokens, output_tokens: work.max_tokens };
        let of_round = |round: usize| -> Result<ClockedRequest> {
            let seed = self.nonce.map_or(work.seed, |nonce| mixed([work.seed, nonce, work.depth as u64, round as u64]));
            let mut request = ClockedRequest::drawn(lengths, self.vocabulary, seed)?;
            if let Some(ids) = &given {
                request.prompt.clone_from(ids);
            }
            Ok(request)
        };
        Ok((of_round(work.rounds)?, (0..work.rounds).map(of_round).collect::<Result<_>>()?))
    }
}

/// What the server is sent for a request.
pub(super) fn ask(request: &ClockedRequest) -> Ask {
    Ask { ids: request.input(), output_tokens: request.output_tokens }
}

/// A seed that differs wherever one of the numbers does.
fn mixed(numbers: [u64; 4]) -> u64 {
    let digest = sha256_hex(numbers.map(|n| n.to_string()).join(" ").as_bytes());
    digest.bytes().take(16).fold(0, |seed, digit| (seed << 4) | u64::from((digit as char).to_digit(16).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::PrefillLogits;

    fn all(source: &Source, depths: &[usize], ids: Option<std::path::PathBuf>) -> Vec<Vec<u32>> {
        let work = |&depth: &usize| WorkArgs {
            prompt_tokens: 6,
            max_tokens: 3,
            depth,
            rounds: 3,
            prefill_logits: PrefillLogits::Last,
            seed: 0,
            ids: ids.clone(),
        };
        let requests = depths.iter().map(work).map(|w| source.requests(&w).unwrap());
        requests.flat_map(|(warm_up, rounds)| [vec![warm_up], rounds].concat()).map(|r| r.input()).collect()
    }

    #[test]
    fn no_prompt_begins_as_another_one_that_was_ever_sent() {
        let source = |nonce| Source { vocabulary: 20_000, nonce: Some(nonce) };
        let (first, second) = (all(&source(1), &[8, 0], None), all(&source(2), &[8, 0], None));
        assert_eq!(first.len(), 8);
        let both: Vec<_> = first.iter().chain(&second).collect();
        for (i, a) in both.iter().enumerate() {
            for b in &both[i + 1..] {
                assert_ne!(a[..4], b[..4], "a prefix cache would answer for one of them");
            }
        }
        assert_eq!(first, all(&source(1), &[8, 0], None), "a nonce that is given gives the same prompts");
    }

    #[test]
    fn what_is_judged_is_one_prompt_and_what_is_given_is_sent() {
        let judged = all(&Source { vocabulary: 500, nonce: None }, &[4], None);
        assert!(judged.iter().all(|p| *p == judged[0]));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[7, 8]").unwrap();
        let given = all(&Source { vocabulary: 500, nonce: Some(3) }, &[0, 4], Some(file.path().to_path_buf()));
        assert!(given.iter().all(|p| p.ends_with(&[7, 8])), "{given:?}");
    }
}
