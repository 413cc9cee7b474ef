//! One request on its way: its tokens, how the next one is drawn, and when it is over.

use std::sync::Arc;
use tare_ops::{RowOutput, Sampler, SamplingParams};

use crate::request::{Constraint, Event, FinishReason, PromptLogits, Request, RequestId, Usage};

/// A request that waits or runs.
pub(crate) struct Sequence {
    id: RequestId,
    /// Prompt, then output.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    max_tokens: usize,
    params: Arc<SamplingParams>,
    seed: u64,
    /// The prompt once more, shared with samplers; empty when they do not look at it.
    history: Arc<[u32]>,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    /// All tokens but stop tokens; none when stop tokens are never held back.
    without_stops: Option<Arc<[u32]>>,
    constraint: Option<Box<dyn Constraint>>,
    prompt_logits: PromptLogits,
    token_logits: bool,
    retain: bool,
    cached_tokens: usize,
}

impl Sequence {
    /// A request that was found fit to run over a vocabulary of `vocabulary` tokens.
    pub(crate) fn new(id: RequestId, r: Request, vocabulary: usize) -> Self {
        let holds_stops = r.min_tokens > 0 && !r.stop_tokens.is_empty();
        Self {
            id,
            prompt_tokens: r.prompt.len(),
            max_tokens: r.max_tokens,
            history: if r.sampling.needs_history() { r.prompt.as_slice().into() } else { Arc::from([]) },
            tokens: r.prompt,
            params: Arc::new(r.sampling),
            seed: r.seed,
            without_stops: holds_stops.then(|| all_but(&r.stop_tokens, vocabulary)),
            stop_tokens: r.stop_tokens,
            min_tokens: r.min_tokens,
            constraint: r.constraint,
            prompt_logits: r.prompt_logits,
            token_logits: r.token_logits,
            retain: r.retain,
            cached_tokens: 0,
        }
    }

    /// Whose it is.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Prompt and output so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether storage is to be kept at the end.
    pub(crate) fn retains(&self) -> bool {
        self.retain
    }

    /// Whether the token's logits are to be given out.
    pub(crate) fn wants_token_logits(&self) -> bool {
        self.token_logits
    }

    /// Whether anything is drawn at all.
    pub(crate) fn draws(&self) -> bool {
        self.max_tokens > 0
    }

    /// Whether the logits at `position` are to be given out as prompt logits.
    pub(crate) fn reports(&self, position: usize) -> bool {
        position < self.prompt_tokens
            && match self.prompt_logits {
                PromptLogits::All => true,
                PromptLogits::Last => !self.draws(),
            }
    }

    /// Tells how many tokens of the prompt came from a resumed sequence.
    pub(crate) fn set_cached_tokens(&mut self, tokens: usize) {
        self.cached_tokens = tokens;
    }

    /// Tokens in and out so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens(),
        }
    }

    fn output_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// The state with which the next token is drawn.
    pub(crate) fn sampler(&mut self) -> Sampler {
        let output = if self.params.needs_history() { self.tokens[self.prompt_tokens..].to_vec() } else { Vec::new() };
        Sampler {
            params: Arc::clone(&self.params),
            seed: self.seed,
            index: u32::try_from(self.output_tokens()).unwrap_or(u32::MAX),
            prompt: Arc::clone(&self.history),
            output,
            allowed: self.allowed(),
        }
    }

    /// The tokens that may be drawn: those of the constraint, without stop tokens while it is too early for them.
    /// Where a constraint leaves nothing but stop tokens, it wins.
    fn allowed(&mut self) -> Option<Arc<[u32]>> {
        let of_constraint = self.constraint.as_mut().and_then(|c| c.allowed());
        let early = self.output_tokens() < self.min_tokens;
        match (of_constraint, self.without_stops.as_ref().filter(|_| early)) {
            (Some(c), Some(w)) => {
                let both: Arc<[u32]> = c.iter().zip(w.iter()).map(|(c, w)| c & w).collect();
                Some(if both.iter().all(|word| *word == 0) { c } else { both })
            }
            (Some(c), None) => Some(c),
            (None, w) => w.cloned(),
        }
    }

    /// Takes the token that was drawn.
    pub(crate) fn accept(&mut self, row: &mut RowOutput) -> Event {
        let index = self.output_tokens();
        self.tokens.push(row.token);
        if let Some(c) = &mut self.constraint {
            c.accept(row.token);
        }
        Event::Token {
            request: self.id,
            index,
            token: row.token,
            logit: row.logit,
            logprob: row.logprob,
            top: std::mem::take(&mut row.top),
            logits: self.token_logits.then(|| row.logits.clone()),
        }
    }

    /// Whether it is over, after a token or after a prompt that is not continued.
    pub(crate) fn finished(&self, context: usize) -> Option<FinishReason> {
        let drawn = self.output_tokens();
        if drawn > 0 && self.tokens.last().is_some_and(|t| self.stop_tokens.contains(t)) {
            return Some(FinishReason::StopToken);
        }
        if drawn >= self.max_tokens {
            return Some(FinishReason::Length);
        }
        (self.tokens.len() >= context).then_some(FinishReason::Context)
    }
}

