//! What changes from step to step, written as one run of bytes for one place in device memory.

use std::collections::BTreeMap;

use tare_ops::reference::rope::angles;
use tare_ops::{Batch, Bucket, KvId, RopeTable, TokenSource, Wants};

use crate::args;
use crate::device::Address;
use crate::kv::Pool;

/// Where the parts of the block lie, for the widest step that an executable takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    rows: usize,
    selected: usize,
    cosine: usize,
    sine: usize,
    /// Bytes of the block.
    pub(crate) bytes: usize,
    pairs: usize,
}

impl StepLayout {
    /// For steps of `bucket` in a plan with `pairs` rotary angles.
    pub(crate) fn new(bucket: Bucket, pairs: usize) -> Self {
        let rows = size_of::<args::Step>();
        let selected = rows + bucket.rows * size_of::<args::Row>();
        let cosine = selected + (bucket.selected * size_of::<u32>()).next_multiple_of(8);
        let sine = cosine + (bucket.rows * pairs * size_of::<f32>()).next_multiple_of(8);
        let bytes = sine + bucket.rows * pairs * size_of::<f32>();
        Self { rows, selected, cosine, sine, bytes, pairs }
    }

    /// Where the rows lie.
    pub(crate) const fn rows(&self) -> usize {
        self.rows
    }
}

/// Buffers of the backend that a step reads and writes beside its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// Block tables.
    pub(crate) pages: Address,
    /// Scores of attention.
    pub(crate) scores: Address,
    /// Scores that a row and head have room for.
    pub(crate) score_stride: usize,
}

/// The host's copy of a step, kept from one to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepBlock {
    /// What goes to the device.
    pub(crate) bytes: Vec<u8>,
    /// Block tables, one after the other, in the order of [`Batch::tables`].
    pub(crate) pages: Vec<u32>,
    /// Rows that want something.
    pub(crate) selected: Vec<u32>,
    first_page: Vec<u32>,
    angles: Angles,
}

/// Sines and cosines of the positions that steps have had so far: a prompt of thousands of rows would wait for them.
#[derive(Clone, Debug, Default)]
struct Angles {
    rope: Option<RopeTable>,
    /// [pairs] cosines, then as many sines.
    of: BTreeMap<u32, Vec<f32>>,
}

impl Angles {
    /// Cosines and sines of a position.
    fn of(&mut self, rope: &RopeTable, position: u32) -> (&[f32], &[f32]) {
        if self.rope.as_ref() != Some(rope) {
            *self = Self { rope: Some(rope.clone()), of: BTreeMap::new() };
        }
        let pairs = rope.inv_freq.len();
        let both = self.of.entry(position).or_insert_with(|| {
            let mut both = vec![0.0; 2 * pairs];
            let (cosine, sine) = both.split_at_mut(pairs);
            angles(rope, position, cosine, sine);
            both
        });
        both.split_at(pairs)
    }
}

impl StepBlock {
    /// Lists the block tables of `batch`.
    pub(crate) fn list_pages(&mut self, batch: &Batch) {
        self.pages.clear();
        self.first_page.clear();
        for table in &batch.tables {
            self.first_page.push(self.pages.len() as u32);
            self.pages.extend_from_slice(&table.pages);
        }
    }

    /// Writes the block for `batch`, which has been checked and whose pages are listed. `at` is where the block goes;
    /// `previous` are the tokens of the step before.
    pub(crate) fn write(
        &mut self,
        layout: &StepLayout,
        at: Address,
        (batch, rope, previous): (&Batch, &RopeTable, &[u32]),
        pool: impl Fn(KvId) -> Option<Pool>,
        shared: Shared,
    ) {
        let wanted = batch.rows.iter().enumerate().filter(|(_, r)| r.wants != Wants::Nothing);
        self.selected.clear();
        self.selected.extend(wanted.map(|(t, _)| t as u32));
        self.bytes.clear();
        self.bytes.resize(layout.bytes, 0);
        let header = args::Step {
            rows: batch.rows.len() as u32,
            selected: self.selected.len() as u32,
            row: at.plus(layout.rows).0,
            selected_row: at.plus(layout.selected).0,
            cosine: at.plus(layout.cosine).0,
            sine: at.plus(layout.sine).0,
            pages: shared.pages.0,
            scores: shared.scores.0,
            score_stride: shared.score_stride as u64,
        };
        self.put(0, bytemuck::bytes_of(&header));
        for (t, row) in batch.rows.iter().enumerate() {
            let pool = batch.tables.get(row.table as usize).and_then(|table| pool(table.kv));
            let token = match row.token {
                TokenSource::Id(id) => id,
                TokenSource::Previous(n) => previous[n as usize],
            };
            let entry = args::Row {
                pool: pool.map_or(0, |p| p.base.0),
                page_tokens: pool.map_or(1, |p| p.info.page_tokens as u32),
                first_page: self.first_page.get(row.table as usize).copied().unwrap_or(0),
                token,
                slot: row.slot,
                context: row.context,
                page_shift: pool.map_or(0, |p| page_shift(p.info.page_tokens)),
            };
            self.put(layout.rows + t * size_of::<args::Row>(), bytemuck::bytes_of(&entry));
        }
        let selected = std::mem::take(&mut self.selected);
        self.put(layout.selected, bytemuck::cast_slice(&selected));
        self.selected = selected;
        self.write_angles(layout, batch, rope);
    }

    fn write_angles(&mut self, layout: &StepLayout, batch: &Batch, rope: &RopeTable) {
        let mut kept = std::mem::take(&mut self.angles);
        for (t, row) in batch.rows.iter().enumerate().filter(|_| layout.pairs > 0) {
            let (cosine, sine) = kept.of(rope, row.position);
            let offset = t * layout.pairs * size_of::<f32>();
            self.put(layout.cosine + offset, bytemuck::cast_slice(cosine));
            self.put(layout.sine + offset, bytemuck::cast_slice(sine));
        }
        self.angles = kept;
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// The power of two that a page's tokens are; `NO_SHIFT` of `tare.cuh` when they are none.
fn page_shift(page_tokens: usize) -> u32 {
    if page_tokens.is_power_of_two() { page_tokens.trailing_zeros() } else { u32::MAX }
}
