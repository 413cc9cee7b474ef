//! Weights in panels of 16 rows: see [`crate::coded`] for what lies in one of codes, and [`crate::lossless`] of BF16.
//!
//! The panels of all weights that a plan reads so lie behind each other in one piece of memory, in the order of its calls:
//! large pages, and each worker's share of a call right behind its share of the row before.

use std::ops::Range;
use std::sync::Arc;

use tare_core::{DType, Format, Weight, WeightData};
use tare_formats::codec::quants::codes_row;
use tare_ops::OpError;

use crate::coded::{Coded, ROWS, Scales, UNIT, Visit, block_bytes, put_codes, visit};
use crate::kv::out_of_memory;
use crate::lossless::{self, Exceptions};
use crate::memory::Memory;
use crate::pool::{Pool, Region};

/// Bytes of a weight that a worker reads before it unloads them: some huge pages.
const UNLOADED: usize = 4 << 20;

/// A weight in panels.
#[derive(Clone, Debug)]
pub struct Packed {
    memory: Arc<Memory>,
    /// Where in the memory it begins.
    at: usize,
    shape: Panels,
    exceptions: Exceptions,
}

/// Pointers into a [`Packed`] weight, which outlives every step that uses them.
#[derive(Clone, Copy, Debug)]
pub struct Panels {
    /// Output features.
    pub rows: usize,
    /// Units of 32 columns.
    pub units: usize,
    /// Type of the scales where the format leaves it open.
    pub dtype: DType,
    /// Bytes from one block to the next; of BF16 those of a unit.
    pub block_bytes: usize,
    /// Bytes from one panel to the next.
    panel_bytes: usize,
    first: *mut u8,
}

// SAFETY: the bytes are written before the first step that reads them, by workers that each own their panels, and belong
// to the backend and the executables that use them.
unsafe impl Send for Panels {}
// SAFETY: as above.
unsafe impl Sync for Panels {}

impl Panels {
    /// The panel that row `n` is in; the end of the weight for the first multiple of 16 past the last row.
    #[inline(always)]
    pub fn panel(&self, n: usize) -> *const u8 {
        self.first.wrapping_add(n / ROWS * self.panel_bytes)
    }

    fn bytes(&self) -> usize {
        self.rows.div_ceil(ROWS) * self.panel_bytes
    }
}

/// The shape of a weight in panels, not yet anywhere.
struct Shape<'a>(&'a Weight);

impl Visit for Shape<'_> {
    type Output = Panels;

    fn visit<F: Coded>(self) -> Panels {
        let w = self.0;
        let dtype = match w.data() {
            WeightData::Affine(a) => a.scale_dtype,
            WeightData::Blocks(_) => DType::F16,
        };
        let (units, block_bytes) = (w.cols() / UNIT, block_bytes::<F>(dtype));
        let panel_bytes = units.div_ceil(F::UNITS) * block_bytes;
        Panels { rows: w.rows(), units, dtype, block_bytes, panel_bytes, first: std::ptr::null_mut() }
    }
}

/// The shape of `weight` in panels; none where it does not go into panels.
fn shape(weight: &Weight) -> Option<Panels> {
    if weight.format() != Format::BF16 {
        return visit(weight.format(), Shape(weight));
    }
    let (rows, units) = (weight.rows(), weight.cols() / UNIT);
    let (block_bytes, panel_bytes) = (lossless::UNIT_BYTES, lossless::panel_bytes(units));
    let first = std::ptr::null_mut();
    lossless::takes(weight.cols()).then_some(Panels {
        rows,
        units,
        dtype: DType::BF16,
        block_bytes,
        panel_bytes,
        first,
    })
}

