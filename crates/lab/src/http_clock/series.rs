//! What the times of one answer say, and what they do not.
//!
//! A chunk is not a token. Servers hold text back until a character is whole, and put several tokens into one chunk when
//! they are busy. Tokens are therefore what the server counts, or the ids it sends; times are those of chunks.

use serde::{Deserialize, Serialize};
use tare_core::Reading;

use super::client::Stream;

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// From before the request was written to the first chunk that brought a token. The chunk that only names the role
    /// brings none.
    pub ttft_ns: u64,
    /// To the first chunk of any kind.
    pub first_chunk_ns: u64,
    /// To the end of the stream.
    pub end_to_end_ns: u64,
    /// Chunks that brought tokens.
    pub chunks: u64,
    /// Between chunks that brought tokens, `[chunks - 1]`: the time to the first one is not among them.
    pub between_chunks_ns: Vec<u64>,
    /// Tokens in each of these chunks.
    pub tokens_in_chunks: Reading<Vec<u64>>,
    /// Tokens of the answer.
    pub tokens: Reading<u64>,
    /// Tokens after the first chunk: at least and at most. Equal when the server sent ids, or one chunk for each token.
    pub tokens_after_first_chunk: Reading<[u64; 2]>,
    /// Times between tokens, when each chunk brought exactly one.
    pub inter_token_ns: Reading<Vec<u64>>,
    /// Tokens of the prompt as the server counts them.
    pub prompt_tokens: Reading<u64>,
    /// Tokens of the prompt beyond the ids that were sent: the server's template and begin-of-text.
    pub template_tokens: Reading<i64>,
    /// Tokens of the prompt that the server found in its prefix cache.
    pub cached_tokens: Reading<u64>,
    /// The emitted ids.
    pub ids: Reading<Vec<u32>>,
    /// Why the answer ended.
    pub finish_reason: Reading<String>,
}

const NO_USAGE: &str = "the server sent no usage";
const NO_IDS: &str = "the server sends no token ids";

impl Round {
    /// The round of an answer to a prompt of `sent_ids` token ids; none when it was text. No answer at all has no round.
    pub(crate) fn of(stream: &Stream, sent_ids: Option<usize>) -> Option<Self> {
        let first_chunk_ns = stream.chunks.first()?.ns;
        let bearing: Vec<_> = stream.chunks.iter().filter(|s| s.chunk.has_tokens()).collect();
        let ttft_ns = bearing.first()?.ns;
        let chunks = bearing.len() as u64;
        let ids_of_chunks: Option<Vec<&Vec<u32>>> = bearing.iter().map(|s| s.chunk.ids.as_ref()).collect();
        let usage = |of: fn(super::wire::Usage) -> u64| stream.usage.map(of).map_or(none(NO_USAGE), Reading::Available);
        let counted = usage(|u| u.completion_tokens);
        let tokens_in_chunks: Reading<Vec<u64>> = match &ids_of_chunks {
            Some(all) => Reading::Available(all.iter().map(|ids| ids.len() as u64).collect()),
            None if counted.available() == Some(&chunks) => Reading::Available(vec![1; bearing.len()]),
            None => none(&match counted.available() {
                Some(n) => format!("{NO_IDS}; it counts {n} tokens and sent {chunks} chunks"),
                None => format!("{NO_IDS} and no usage"),
            }),
        };
        let tokens = match &ids_of_chunks {
            Some(all) => Reading::Available(all.iter().map(|ids| ids.len() as u64).sum()),
            None => counted,
        };
        let between: Vec<u64> = bearing.windows(2).map(|w| w[1].ns - w[0].ns).collect();
        let prompt_tokens = usage(|u| u.prompt_tokens);
        Some(Self {
            ttft_ns,
            first_chunk_ns,
            end_to_end_ns: stream.end_ns,
            chunks,
            tokens_after_first_chunk: after_first(&tokens_in_chunks, &tokens, chunks),
            inter_token_ns: inter_token(&tokens_in_chunks, &between),
            between_chunks_ns: between,
            tokens_in_chunks,
            tokens,
            template_tokens: match (sent_ids, &prompt_tokens) {
                (None, _) => none("the prompt went out as text"),
                (Some(sent), Reading::Available(n)) => Reading::Available(*n as i64 - sent as i64),
                (_, Reading::Unavailable { why }) => none(why),
            },
            prompt_tokens,
            cached_tokens: match stream.usage {
                Some(u) => u.cached_tokens.map_or(none("the server's usage does not say"), Reading::Available),
                None => none(NO_USAGE),
            },
            ids: ids_of_chunks
                .map_or(none(NO_IDS), |all| Reading::Available(all.into_iter().flatten().copied().collect())),
            finish_reason: stream.finish.clone().map_or(none("the server named none"), Reading::Available),
        })
    }

