//! Who runs in the next step: state and events in, rows and effects out. No clock, no thread, no I/O.
//!
//! **Order.** First come, first served: requests are admitted in the order of arrival. In a step the sequences that
//! only need their last token come first; chunks of prompts fill what is left of the row budget, the one that was
//! admitted, or drew a token, longest ago before others.
//!
//! **Memory.** A sequence claims pages for all tokens it has (prompt and output so far) from its admission on, so that
//! a prompt that has begun can always be finished. Output grows the claim. When claims exceed the pool, kept sequences
//! are dropped, the longest untouched first, and then the youngest running sequence is preempted: its pages are freed
//! and it waits, by arrival, to be computed again. A request whose longest claim exceeds the whole pool is refused on
//! arrival; so the oldest sequence always fits, is never preempted, and every request ends.

use std::ops::Range;

mod space;

pub use space::Space;

use crate::request::RequestId;

/// A request as the scheduler sees it: lengths, no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Ids rise with arrival.
    pub id: RequestId,
    /// Tokens of the prompt, at least one.
    pub prompt: usize,
    /// Tokens of prompt and output at its longest.
    pub limit: usize,
    /// Whether every position of the prompt goes through the head.
    pub reads_all: bool,
    /// A kept sequence, and how many of its tokens this prompt starts with.
    pub resume: Option<(RequestId, usize)>,
}

/// Limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Rows.
    pub rows: usize,
    /// Rows that go through the head.
    pub selected: usize,
    /// Sequences that run at once.
    pub sequences: usize,
}

/// An arrival is not taken, since its longest claim exceeds the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverFits {
    /// Pages it can need.
    pub needed: usize,
}

/// Consecutive tokens of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub id: RequestId,
    /// Positions.
    pub positions: Range<usize>,
    /// Those of them that go through the head: the last ones.
    pub selected: Range<usize>,
    /// Whether this continues a sequence by the token drawn last.
    pub decode: bool,
    /// Open storage for this many tokens first.
    pub open: Option<usize>,
    /// Whether the last position is the last token known: what the head says there is the next token.
    pub last: bool,
}

/// A waiting request takes over a kept sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The kept sequence, which is no longer kept.
    pub from: RequestId,
    /// The request.
    pub to: RequestId,
    /// Tokens to rewind to.
    pub tokens: usize,
}

/// What a step does. The effects come first, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Kept sequences to free.
    pub evicted: Vec<RequestId>,
    /// Running sequences to free; they wait again.
    pub preempted: Vec<RequestId>,
    /// Kept sequences that go on as requests.
    pub adopted: Vec<Adoption>,
    /// Rows, in batch order.
    pub chunks: Vec<Chunk>,
}

impl Decision {
    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.chunks.iter().map(|c| c.positions.len()).sum()
    }

    /// Rows that go through the head.
    pub fn selected(&self) -> usize {
        self.chunks.iter().map(|c| c.selected.len()).sum()
    }
}

/// A request that waits or runs.
#[derive(Clone, Debug)]
struct Entry {
    id: RequestId,
    prompt: usize,
    limit: usize,
    reads_all: bool,
    resume: Option<(RequestId, usize)>,
    /// Tokens known: prompt and output so far.
    total: usize,
    /// Tokens whose keys and values are stored.
    cached: usize,
    /// Prompt positions that have gone through the head.
    read: usize,
    /// Pages of an adopted sequence that are held until storage is made anew.
    held: usize,
    /// Whether storage stands open.
    open: bool,
    /// When it was admitted or drew its last token: the queue it stands in.
    stamp: u64,
}

/// KV of a finished request.
#[derive(Clone, Copy, Debug)]
struct Kept {
    id: RequestId,
    pages: usize,
    touched: u64,
}

/// The scheduler's whole state.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: StepLimits,
    space: Space,
    /// By arrival.
    waiting: Vec<Entry>,
    /// By arrival.
    running: Vec<Entry>,
    kept: Vec<Kept>,
    tick: u64,
}

impl Scheduler {
    /// With nothing to do. Never more sequences run than a step has rows and head rows: so everyone that decodes has
    /// its row in every step, and one that does not yet decode always finds at least one left.
    pub fn new(mut limits: StepLimits, space: Space) -> Self {
        limits.sequences = limits.sequences.min(limits.rows).min(limits.selected);
        Self { limits, space, waiting: Vec::new(), running: Vec::new(), kept: Vec::new(), tick: 0 }
    }