impl Packed {
    /// Room for `weights`, one behind the other; none for those in F32 and F16, or in BF16 with rows that are no whole units. Nothing is
    /// written.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn reserve<'a>(weights: impl Iterator<Item = &'a Weight>) -> Result<Vec<Option<Self>>, OpError> {
        let shapes: Vec<Option<Panels>> = weights.map(shape).collect();
        let bytes = shapes.iter().flatten().map(Panels::bytes).sum();
        let memory = Memory::zeroed(bytes).ok_or_else(|| out_of_memory("weights in panels", bytes))?;
        let memory = Arc::new(memory);
        let mut at = 0;
        let place = |shape: Option<Panels>| {
            let packed = Self { memory: Arc::clone(&memory), at, shape: shape?, exceptions: Exceptions::default() };
            at += packed.shape.bytes();
            Some(packed)
        };
        Ok(shapes.into_iter().map(place).collect())
    }

    /// The addresses of its bytes.
    pub fn range(&self) -> Range<usize> {
        let from = self.memory.range().start + self.at;
        from..from + self.shape.bytes()
    }

    /// Where it lies.
    pub fn panels(&self) -> Panels {
        Panels { first: self.memory.as_ptr::<u8>().wrapping_add(self.at), ..self.shape }
    }

    /// Numbers that stand beside its panels.
    pub fn exceptions(&self) -> &Exceptions {
        &self.exceptions
    }

    /// Writes `weight` into its room, which nobody reads yet: each worker the panels that it will read while nobody sits out. What it has read of
    /// `weight` it unloads on the way, so that little of it is in memory beside the panels.
    ///
    /// # Errors
    /// When a worker panics.
    pub fn fill(&self, weight: &Weight, workers: &mut Pool) -> Result<(), OpError> {
        let panels = self.panels();
        // Here and not by the first worker that looks: bytes that have to be made are made on all processors.
        weight.look();
        let filled = workers.run(|region| {
            if weight.format() == Format::BF16 {
                self.fill_bf16(weight, region);
            } else {
                visit(weight.format(), Fill { weight, panels: &panels, region });
            }
        });
        let device = |message| OpError::Device { kernel: format!("packing of {}", weight.name()), message };
        filled.map_err(|e| device(e.to_string()))
    }

    /// One worker's share of a weight in BF16.
    fn fill_bf16(&self, weight: &Weight, region: Region) {
        let panels = self.panels();
        let mut unloading = Unloading::new(weight, region.share(panels.rows, ROWS));
        for n in unloading.share.clone().step_by(ROWS) {
            // SAFETY: as in `Fill`.
            let panel = unsafe { std::slice::from_raw_parts_mut(panels.panel(n).cast_mut(), panels.panel_bytes) };
            lossless::fill(weight, n, panels.units, panel, &self.exceptions);
            unloading.read((n + ROWS).min(panels.rows));
        }
    }
}

/// A worker's rows of a weight, which it gives back on the way.
struct Unloading<'a> {
    weight: &'a Weight,
    share: Range<usize>,
    /// Rows before this one were given back.
    kept: usize,
}

impl<'a> Unloading<'a> {
    fn new(weight: &'a Weight, share: Range<usize>) -> Self {
        Self { weight, kept: share.start, share }
    }

    /// Gives back what was read, once it is much or all: rows before `end`.
    fn read(&mut self, end: usize) {
        let much = (end - self.kept) * (self.weight.bytes() / self.weight.rows()) >= UNLOADED;
        if much || end == self.share.end {
            self.weight.unload(self.kept..end);
            self.kept = end;
        }
    }
}

struct Fill<'a> {
    weight: &'a Weight,
    panels: &'a Panels,
    region: Region<'a>,
}

impl Visit for Fill<'_> {
    type Output = ();

    fn visit<F: Coded>(self) {
        let (w, p) = (self.weight, self.panels);
        let mut codes = vec![[0; UNIT]; ROWS * p.units];
        let mut unloading = Unloading::new(w, self.region.share(p.rows, ROWS));
        for n in unloading.share.clone().step_by(ROWS) {
            let rows = n..(n + ROWS).min(p.rows);
            codes[rows.len() * p.units..].fill([0; UNIT]);
            for (row, codes) in rows.clone().zip(codes.chunks_exact_mut(p.units)) {
                codes_row(w, row, codes.as_flattened_mut());
            }
            // SAFETY: the panel of these rows lies in the weight's memory, and is this worker's alone.
            let panel = unsafe { std::slice::from_raw_parts_mut(p.panel(n).cast_mut(), p.panel_bytes) };
            for (i, block) in panel.chunks_exact_mut(p.block_bytes).enumerate() {
                let (units, scales) = block.split_at_mut(F::UNITS * F::UNIT_BYTES);
                let first = i * F::UNITS;
                for (u, unit) in (first..p.units).zip(units.chunks_exact_mut(F::UNIT_BYTES)) {
                    put_codes::<F>(std::array::from_fn(|r| &codes[r * p.units + u]), unit);
                }
                rows.clone().for_each(|row| F::Scales::put(w, row, i, F::UNITS, scales));
            }
            unloading.read(rows.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::{Blob, Format};
    use tare_testkit::Noting;

    /// Each worker has read at most so much of the weight that it has not given back.
    #[test]
    fn little_of_a_weight_is_in_memory_beside_its_panels() {
        let (rows, cols) = (200_003, 256);
        let row = Format::Q4_0.row_bytes(cols).unwrap();
        let source = Arc::new(Noting::new(vec![0x3c; rows * row]));
        let weight = Weight::blocks("w", Format::Q4_0, rows, cols, Blob::new(source.clone())).unwrap();
        for workers in [1, 2, 3] {
            let packed = Packed::reserve(std::iter::once(&weight)).unwrap().remove(0).unwrap();
            packed.fill(&weight, &mut Pool::new(workers, false).unwrap()).unwrap();
            let mut given = source.take();
            given.sort_unstable_by_key(|r| r.start);
            assert!(given.len() > workers, "{workers} workers: piece by piece, not at the end");
            assert!(given.iter().all(|r| r.len() < UNLOADED + ROWS * row), "{given:?}");
            let whole = given.iter().try_fold(0, |end, r| (r.start == end).then_some(r.end));
            assert_eq!(whole, Some(rows * row), "all of it, each byte once: {given:?}");
        }
    }
}