/// A mask of `vocabulary` tokens with all but `tokens` allowed.
fn all_but(tokens: &[u32], vocabulary: usize) -> Arc<[u32]> {
    let mut words = vec![u32::MAX; vocabulary.div_ceil(32)];
    for t in tokens {
        words[*t as usize / 32] &= !(1 << (t % 32));
    }
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Only(Arc<[u32]>);
    impl Constraint for Only {
        fn allowed(&mut self) -> Option<Arc<[u32]>> {
            Some(Arc::clone(&self.0))
        }
        fn accept(&mut self, _: u32) {}
    }

    fn request() -> Request {
        Request { stop_tokens: vec![3, 33], min_tokens: 1, ..Request::greedy(vec![1, 2], 4) }
    }

    fn draw(s: &mut Sequence, token: u32) {
        s.accept(&mut RowOutput { token, ..RowOutput::default() });
    }

    #[test]
    fn stop_tokens_are_held_back_until_enough_is_out() {
        let mut s = Sequence::new(RequestId(0), request(), 40);
        assert_eq!(s.sampler().allowed.as_deref(), Some(&[!(1 << 3), !(1 << 1)][..]));
        draw(&mut s, 5);
        assert_eq!(s.sampler().allowed, None);
        assert_eq!(s.finished(100), None);
        draw(&mut s, 33);
        assert_eq!(s.finished(100), Some(FinishReason::StopToken));
    }

    #[test]
    fn a_constraint_wins_over_held_back_stops_only_when_nothing_else_is_left() {
        let mut r = request();
        r.constraint = Some(Box::new(Only(Arc::from([1u32 << 3 | 1 << 4, 0]))));
        assert_eq!(Sequence::new(RequestId(0), r, 40).sampler().allowed.as_deref(), Some(&[1 << 4, 0][..]));
        let mut r = request();
        r.constraint = Some(Box::new(Only(Arc::from([1u32 << 3, 0]))));
        assert_eq!(Sequence::new(RequestId(0), r, 40).sampler().allowed.as_deref(), Some(&[1 << 3, 0][..]));
    }

    #[test]
    fn length_comes_before_context_and_a_prompt_alone_is_over_at_once() {
        let mut s = Sequence::new(RequestId(0), Request::greedy(vec![1, 2], 2), 40);
        draw(&mut s, 5);
        assert_eq!(s.finished(3), Some(FinishReason::Context));
        assert_eq!(s.finished(4), None);
        draw(&mut s, 5);
        assert_eq!(s.finished(4), Some(FinishReason::Length));
        assert_eq!(
            Sequence::new(RequestId(0), Request::greedy(vec![1], 0), 40).finished(9),
            Some(FinishReason::Length)
        );
    }

    #[test]
    fn history_goes_along_only_when_penalties_look_at_it() {
        let mut r = request();
        let mut s = Sequence::new(RequestId(0), request(), 40);
        draw(&mut s, 7);
        assert_eq!((s.sampler().prompt.len(), s.sampler().output.len(), s.sampler().index), (0, 0, 1));
        r.sampling.presence_penalty = 0.5;
        let mut s = Sequence::new(RequestId(0), r, 40);
        draw(&mut s, 7);
        assert_eq!((&*s.sampler().prompt, s.sampler().output), (&[1u32, 2][..], vec![7]));
    }
}