    /// Requests that are not running.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that are running.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Pages claimed by running and kept sequences.
    pub fn claimed(&self) -> usize {
        self.running.iter().map(|e| self.claim(e)).sum::<usize>() + self.kept.iter().map(|k| k.pages).sum::<usize>()
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// When it could never run. Nothing has changed then.
    pub fn submit(&mut self, a: Arrival) -> Result<(), NeverFits> {
        let needed = self.space.longest(a.prompt, a.limit);
        if needed > self.space.pages {
            return Err(NeverFits { needed });
        }
        if let Some(kept) = a.resume.and_then(|(id, _)| self.kept.iter_mut().find(|k| k.id == id)) {
            kept.touched = self.tick;
        }
        self.waiting.push(Entry {
            id: a.id,
            prompt: a.prompt,
            limit: a.limit,
            reads_all: a.reads_all,
            resume: a.resume,
            total: a.prompt,
            cached: 0,
            read: 0,
            held: 0,
            open: false,
            stamp: 0,
        });
        Ok(())
    }

    /// Chooses the next step. Evictions, preemptions, adoptions and admissions have happened when this returns; the
    /// chunks count as computed only after [`Scheduler::advance`].
    pub fn plan(&mut self) -> Decision {
        self.tick += 1;
        let mut decision = Decision::default();
        self.make_room(&mut decision);
        if decision.preempted.is_empty() {
            self.admit(&mut decision);
        }
        self.fill(&mut decision);
        decision
    }

    /// The chunks of a decision have been computed.
    pub fn advance(&mut self, decision: &Decision) {
        let concatenates = self.space.storage_is_remade();
        for chunk in &decision.chunks {
            let Some(e) = self.running.iter_mut().find(|e| e.id == chunk.id) else { continue };
            e.cached = chunk.positions.end;
            e.open = true;
            if concatenates {
                e.held = 0;
            }
            if e.reads_all {
                e.read = e.read.max(e.cached.min(e.prompt));
            }
        }
    }

    /// A token was drawn. The sequence then stands last among those that are served.
    ///
    /// Returns whether its storage is to be freed now: a kind that keeps nothing computes all of it again.
    pub fn emitted(&mut self, id: RequestId) -> bool {
        let forgets = !self.space.keeps();
        if let Some(e) = self.running.iter_mut().find(|e| e.id == id) {
            e.total += 1;
            e.stamp = self.tick;
            if forgets {
                e.cached = 0;
                e.open = false;
            }
        }
        forgets
    }

    /// A running request is over. With `keep` its storage stays, to be resumed.
    ///
    /// Returns whether it does: a kind that keeps nothing keeps nothing here either.
    pub fn finish(&mut self, id: RequestId, keep: bool) -> bool {
        let Some(at) = self.running.iter().position(|e| e.id == id) else { return false };
        let e = self.running.remove(at);
        let pages = self.space.kept(e.cached, e.limit).max(e.held);
        let keeps = keep && e.cached > 0 && self.space.keeps();
        if keeps {
            self.kept.push(Kept { id, pages, touched: self.tick });
        }
        keeps
    }

    /// Ends a request wherever it is. Returns whether there was one; its storage, if any, is to be freed.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|e| e.id != id);
        self.running.retain(|e| e.id != id);
        self.waiting.len() + self.running.len() < before
    }

    /// Forgets a kept sequence. Returns whether there was one; its storage is to be freed.
    pub fn release(&mut self, id: RequestId) -> bool {
        let before = self.kept.len();
        self.kept.retain(|k| k.id != id);
        self.kept.len() < before
    }

    /// Adds a kept sequence of `tokens` tokens that came from outside. Returns whether there is room for it now, as
    /// the pool stands, and the kind keeps anything.
    pub fn import(&mut self, id: RequestId, tokens: usize) -> bool {
        let pages = self.space.kept(tokens, tokens);
        let fits = self.space.keeps() && self.claimed() + pages <= self.space.pages;
        if fits {
            self.kept.push(Kept { id, pages, touched: self.tick });
        }
        fits
    }

    fn claim(&self, e: &Entry) -> usize {
        self.space.claim(e.total, e.limit).max(e.held)
    }

