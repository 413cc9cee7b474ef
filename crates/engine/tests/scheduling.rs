//! The scheduler driven by thousands of arrivals, cancels and shortages, with a page table of its own beside it.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tare_engine::RequestId;
use tare_engine::pages::PagePool;
use tare_engine::scheduler::{Arrival, Chunk, Decision, Scheduler, Space, StepLimits};
use tare_model::CacheKind;

/// What happens between two steps.
#[derive(Clone, Debug)]
enum Happening {
    Arrive {
        prompt: usize,
        output: usize,
        reads_all: bool,
        keep: bool,
        resume: Option<(usize, usize)>,
    },
    Cancel(usize),
    Release(usize),
    Steps(usize),
    /// The backend fails: what was decided is not computed.
    FailedStep,
}

fn happening() -> impl Strategy<Value = Happening> {
    let resume = prop::option::weighted(0.6, (0usize..8, 0usize..40));
    let arrive = (1usize..40, 0usize..20, prop::bool::weighted(0.3), any::<bool>(), resume).prop_map(
        |(prompt, output, reads_all, keep, resume)| Happening::Arrive { prompt, output, reads_all, keep, resume },
    );
    prop_oneof![
        4 => arrive,
        1 => (0usize..64).prop_map(Happening::Cancel),
        1 => (0usize..8).prop_map(Happening::Release),
        8 => (1usize..9).prop_map(Happening::Steps),
        1 => Just(Happening::FailedStep),
    ]
}

fn kinds() -> impl Strategy<Value = (CacheKind, usize)> {
    prop_oneof![
        Just((CacheKind::Recompute, 1)),
        Just((CacheKind::Concatenate, 1)),
        Just((CacheKind::Capacity, 1)),
        (1usize..9).prop_map(|page_tokens| (CacheKind::Paged, page_tokens)),
    ]
}

#[derive(Clone, Debug)]
struct Live {
    arrival: Arrival,
    keep: bool,
    total: usize,
    cached: usize,
    read: usize,
    fresh: bool,
}

/// The world around the scheduler: it holds pages as storage would and checks every decision.
struct World {
    scheduler: Scheduler,
    limits: StepLimits,
    space: Space,
    pool: PagePool,
    tables: BTreeMap<RequestId, Vec<u32>>,
    live: BTreeMap<RequestId, Live>,
    kept: Vec<(RequestId, usize)>,
    ended: BTreeSet<RequestId>,
    first_tokens: Vec<RequestId>,
    arrived: u64,
    disturbed: bool,
}

impl World {
    fn new(limits: StepLimits, space: Space) -> Self {
        Self {
            scheduler: Scheduler::new(limits, space),
            limits,
            space,
            pool: PagePool::new(space.pages as u32),
            tables: BTreeMap::new(),
            live: BTreeMap::new(),
            kept: Vec::new(),
            ended: BTreeSet::new(),
            first_tokens: Vec::new(),
            arrived: 0,
            disturbed: false,
        }
    }

    fn happen(&mut self, h: Happening) {
        match h {
            Happening::Arrive { prompt, output, reads_all, keep, resume } => {
                let id = RequestId(self.arrived);
                let resume = resume.filter(|_| !self.kept.is_empty() && !reads_all && prompt > 1).map(|(which, n)| {
                    let (kept, tokens) = self.kept[which % self.kept.len()];
                    (kept, n.clamp(1, tokens.min(prompt - 1)))
                });
                self.disturbed |= resume.is_some();
                let arrival = Arrival { id, prompt, limit: prompt + output, reads_all, resume };
                if self.scheduler.submit(arrival).is_err() {
                    let stored = if output == 0 { prompt } else { prompt + output - 1 };
                    let bound = if self.space.kind == CacheKind::Capacity { prompt + output } else { stored };
                    assert!(bound.div_ceil(self.space.page_tokens) > self.space.pages, "refused without a reason");
                    return;
                }
                self.arrived += 1;
                self.live.insert(id, Live { arrival, keep, total: prompt, cached: 0, read: 0, fresh: true });
            }
            Happening::Cancel(which) => {
                let Some(id) = self.live.keys().nth(which % self.live.len().max(1)).copied() else { return };
                assert!(self.scheduler.cancel(id));
                assert!(!self.scheduler.cancel(id), "cancelled twice");
                self.live.remove(&id);
                self.ended.insert(id);
                self.free(id);
            }
            Happening::Release(which) if !self.kept.is_empty() => {
                let (id, _) = self.kept.remove(which % self.kept.len());
                assert!(self.scheduler.release(id));
                self.free(id);
            }
            Happening::Release(_) => {}
            Happening::Steps(n) => (0..n).for_each(|_| self.step(true)),
            Happening::FailedStep => self.step(false),
        }
    }

