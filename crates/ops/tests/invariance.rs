//! A row's result depends on its own sequence alone: not on chunks, pages or company.

mod decoder;

use decoder::{BUCKET, KV, VOCAB};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tare_ops::{Backend, Batch, Executable, ReferenceBackend, Row, StepOutput, Table, TokenSource, Wants};

/// A sequence, the pages it lies in, and how many of its tokens have been run.
struct Sequence {
    tokens: Vec<u32>,
    table: Table,
    done: usize,
    /// Bits of the last token's logits, once run.
    logits: Vec<u32>,
}

impl Sequence {
    /// Rows of the next `n` tokens; the last token of the sequence wants its logits.
    fn rows(&self, table: u32, n: usize) -> impl Iterator<Item = Row> {
        let end = (self.done + n).min(self.tokens.len());
        (self.done..end).map(move |i| Row {
            token: TokenSource::Id(self.tokens[i]),
            position: i as u32,
            table,
            slot: i as u32,
            context: i as u32 + 1,
            wants: if i + 1 == self.tokens.len() { Wants::Logits } else { Wants::Nothing },
        })
    }
}

/// Runs all sequences together, `chunk` tokens of each a step at most.
fn run(backend: &mut ReferenceBackend, exe: Executable, sequences: &mut [Sequence], chunk: usize) {
    while sequences.iter().any(|s| s.done < s.tokens.len()) {
        let mut batch = Batch::default();
        for (n, s) in sequences.iter_mut().enumerate() {
            let room = chunk.min(BUCKET.rows - batch.rows.len());
            batch.rows.extend(s.rows(n as u32, room));
            batch.tables.push(s.table.clone());
            s.done = (s.done + room).min(s.tokens.len());
        }
        let mut out = StepOutput::default();
        backend.run(exe, &batch, &mut out).unwrap();
        for r in out.rows {
            let s = &mut sequences[batch.rows[r.row as usize].table as usize];
            s.logits = r.logits.iter().map(|x| x.to_bits()).collect();
        }
    }
}

/// Sequences in one pool, their pages dealt out in an order that `stride` scatters.
fn lay_out(backend: &mut ReferenceBackend, all: &[Vec<u32>], page_tokens: usize, stride: usize) -> Vec<Sequence> {
    let need: Vec<usize> = all.iter().map(|s| s.len().div_ceil(page_tokens)).collect();
    let pages: usize = need.iter().sum();
    let kv = backend.alloc_kv(KV, pages, page_tokens).unwrap();
    let step = (stride..).find(|s| (2..=pages).all(|d| !pages.is_multiple_of(d) || !s.is_multiple_of(d))).unwrap();
    let mut next = 0;
    let mut deal = |n: usize| -> Vec<u32> { (0..n).map(|_| ((next * step) % pages, next += 1).0 as u32).collect() };
    let sequence = |(tokens, n): (&Vec<u32>, usize)| Sequence {
        tokens: tokens.clone(),
        table: Table { kv, pages: deal(n) },
        done: 0,
        logits: Vec::new(),
    };
    all.iter().zip(need).map(sequence).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn batched_chunked_and_paged_is_alone_at_once(
        all in prop::collection::vec(prop::collection::vec(0..VOCAB as u32, 1..=12), 1..=4),
        page_tokens in 1usize..6,
        chunk in 1usize..4,
        stride in 1usize..9,
    ) {
        let (mut backend, exe) = decoder::model();
        let mut together = lay_out(&mut backend, &all, page_tokens, stride);
        run(&mut backend, exe, &mut together, chunk);
        for (tokens, got) in all.iter().zip(&together) {
            let mut alone = lay_out(&mut backend, std::slice::from_ref(tokens), 16, 1);
            run(&mut backend, exe, &mut alone, 12);
            prop_assert_eq!(&alone[0].logits, &got.logits);
            prop_assert_eq!(got.logits.len(), VOCAB);
        }
    }
}

#[test]
fn the_model_looks_at_every_token() {
    let (mut backend, exe) = decoder::model();
    let mut last = |tokens: &[u32]| {
        let mut s = lay_out(&mut backend, &[tokens.to_vec()], 16, 1);
        run(&mut backend, exe, &mut s, 12);
        s.remove(0).logits
    };
    let base = last(&[1, 2, 3, 4, 5]);
    for i in 0..5 {
        let mut tokens = [1, 2, 3, 4, 5];
        tokens[i] = 9;
        assert_ne!(last(&tokens), base, "token {i} must matter, or the equalities above say nothing");
    }
    assert_ne!(last(&[2, 1, 3, 4, 5]), base, "order matters");
}
