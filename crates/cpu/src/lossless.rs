//! BF16 weights in 12 bits, every value kept: panels of 16 rows whose numbers are cut into two bytes.
//!
//! The upper byte of a BF16 is its sign and seven bits of its exponent. Weights of a matrix are of few sizes, so that a table of
//! 16 upper bytes has nearly all that a panel holds: 4 bits say which one, and the lower byte stays as it is. A
//! number whose upper byte is in no table is an [`Exception`]: it is a zero in the panel, and stands in a list beside it.
//!
//! A *panel* is its [`Header`], where the exceptions of each unit begin, and its *units* of 32 columns of the 16 rows, in four
//! *groups* of 8 columns. A group has 64 bytes of codes, byte `b` for places `b` (low half) and `64 + b` (high half), and 128
//! lower bytes, place by place. [`place`] says where a number is: so that lower bytes and upper bytes, put side by
//! side within runs of 16 bytes, are rows of B as [`crate::tiles`] describes them, which pairs of BF16 are as well.
//!
//! The idea, codes of few bits for exponents that are much alike, is that of DFloat11 (arXiv 2504.11651); a table for each panel
//! in place of Huffman codes of a matrix makes numbers of it in three operations for 32.

use std::sync::{Arc, Mutex, PoisonError};

use tare_core::{Weight, WeightData};

use crate::coded::{ROWS, UNIT};
use crate::panels::Panels;

/// Columns of a group.
pub const COLUMNS: usize = 8;
/// Groups of a unit.
pub const GROUPS: usize = UNIT / COLUMNS;
/// Rows of B in a group.
pub const PAIR_ROWS: usize = COLUMNS / 2;
/// Upper bytes of a table.
pub const TABLE: usize = 16;
/// Numbers of a group.
const PLACES: usize = COLUMNS * ROWS;
/// Bytes of the codes of a group.
pub const CODES: usize = PLACES / 2;
/// Bytes of a group.
pub const GROUP_BYTES: usize = CODES + PLACES;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = GROUPS * GROUP_BYTES;
/// Bytes of a cache line, of which a panel has whole ones.
const LINE: usize = 64;

/// What comes first in a panel.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Upper bytes by their codes; that of code 0 is 0.
    pub table: [u8; TABLE],
    /// The exceptions of the panel, unit by unit.
    exceptions: *const Exception,
}

/// A number of a panel that its table cannot say.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Column of the weight.
    pub column: u32,
    /// Row of the panel.
    pub row: u16,
    /// The number, a BF16.
    pub bits: u16,
}

/// Exceptions of a weight, kept for as long as its panels.
#[derive(Clone, Debug, Default)]
pub struct Exceptions(Arc<Mutex<Vec<Arc<[Exception]>>>>);

impl Exceptions {
    /// Keeps those of a panel, and says where they lie.
    fn keep(&self, exceptions: Vec<Exception>) -> *const Exception {
        let exceptions: Arc<[Exception]> = exceptions.into();
        let at = exceptions.as_ptr();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(exceptions);
        at
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|e| e.len()).sum()
    }
}

/// Whether rows of `cols` columns can be packed.
pub const fn takes(cols: usize) -> bool {
    cols.is_multiple_of(UNIT)
}

/// Bytes of a panel of so many units.
pub const fn panel_bytes(units: usize) -> usize {
    units_at(units) + units * UNIT_BYTES
}

/// Where in a panel its units begin.
const fn units_at(units: usize) -> usize {
    size_of::<Header>() + ((units + 1) * size_of::<u32>()).next_multiple_of(LINE)
}

/// The place in its group of the number in `row` of the panel and in `column` of the group.
#[inline(always)]
pub const fn place(row: usize, column: usize) -> usize {
    // Its row of B and the word there; a run of 16 places has 8 words of each of two rows of B.
    let (pair_row, word) = (column / 2, 2 * row + column % 2);
    64 * (pair_row / 2) + 16 * (word / 8) + 8 * (pair_row % 2) + word % 8
}

/// Where the parts of a panel lie.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    header: *const Header,
    starts: *const u32,
    units: *const u8,
}

impl Panel {
    /// The panel that row `n` of the weight is in.
    #[inline(always)]
    pub fn of(panels: &Panels, n: usize) -> Self {
        let first = panels.panel(n);
        let starts = first.wrapping_add(size_of::<Header>()).cast();
        Self { header: first.cast(), starts, units: first.wrapping_add(units_at(panels.units)) }
    }

    /// The table of 16 upper bytes.
    #[inline(always)]
    pub const fn table(&self) -> *const u8 {
        self.header.cast()
    }

    /// The groups of unit `unit`.
    #[inline(always)]
    pub const fn unit(&self, unit: usize) -> *const u8 {
        self.units.wrapping_add(unit * UNIT_BYTES)
    }

    /// The exceptions of units `from .. to`, group by group within a unit.
    ///
    /// # Safety
    /// The panel was filled, is kept, and has the units.
    #[inline(always)]
    pub unsafe fn exceptions<'a>(&self, from: usize, to: usize) -> &'a [Exception] {
        // SAFETY: the caller's promise; what lies there was written by `fill`.
        unsafe {
            let (from, to) = (*self.starts.add(from) as usize, *self.starts.add(to) as usize);
            std::slice::from_raw_parts((*self.header).exceptions.add(from), to - from)
        }
    }