    /// From the first chunk with a token to the last.
    pub fn decode_ns(&self) -> u64 {
        self.between_chunks_ns.iter().sum()
    }

    /// Tokens per second after the first chunk: at least and at most.
    pub fn decode_rate_tokens_per_s(&self) -> Reading<[f64; 2]> {
        match (&self.tokens_after_first_chunk, self.decode_ns()) {
            (_, 0) => none("all tokens came at once"),
            (Reading::Available(n), ns) => Reading::Available(n.map(|n| n as f64 * 1e9 / ns as f64)),
            (Reading::Unavailable { why }, _) => none(why),
        }
    }
}

/// Every chunk brings a token or more, so that chunks are a lower bound, and the first brings at least one.
fn after_first(in_chunks: &Reading<Vec<u64>>, tokens: &Reading<u64>, chunks: u64) -> Reading<[u64; 2]> {
    match (in_chunks, tokens) {
        (Reading::Available(all), _) => Reading::Available([all.iter().skip(1).sum(); 2]),
        (_, Reading::Available(n)) => {
            let most = n.saturating_sub(1);
            Reading::Available([(chunks - 1).min(most), most])
        }
        (_, Reading::Unavailable { why }) => none(why),
    }
}

fn inter_token(in_chunks: &Reading<Vec<u64>>, between: &[u64]) -> Reading<Vec<u64>> {
    match in_chunks {
        Reading::Available(all) if all.iter().all(|n| *n == 1) => Reading::Available(between.to_vec()),
        Reading::Available(all) => {
            let several = all.iter().filter(|n| **n != 1).count();
            none(&format!("{several} of {} chunks brought more than one token", all.len()))
        }
        Reading::Unavailable { why } => none(why),
    }
}

fn none<T>(why: &str) -> Reading<T> {
    Reading::unavailable(why)
}

#[cfg(test)]
mod tests {
    use super::super::client::Stamped;
    use super::super::wire::{Chunk, Usage};
    use super::*;
    use std::time::Instant;

    fn stream(chunks: &[(u64, usize, Option<&[u32]>)], completion_tokens: Option<u64>) -> Stream {
        let stamped = |(ns, text_bytes, ids): &(u64, usize, Option<&[u32]>)| Stamped {
            ns: *ns,
            chunk: Chunk { text_bytes: *text_bytes, ids: ids.map(<[u32]>::to_vec), ..Chunk::default() },
        };
        Stream {
            start: Instant::now(),
            chunks: chunks.iter().map(stamped).collect(),
            end_ns: 100,
            usage: completion_tokens.map(|n| Usage { prompt_tokens: 9, completion_tokens: n, cached_tokens: None }),
            finish: None,
        }
    }

    #[test]
    fn the_role_chunk_is_not_the_first_token_and_the_first_token_is_not_between_tokens() {
        let r = Round::of(
            &stream(&[(5, 0, None), (40, 1, None), (50, 1, None), (65, 1, None), (66, 0, None)], Some(3)),
            Some(7),
        )
        .unwrap();
        assert_eq!((r.first_chunk_ns, r.ttft_ns, r.chunks), (5, 40, 3));
        assert_eq!(r.between_chunks_ns, [10, 15]);
        assert_eq!(r.inter_token_ns, Reading::Available(vec![10, 15]));
        assert_eq!(r.template_tokens, Reading::Available(2));
    }

    #[test]
    fn several_tokens_in_a_chunk_are_counted_and_never_guessed() {
        let r = Round::of(&stream(&[(10, 3, None), (20, 5, None)], Some(6)), None).unwrap();
        assert_eq!((r.chunks, &r.tokens), (2, &Reading::Available(6)));
        assert_eq!(r.tokens_after_first_chunk, Reading::Available([1, 5]));
        assert!(r.inter_token_ns.available().is_none() && r.tokens_in_chunks.available().is_none());
        let r = Round::of(&stream(&[(10, 3, Some(&[1, 2])), (20, 5, Some(&[3, 4, 5, 6]))], Some(6)), None).unwrap();
        assert_eq!(r.tokens_after_first_chunk, Reading::Available([4, 4]));
        assert_eq!(r.decode_rate_tokens_per_s(), Reading::Available([4e8; 2]));
        assert_eq!(r.ids, Reading::Available(vec![1, 2, 3, 4, 5, 6]));
    }

    #[test]
    fn without_usage_and_ids_nobody_knows_the_tokens() {
        let r = Round::of(&stream(&[(10, 3, None), (20, 5, None)], None), Some(7)).unwrap();
        for unknown in [r.tokens.available().is_none(), r.decode_rate_tokens_per_s().available().is_none()] {
            assert!(unknown);
        }
        assert_eq!(r.between_chunks_ns, [10], "what was seen is kept");
    }

    #[test]
    fn an_answer_without_a_token_is_no_round() {
        assert!(Round::of(&stream(&[(5, 0, None)], Some(0)), None).is_none());
    }
}