    /// Drops kept and then preempts running sequences until the claims fit.
    fn make_room(&mut self, decision: &mut Decision) {
        while self.claimed() > self.space.pages {
            if let Some(id) = self.drop_kept(None) {
                decision.evicted.push(id);
            } else if self.running.len() > 1
                && let Some(mut e) = self.running.pop()
            {
                decision.preempted.push(e.id);
                (e.cached, e.held, e.open, e.resume) = (0, 0, false, None);
                let at = self.waiting.partition_point(|w| w.id < e.id);
                self.waiting.insert(at, e);
            } else {
                return;
            }
        }
    }

    /// Drops the kept sequence untouched for longest, except `spared`.
    fn drop_kept(&mut self, spared: Option<RequestId>) -> Option<RequestId> {
        let oldest = self.kept.iter().filter(|k| Some(k.id) != spared).min_by_key(|k| (k.touched, k.id))?.id;
        self.release(oldest);
        Some(oldest)
    }

    /// Admits from the head of the queue while there is room.
    fn admit(&mut self, decision: &mut Decision) {
        while self.running.len() < self.limits.sequences && !self.waiting.is_empty() {
            let (resume, adopted) = self.adoption(&self.waiting[0]);
            let entry = &self.waiting[0];
            let claim = self.space.claim(entry.total, entry.limit).max(self.space.held(adopted));
            // A page of growth for everyone that runs keeps an admission from causing a preemption at once.
            let spare = if self.running.is_empty() { 0 } else { (self.running.len() + 1) * self.space.growth() };
            let others: usize = self.running.iter().map(|e| self.claim(e)).sum();
            if others + claim + spare > self.space.pages {
                return;
            }
            let spared = resume.map(|(id, _)| id);
            while self.claimed() - adopted + claim + spare > self.space.pages {
                match self.drop_kept(spared) {
                    Some(id) => decision.evicted.push(id),
                    None => return,
                }
            }
            let mut e = self.waiting.remove(0);
            if let Some((from, tokens)) = resume {
                self.release(from);
                decision.adopted.push(Adoption { from, to: e.id, tokens });
                (e.cached, e.held) = (tokens, self.space.held(adopted));
            }
            e.stamp = self.tick;
            let at = self.running.partition_point(|r| r.id < e.id);
            self.running.insert(at, e);
        }
    }

    /// The kept sequence that a waiting request can take over, if it is still there, and its pages.
    fn adoption(&self, e: &Entry) -> (Option<(RequestId, usize)>, usize) {
        let kept = e.resume.and_then(|(id, tokens)| {
            let kept = self.kept.iter().find(|k| k.id == id)?;
            (tokens > 0).then_some(((id, tokens), kept.pages))
        });
        kept.map_or((None, 0), |(resume, pages)| (Some(resume), pages))
    }

    /// Fills the row budget: decode rows, then chunks.
    fn fill(&self, decision: &mut Decision) {
        let mut order: Vec<&Entry> = self.running.iter().collect();
        order.sort_by_key(|e| (!e.decodes(), e.stamp, e.id));
        let mut left = self.limits;
        for e in order {
            if let Some(chunk) = self.chunk(e, left) {
                left.rows -= chunk.positions.len();
                left.selected -= chunk.selected.len();
                decision.chunks.push(chunk);
            }
        }
    }

    /// The longest chunk of `e` that the rest of the budget allows.
    fn chunk(&self, e: &Entry, left: StepLimits) -> Option<Chunk> {
        let mut end = e.total.min(e.cached + left.rows);
        let reading = e.reads_all && e.read < e.prompt;
        let mut from = end;
        if reading {
            end = end.min(e.cached.max(e.read) + left.selected);
            from = e.cached.max(e.read).min(end);
        } else if end == e.total {
            from = end - 1;
            if left.selected == 0 {
                end = from;
            }
        }
        if end <= e.cached {
            return None;
        }
        Some(Chunk {
            id: e.id,
            positions: e.cached..end,
            selected: from..end,
            decode: e.decodes(),
            open: (!e.open).then(|| self.space.bound(e.total, e.limit)),
            last: end == e.total,
        })
    }
}

impl Entry {
    /// Whether only the token drawn last is left to compute.
    fn decodes(&self) -> bool {
        self.total > self.prompt && self.cached + 1 == self.total
    }
}