    /// The number in `row` of the panel and in `column` of the weight.
    ///
    /// # Safety
    /// That of [`Panel::exceptions`].
    pub unsafe fn number(&self, row: usize, column: usize) -> u16 {
        let (unit, group, place) = (column / UNIT, column % UNIT / COLUMNS, place(row, column % COLUMNS));
        let group = self.unit(unit).wrapping_add(group * GROUP_BYTES);
        // SAFETY: a group of the unit.
        let (code, low) =
            unsafe { (*group.add(place % CODES) >> (4 * (place / CODES)) & 15, *group.add(CODES + place)) };
        // SAFETY: the caller's promise, and a code below 16.
        unsafe {
            let is_this = |e: &&Exception| (usize::from(e.row), e.column as usize) == (row, column);
            match self.exceptions(unit, unit + 1).iter().find(is_this) {
                Some(exception) => exception.bits,
                None => u16::from_le_bytes([low, *self.table().add(usize::from(code))]),
            }
        }
    }
}

/// Writes rows `n .. n + 16` of `weight`, or those that are left of them, into `panel`.
pub fn fill(weight: &Weight, n: usize, units: usize, panel: &mut [u8], exceptions: &Exceptions) {
    let WeightData::Blocks(bytes) = weight.data() else { return };
    let row_bytes = weight.cols() * size_of::<u16>();
    let rows = &bytes[n * row_bytes..(n + ROWS).min(weight.rows()) * row_bytes];
    let (table, codes) = table(rows);
    let (head, groups) = panel.split_at_mut(units_at(units));
    let (mut found, mut starts) = (Vec::new(), Vec::with_capacity(units + 1));
    for (i, to) in groups.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().enumerate() {
        if i % GROUPS == 0 {
            starts.push(found.len() as u32);
        }
        let mut group = Group { codes: [0; PLACES], low: [0; PLACES] };
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let columns = &row.as_chunks::<{ 2 * COLUMNS }>().0[i];
            if !group.put(r, columns, &codes) {
                group.put_some(r, (i * COLUMNS, columns), &codes, &mut found);
            }
        }
        group.pack(to);
    }
    starts.push(found.len() as u32);
    let (header, beginnings) = head.split_at_mut(size_of::<Header>());
    header[..TABLE].copy_from_slice(&table);
    let at = exceptions.keep(found);
    // SAFETY: the header begins with a cache line, and nobody else looks at it yet.
    unsafe { (&raw mut (*header.as_mut_ptr().cast::<Header>()).exceptions).write(at) };
    for (to, start) in beginnings.as_chunks_mut().0.iter_mut().zip(starts) {
        *to = start.to_ne_bytes();
    }
}

/// A group in the making, place by place.
struct Group {
    codes: [u8; PLACES],
    low: [u8; PLACES],
}

impl Group {
    /// Puts eight columns of row `r` where they belong. False when one of them has no code: it is not right then.
    #[inline(always)]
    fn put(&mut self, r: usize, columns: &[u8; 2 * COLUMNS], codes: &[u8; 256]) -> bool {
        let mut all = 0;
        for (j, &[low, upper, next_low, next_upper]) in columns.as_chunks::<4>().0.iter().enumerate() {
            let pair = [codes[usize::from(upper)], codes[usize::from(next_upper)]];
            // Two columns that are a pair lie beside each other.
            let at = place(r, 2 * j);
            self.codes[at..at + 2].copy_from_slice(&pair);
            self.low[at..at + 2].copy_from_slice(&[low, next_low]);
            all |= pair[0] | pair[1];
        }
        all < NO_CODE
    }

    /// Puts those that have a code, and lists the others. The first of them is column `first` of the weight.
    fn put_some(
        &mut self,
        r: usize,
        (first, columns): (usize, &[u8; 2 * COLUMNS]),
        codes: &[u8; 256],
        found: &mut Vec<Exception>,
    ) {
        for (column, &[low, upper]) in columns.as_chunks::<2>().0.iter().enumerate() {
            let (at, code) = (place(r, column), codes[usize::from(upper)]);
            (self.codes[at], self.low[at]) = if code == NO_CODE { (0, 0) } else { (code, low) };
            if code == NO_CODE {
                let bits = u16::from_le_bytes([low, upper]);
                found.push(Exception { column: (first + column) as u32, row: r as u16, bits });
            }
        }
    }

    fn pack(&self, to: &mut [u8; GROUP_BYTES]) {
        let (codes, low) = to.split_at_mut(CODES);
        for (b, to) in codes.iter_mut().enumerate() {
            *to = self.codes[b] | self.codes[CODES + b] << 4;
        }
        low.copy_from_slice(&self.low);
    }
}

/// Of an upper byte that has none: a bit that no code has.
const NO_CODE: u8 = 16;

/// The upper bytes that a panel has most of, behind that of zeros, and the code of each.
fn table(rows: &[u8]) -> ([u8; TABLE], [u8; 256]) {
    let mut counts = [0u32; 256];
    rows.as_chunks::<2>().0.iter().for_each(|[_, upper]| counts[usize::from(*upper)] += 1);
    let mut often: Vec<u8> = (1..=u8::MAX).filter(|upper| counts[usize::from(*upper)] > 0).collect();
    often.sort_by_key(|upper| std::cmp::Reverse(counts[usize::from(*upper)]));
    let (mut table, mut codes) = ([0; TABLE], [NO_CODE; 256]);
    codes[0] = 0;
    for (code, upper) in (1..).zip(often.into_iter().take(TABLE - 1)) {
        table[usize::from(code)] = upper;
        codes[usize::from(upper)] = code;
    }
    (table, codes)
}

#[cfg(test)]
mod tests;