    fn step(&mut self, works: bool) {
        let decision = self.scheduler.plan();
        self.effects(&decision);
        assert!(decision.rows() <= self.limits.rows, "row budget");
        assert!(decision.selected() <= self.limits.selected, "head budget");
        assert!(self.scheduler.running() <= self.limits.sequences, "too many run");
        assert!(self.scheduler.claimed() <= self.space.pages, "claims exceed the pool");
        assert!(self.live.is_empty() || !decision.chunks.is_empty(), "a step without progress");
        let distinct: BTreeSet<_> = decision.chunks.iter().map(|c| c.id).collect();
        assert_eq!(distinct.len(), decision.chunks.len(), "two chunks of one sequence");
        let decoding = decision.chunks.iter().take_while(|c| c.decode).count();
        assert!(decision.chunks[decoding..].iter().all(|c| !c.decode), "decode rows come first");
        for chunk in &decision.chunks {
            self.check(chunk);
            // Storage takes pages for what is really stored; that they are there is what claims promise.
            let bound = chunk.open.filter(|_| self.space.kind == CacheKind::Capacity);
            self.hold(chunk.id, bound.unwrap_or(chunk.positions.end));
            if self.space.kind == CacheKind::Concatenate {
                self.shrink(chunk.id, chunk.positions.end);
            }
        }
        assert!(self.pool.live() <= self.scheduler.claimed(), "more is stored than is claimed");
        if !works {
            return;
        }
        self.scheduler.advance(&decision);
        for chunk in decision.chunks {
            self.computed(&chunk);
        }
    }

    fn effects(&mut self, decision: &Decision) {
        for id in &decision.evicted {
            let at = self.kept.iter().position(|k| k.0 == *id).expect("evicted something that was kept");
            self.kept.remove(at);
            self.free(*id);
        }
        for id in &decision.preempted {
            self.disturbed = true;
            let oldest = self.live.keys().next().expect("something runs");
            assert_ne!(id, oldest, "the oldest is never preempted");
            self.live.get_mut(id).expect("it lives").cached = 0;
            self.free(*id);
        }
        for a in &decision.adopted {
            let at = self.kept.iter().position(|k| k.0 == a.from).expect("adopted something that was kept");
            assert!(a.tokens <= self.kept.remove(at).1);
            let pages = self.tables.remove(&a.from).unwrap_or_default();
            self.tables.insert(a.to, pages);
            self.live.get_mut(&a.to).expect("it lives").cached = a.tokens;
            if self.space.kind == CacheKind::Paged {
                self.shrink(a.to, a.tokens);
            }
        }
    }

    fn check(&self, c: &Chunk) {
        let s = &self.live[&c.id];
        assert_eq!(c.positions.start, s.cached, "rows follow what is stored");
        assert!(!c.positions.is_empty() && c.positions.end <= s.total);
        assert_eq!(c.last, c.positions.end == s.total);
        assert_eq!(c.selected.end, c.positions.end);
        let reads = s.arrival.reads_all && s.read < s.arrival.prompt;
        let want = if reads { c.positions.end.saturating_sub(s.read.max(s.cached)) } else { usize::from(c.last) };
        assert_eq!(c.selected.len(), want, "selected rows");
    }

    fn computed(&mut self, c: &Chunk) {
        let s = self.live.get_mut(&c.id).expect("it lives");
        s.cached = c.positions.end;
        if s.arrival.reads_all {
            s.read = s.read.max(s.cached.min(s.arrival.prompt));
        }
        if !c.last {
            return;
        }
        if std::mem::take(&mut s.fresh) {
            self.first_tokens.push(c.id);
        }
        // The last token is drawn, reported and never computed.
        if s.total + 1 >= s.arrival.limit {
            let s = self.live.remove(&c.id).expect("it lives");
            self.ended.insert(c.id);
            if self.scheduler.finish(c.id, s.keep) {
                self.kept.push((c.id, s.cached));
            } else {
                self.free(c.id);
            }
            return;
        }
        s.total += 1;
        if self.scheduler.emitted(c.id) {
            s.cached = 0;
            self.free(c.id);
        }
    }

    fn hold(&mut self, id: RequestId, tokens: usize) {
        let table = self.tables.entry(id).or_default();
        let wanted = tokens.div_ceil(self.space.page_tokens).saturating_sub(table.len());
        self.pool.take(wanted, table).expect("claims promise the pages");
    }

    fn shrink(&mut self, id: RequestId, tokens: usize) {
        let table = self.tables.entry(id).or_default();
        for page in table.split_off(tokens.div_ceil(self.space.page_tokens).min(table.len())) {
            self.pool.give_back(page).unwrap();
        }
    }

