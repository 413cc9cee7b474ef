//! The figures of several rounds of one request.

use serde::{Deserialize, Serialize};
use tare_core::Reading;
use tare_evidence::derive::{Percentiles, Spread};
use tare_evidence::stats;

use super::series::Round;

/// What rounds have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Time to the first token, the network and the client's own time included.
    pub ttft_ns: Spread,
    /// To the end of the stream.
    pub end_to_end_ns: Spread,
    /// Tokens of the prompt that the server did not find in its cache / TTFT.
    pub prompt_rate_tokens_per_s: Reading<Spread>,
    /// Tokens after the first chunk / time from the first chunk to the last: at least.
    pub decode_rate_at_least_tokens_per_s: Reading<Spread>,
    /// The same, at most. Equal where it is known how many tokens the first chunk brought.
    pub decode_rate_at_most_tokens_per_s: Reading<Spread>,
    /// Times between chunks, of all rounds together.
    pub between_chunks_ns: Reading<Percentiles>,
    /// Times between tokens, of all rounds together, when each chunk brought one.
    pub inter_token_ns: Reading<Percentiles>,
}

impl Figures {
    /// The figures of `rounds`; none without a round.
    pub fn of(rounds: &[Round]) -> Option<Self> {
        let ns = |of: fn(&Round) -> u64| spread(&rounds.iter().map(|r| of(r) as f64).collect::<Vec<_>>());
        let rate = |end: usize| all(rounds.iter().map(|r| r.decode_rate_tokens_per_s().map(|ends| ends[end])));
        let inter_token = all(rounds.iter().map(|r| r.inter_token_ns.clone()));
        Some(Self {
            ttft_ns: ns(|r| r.ttft_ns)?,
            end_to_end_ns: ns(|r| r.end_to_end_ns)?,
            prompt_rate_tokens_per_s: spread_of(all(rounds.iter().map(prompt_rate))),
            decode_rate_at_least_tokens_per_s: spread_of(rate(0)),
            decode_rate_at_most_tokens_per_s: spread_of(rate(1)),
            between_chunks_ns: percentiles(rounds.iter().map(|r| &r.between_chunks_ns)),
            inter_token_ns: match inter_token {
                Reading::Available(all) => percentiles(all.iter()),
                Reading::Unavailable { why } => Reading::unavailable(why),
            },
        })
    }
}

/// Unknown where the server does not say what it found in its cache: a client cannot know what others asked before.
fn prompt_rate(round: &Round) -> Reading<f64> {
    match &round.cached_tokens {
        Reading::Available(cached) => {
            round.prompt_tokens.clone().map(|n| n.saturating_sub(*cached) as f64 * 1e9 / round.ttft_ns as f64)
        }
        Reading::Unavailable { why } => Reading::unavailable(format!("cached tokens are unknown: {why}")),
    }
}

/// All values, or why the first missing one is missing.
fn all<T>(readings: impl Iterator<Item = Reading<T>>) -> Reading<Vec<T>> {
    let mut values = Vec::new();
    for reading in readings {
        match reading {
            Reading::Available(v) => values.push(v),
            Reading::Unavailable { why } => return Reading::unavailable(why),
        }
    }
    Reading::Available(values)
}

fn spread_of(values: Reading<Vec<f64>>) -> Reading<Spread> {
    match values {
        Reading::Available(v) => spread(&v).map_or_else(|| Reading::unavailable("no round"), Reading::Available),
        Reading::Unavailable { why } => Reading::unavailable(why),
    }
}

fn spread(values: &[f64]) -> Option<Spread> {
    Some(Spread {
        median: stats::median(values)?,
        mad: stats::mad(values)?,
        min: values.iter().copied().reduce(f64::min)?,
        max: values.iter().copied().reduce(f64::max)?,
    })
}

fn percentiles<'a>(series: impl Iterator<Item = &'a Vec<u64>>) -> Reading<Percentiles> {
    let all: Vec<f64> = series.flatten().map(|&ns| ns as f64).collect();
    let at = |p| stats::nearest_rank(&all, p);
    match (at(0.5), at(0.9), at(0.95), at(0.99), at(1.0)) {
        (Some(p50), Some(p90), Some(p95), Some(p99), Some(max)) => {
            Reading::Available(Percentiles { p50, p90, p95, p99, max })
        }
        _ => Reading::unavailable("every answer came in one chunk"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ttft_ns: u64, cached: Reading<u64>) -> Round {
        Round {
            ttft_ns,
            first_chunk_ns: 1,
            end_to_end_ns: ttft_ns + 30,
            chunks: 3,
            between_chunks_ns: vec![10, 20],
            tokens_in_chunks: Reading::Available(vec![1, 1, 1]),
            tokens: Reading::Available(3),
            tokens_after_first_chunk: Reading::Available([2, 2]),
            inter_token_ns: Reading::Available(vec![10, 20]),
            prompt_tokens: Reading::Available(100),
            template_tokens: Reading::Available(0),
            cached_tokens: cached,
            ids: Reading::unavailable("none"),
            finish_reason: Reading::unavailable("none"),
        }
    }

    #[test]
    fn cached_tokens_were_not_prefilled() {
        let rate = |cached: &[Reading<u64>]| {
            let rounds: Vec<Round> = cached.iter().map(|c| round(1000, c.clone())).collect();
            Figures::of(&rounds).unwrap().prompt_rate_tokens_per_s.map(|s| s.median)
        };
        let (told, silent) = (Reading::Available(60), Reading::unavailable("silent"));
        assert_eq!(rate(std::slice::from_ref(&told)), Reading::Available(40.0 * 1e6));
        for unknown in [vec![silent.clone()], vec![told, silent]] {
            let rate = rate(&unknown);
            assert!(matches!(&rate, Reading::Unavailable { why } if why.contains("silent")), "{rate:?}");
        }
    }

    #[test]
    fn one_unknown_round_leaves_a_figure_unknown() {
        let unknown = Round { inter_token_ns: Reading::unavailable("two in one"), ..round(9, Reading::Available(0)) };
        let f = Figures::of(&[round(5, Reading::Available(0)), unknown]).unwrap();
        assert_eq!(f.inter_token_ns, Reading::unavailable("two in one"));
        assert_eq!(f.between_chunks_ns.available().unwrap().max, 20.0);
        assert_eq!((f.ttft_ns.min, f.ttft_ns.max), (5.0, 9.0));
        assert!(Figures::of(&[]).is_none());
    }
}
