//! The request that is weighed: which tokens go in, how many come out, at what depth.

use serde::{Deserialize, Serialize};
use tare_core::Fault;
use tare_engine::{PromptLogits, Request};

/// A request of exact length: the end-of-sequence rule is `ignore`, sampling is greedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockedRequest {
    /// Tokens that are in the cache before the clock starts; empty at depth 0.
    pub prefix: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens to draw; the first belongs to prefill.
    pub output_tokens: usize,
    /// Whether every prompt position goes through the head, or the last alone.
    pub all_prompt_logits: bool,
}

impl ClockedRequest {
    /// A request of drawn tokens: ids are a function of (seed, index), spread over the vocabulary.
    ///
    /// # Errors
    /// When a length is 0 or the vocabulary is too small to draw from.
    pub fn drawn(lengths: Lengths, vocabulary: usize, seed: u64) -> Result<Self, Fault> {
        lengths.check(vocabulary)?;
        Ok(lengths.request(0, vocabulary, seed))
    }

    /// `sequences` requests of the same lengths, which run together: their tokens follow each other in what the seed
    /// draws, and the first of them is [`ClockedRequest::drawn`].
    ///
    /// # Errors
    /// As [`ClockedRequest::drawn`], or when there are no sequences.
    pub fn drawn_together(
        lengths: Lengths,
        sequences: usize,
        vocabulary: usize,
        seed: u64,
    ) -> Result<Vec<Self>, Fault> {
        lengths.check(vocabulary)?;
        if sequences == 0 {
            return Err(Fault::new("sequences", "at least 1", "0"));
        }
        Ok((0..sequences).map(|n| lengths.request(n, vocabulary, seed)).collect())
    }

    /// The request as the engine takes it, prefix and prompt in one.
    pub fn greedy(&self) -> Request {
        Request {
            prompt_logits: if self.all_prompt_logits { PromptLogits::All } else { PromptLogits::Last },
            ..Request::greedy(self.input(), self.output_tokens)
        }
    }

    /// Prefix and prompt.
    pub fn input(&self) -> Vec<u32> {
        self.prefix.iter().chain(&self.prompt).copied().collect()
    }

    /// Tokens of the sequence when it is finished.
    pub fn total_tokens(&self) -> usize {
        self.prefix.len() + self.prompt.len() + self.output_tokens
    }
}

/// Lengths of a [`ClockedRequest`] in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    /// Already cached.
    pub depth: usize,
    /// In the prompt.
    pub prompt_tokens: usize,
    /// To draw.
    pub output_tokens: usize,
}

impl Lengths {
    fn check(&self, vocabulary: usize) -> Result<(), Fault> {
        let Self { prompt_tokens, output_tokens, .. } = *self;
        if prompt_tokens == 0 || output_tokens < 2 {
            return Err(Fault::new(
                "request",
                "at least 1 prompt token and 2 output tokens, since the first output token belongs to prefill",
                format!("{prompt_tokens} and {output_tokens}"),
            ));
        }
        if vocabulary < 4 {
            return Err(Fault::new("vocabulary", "at least 4 tokens", vocabulary.to_string()));
        }
        Ok(())
    }

    /// Request `n` of those that `seed` draws.
    fn request(&self, n: usize, vocabulary: usize, seed: u64) -> ClockedRequest {
        let Self { depth, prompt_tokens, output_tokens } = *self;
        let each = depth + prompt_tokens;
        let mut ids = (n * each..(n + 1) * each).map(|i| (mix(seed, i as u64) % vocabulary as u64) as u32);
        let prefix = ids.by_ref().take(depth).collect();
        ClockedRequest { prefix, prompt: ids.collect(), output_tokens, all_prompt_logits: false }
    }
}

/// A list of which most have one: written as that one alone. A reader that knows one alone refuses more.
pub(crate) mod one_or_more {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(all: &[T], out: S) -> Result<S::Ok, S::Error> {
        match all {
            [one] => one.serialize(out),
            more => more.serialize(out),
        }
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<T> {
            More(Vec<T>),
            One(T),
        }
        Ok(match Written::deserialize(from)? {
            Written::One(one) => vec![one],
            Written::More(all) => all,
        })
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014) as a function of a counter.
pub(crate) fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_depend_on_seed_and_place_alone() {
        let of = |depth, prompt_tokens, seed| {
            ClockedRequest::drawn(Lengths { depth, prompt_tokens, output_tokens: 2 }, 1000, seed).unwrap()
        };
        let a = of(0, 8, 1);
        assert_eq!(a, of(0, 8, 1));
        assert_ne!(a.prompt, of(0, 8, 2).prompt);
        let b = of(3, 5, 1);
        assert_eq!(b.input(), a.prompt, "depth only says where the prompt begins");
        assert_eq!((b.prefix.len(), b.total_tokens()), (3, 10));
        assert!(a.prompt.iter().all(|t| *t < 1000));
    }

    #[test]
    fn sequences_that_run_together_have_other_tokens_and_the_first_is_the_one_that_runs_alone() {
        let lengths = Lengths { depth: 3, prompt_tokens: 5, output_tokens: 2 };
        let all = ClockedRequest::drawn_together(lengths, 3, 1000, 1).unwrap();
        assert_eq!(all[0], ClockedRequest::drawn(lengths, 1000, 1).unwrap());
        let inputs: Vec<Vec<u32>> = all.iter().map(ClockedRequest::input).collect();
        assert!(inputs.iter().all(|i| i.len() == 8) && all.iter().all(|r| r.prefix.len() == 3));
        assert!(inputs[0] != inputs[1] && inputs[1] != inputs[2] && inputs[0] != inputs[2]);
        assert!(ClockedRequest::drawn_together(lengths, 0, 1000, 1).is_err());
    }

    #[test]
    fn one_output_token_has_no_decode_to_weigh() {
        let e = ClockedRequest::drawn(Lengths { depth: 0, prompt_tokens: 4, output_tokens: 1 }, 1000, 0).unwrap_err();
        assert!(e.to_string().contains("belongs to prefill"));
    }
}