    fn free(&mut self, id: RequestId) {
        self.shrink(id, 0);
        self.tables.remove(&id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Budgets hold, no page is lost, nobody starves, and first tokens come in the order of arrival.
    #[test]
    fn every_request_ends_and_every_page_comes_back(
        (kind, page_tokens) in kinds(),
        pages in 8usize..80,
        (rows, selected, sequences) in (1usize..24, 1usize..12, 1usize..7),
        happenings in prop::collection::vec(happening(), 1..300),
    ) {
        let limits = StepLimits { rows, selected, sequences };
        let mut world = World::new(limits, Space { kind, page_tokens, pages });
        for h in happenings {
            world.happen(h);
        }
        let mut steps = 0;
        while !world.live.is_empty() {
            world.step(true);
            steps += 1;
            prop_assert!(steps < 200_000, "it hangs");
        }
        prop_assert_eq!(world.ended.len() as u64, world.arrived);
        let kept: usize = world.kept.iter().map(|k| world.tables[&k.0].len()).sum();
        prop_assert_eq!(world.pool.live(), kept);
        while !world.kept.is_empty() {
            world.happen(Happening::Release(0));
        }
        prop_assert_eq!((world.pool.live(), world.scheduler.claimed()), (0, 0));
    }

    /// Without preemption, resuming and whole-prompt logits nothing overtakes: first tokens come in arrival order.
    #[test]
    fn first_come_first_served(
        prompts in prop::collection::vec((1usize..40, 1usize..20), 1..40),
        (rows, sequences) in (1usize..24, 1usize..7),
    ) {
        let limits = StepLimits { rows, selected: 8, sequences };
        let mut world = World::new(limits, Space { kind: CacheKind::Paged, page_tokens: 4, pages: 10_000 });
        for (prompt, output) in prompts {
            world.happen(Happening::Arrive { prompt, output, reads_all: false, keep: false, resume: None });
            world.happen(Happening::Steps(1));
        }
        while !world.live.is_empty() {
            world.step(true);
        }
        prop_assert!(!world.disturbed);
        prop_assert!(world.first_tokens.is_sorted(), "{:?}", world.first_tokens);
    }
}

/// A long prompt is cut, and those that decode get a row in every step meanwhile.
#[test]
fn a_long_prompt_does_not_hold_up_those_that_decode() {
    let limits = StepLimits { rows: 8, selected: 8, sequences: 4 };
    let mut s = Scheduler::new(limits, Space { kind: CacheKind::Paged, page_tokens: 4, pages: 100 });
    let arrival = |id, prompt| Arrival { id: RequestId(id), prompt, limit: 200, reads_all: false, resume: None };
    s.submit(arrival(0, 2)).unwrap();
    s.submit(arrival(1, 3)).unwrap();
    let first = s.plan();
    s.advance(&first);
    s.emitted(RequestId(0));
    s.emitted(RequestId(1));
    s.submit(arrival(2, 60)).unwrap();
    for _ in 0..10 {
        let d = s.plan();
        let rows: Vec<_> = d.chunks.iter().map(|c| (c.id.0, c.positions.len(), c.decode)).collect();
        assert_eq!(rows, [(0, 1, true), (1, 1, true), (2, 6, false)]);
        s.advance(&d);
        s.emitted(RequestId(0));
        s.emitted(RequestId(1));
    }
    // 60 tokens are done: it draws.
    assert!(s.plan().chunks.iter().all(|c| c.id != RequestId(2) || c.positions.end == 60));
}

/// Where every token computes the whole sequence again, sequences take turns at the row budget.
#[test]
fn recomputing_sequences_take_turns() {
    let limits = StepLimits { rows: 4, selected: 4, sequences: 3 };
    let mut s = Scheduler::new(limits, Space { kind: CacheKind::Recompute, page_tokens: 1, pages: 1000 });
    for id in 0..3 {
        s.submit(Arrival { id: RequestId(id), prompt: 1, limit: 100, reads_all: false, resume: None }).unwrap();
    }
    let mut served = [0u32; 3];
    while served.iter().sum::<u32>() < 60 {
        let d = s.plan();
        s.advance(&d);
        for c in d.chunks.iter().filter(|c| c.last) {
            served[c.id.0 as usize] += 1;
            s.emitted(c.id);
        }
    }
    assert!(served.iter().all(|n| (19..=21).contains(n)), "{served:?}");
}

/// No more sequences run than a step has rows, however many are allowed.
#[test]
fn everyone_that_decodes_has_a_row_in_every_step() {
    let limits = StepLimits { rows: 2, selected: 2, sequences: 30 };
    let mut s = Scheduler::new(limits, Space { kind: CacheKind::Paged, page_tokens: 4, pages: 100 });
    for id in 0..3 {
        s.submit(Arrival { id: RequestId(id), prompt: 1, limit: 100, reads_all: false, resume: None }).unwrap();
    }
    for _ in 0..30 {
        let d = s.plan();
        assert_eq!(d.chunks.iter().map(|c| c.id.0).collect::<Vec<_>>(), [0, 1]);
        s.advance(&d);
        d.chunks.iter().for_each(|c| assert!(!s.emitted(c.id)));
    }
    assert_eq!((s.running(), s.waiting()), (2, 1));
}
