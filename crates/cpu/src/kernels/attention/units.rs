//! Which rows are taken together.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use tare_ops::Row;

use super::pages::Pages;
use super::{Attention, Cache, Method, columns, tiles};
use crate::lanes::{LANES, Lanes};
use crate::pool::Region;

/// Tiles for each worker below which tiles are made smaller.
const TILES: usize = 2;

/// A tile: some rows of one sequence, for a run of heads.
struct Unit {
    rows: Range<usize>,
    /// Which of the call's.
    run: usize,
}

/// The queries of a tile: for each of its rows those of the run's heads.
pub(super) struct Queries<'a> {
    call: &'a Attention,
    cache: Cache<'a>,
    unit: Unit,
}

impl<'a> Queries<'a> {
    /// How many.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.unit.rows.len() * self.heads().len()
    }

    #[inline(always)]
    fn heads(&self) -> &'a Range<usize> {
        &self.call.runs[self.unit.run].0
    }

    /// Row and head of query `i`.
    #[inline(always)]
    fn place(&self, i: usize) -> (usize, usize) {
        let heads = self.heads();
        (self.unit.rows.start + i / heads.len(), heads.start + i % heads.len())
    }

    /// Query `i`: [E]
    #[inline(always)]
    pub(super) fn query(&self, i: usize) -> *const f32 {
        let (t, head) = self.place(i);
        self.call.q.row(t).wrapping_add(head * self.call.head_size)
    }

    /// Numbers `e .. e + 32` of query `i`, where queries lie in tiles.
    #[inline(always)]
    pub(super) fn query_in_tiles(&self, i: usize, e: usize) -> Option<*const u8> {
        let (t, head) = self.place(i);
        self.call.tiled.q.map(|q| q.element(t, head * self.call.head_size + e).cast_const().cast())
    }

    /// Where numbers `e .. e + 32` of its result go, where results lie in tiles.
    #[inline(always)]
    pub(super) fn out_in_tiles(&self, i: usize, e: usize) -> Option<*mut u8> {
        let (t, head) = self.place(i);
        self.call.tiled.out.map(|out| out.element(t, head * self.call.head_size + e).cast())
    }

    /// Where its result goes: [E]
    #[inline(always)]
    pub(super) fn out(&self, i: usize) -> *mut f32 {
        let (t, head) = self.place(i);
        self.call.out.row(t).wrapping_add(head * self.call.head_size)
    }

    /// Tokens that it sees.
    #[inline(always)]
    pub(super) fn context(&self, i: usize) -> usize {
        self.cache.rows[self.place(i).0].context as usize
    }

    /// Tokens that some of them sees.
    #[inline(always)]
    pub(super) fn end(&self) -> usize {
        let rows = &self.cache.rows[self.unit.rows.clone()];
        rows.iter().fold(0, |end, row| end.max(row.context as usize))
    }

    /// The keys and values that they share.
    #[inline(always)]
    pub(super) fn pages(&self) -> Pages<'a> {
        let table = &self.cache.tables[self.cache.rows[self.unit.rows.start].table as usize];
        let (layer, kv_head, size) = (self.call.layer, self.call.runs[self.unit.run].1, self.call.head_size);
        Pages { table, layer, kv_head, size }
    }

    /// Gives each query what was gathered for it, divided by the sum of the weights. out [E rounded up to 16, width] with a
    /// column for each, sum [width]
    ///
    /// # Safety
    /// They lie there, and the results may be written.
    #[inline(always)]
    pub(super) unsafe fn give<L: Lanes>(&self, l: L, out: *const f32, sum: *const f32, width: usize) {
        let size = self.call.head_size;
        for column in (0..self.len()).step_by(LANES) {
            for e in (0..size).step_by(LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let sum = l.load(sum.add(column));
                    let mut square = [sum; LANES];
                    for (i, row) in square.iter_mut().enumerate() {
                        *row = l.div(l.load(out.add((e + i) * width + column)), sum);
                    }
                    let queries = (self.len() - column).min(LANES);
                    for (i, row) in l.transposed(&square).iter().enumerate().take(queries) {
                        let (to, part) = (self.out(column + i).add(e), size - e);
                        if part < LANES { l.store_part(to, part, *row) } else { l.store(to, *row) }
                    }
                }
            }
        }
    }
}

/// The tiles that a worker takes, one by one, from the counter that all share.
pub(super) struct Mine<'a> {
    call: &'a Attention,
    cache: Cache<'a>,
    units: Units<'a>,
    /// Units that have been passed.
    passed: usize,
}

impl<'a> Mine<'a> {
    /// Those of one worker of `region`.
    pub(super) fn new(call: &'a Attention, cache: Cache<'a>, region: Region) -> Self {
        let queries = queries(call, cache.rows, region.workers);
        Self { call, cache, units: Units::new(call, cache.rows, queries), passed: 0 }
    }
}

impl<'a> Iterator for Mine<'a> {
    type Item = Queries<'a>;

    fn next(&mut self) -> Option<Queries<'a>> {
        let mine = self.cache.next.fetch_add(1, Relaxed);
        let unit = self.units.nth(mine - self.passed)?;
        self.passed = mine + 1;
        Some(Queries { call: self.call, cache: self.cache, unit })
    }
}

/// Runs of rows of one table, the last one first.
struct Groups<'a> {
    rows: &'a [Row],
    end: usize,
}

impl Iterator for Groups<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let last = self.rows[..self.end].last()?;
        let others = self.rows[..self.end].iter().rposition(|row| row.table != last.table);
        let group = others.map_or(0, |i| i + 1)..self.end;
        self.end = group.start;
        Some(group)
    }
}

fn groups(rows: &[Row]) -> Groups<'_> {
    Groups { rows, end: rows.len() }
}

/// Whether the rows of a group fill so little of a tile that each is better off alone.
fn is_alone(call: &Attention, group: &Range<usize>) -> bool {
    let heads = call.runs.iter().map(|(run, _)| run.len()).max().unwrap_or(1);
    group.len() * heads <= LANES / 2
}

/// The rows that are taken alone.
pub(super) fn alone(call: &Attention, rows: &[Row]) -> impl Iterator<Item = usize> {
    groups(rows).filter(move |group| is_alone(call, group)).flatten()
}

/// Rows of a tile of so many queries, for a run of heads.
fn rows_of(queries: usize, heads: usize) -> usize {
    (queries / heads).max(1)
}

impl Attention {
    /// Tiles that `workers` take of these rows, those that are taken alone left out.
    pub fn tiles(&self, rows: &[Row], workers: usize) -> usize {
        Units::new(self, rows, queries(self, rows, workers)).count()
    }

    /// Rows that are taken alone.
    pub fn rows_alone(&self, rows: &[Row]) -> usize {
        alone(self, rows).count()
    }
}

/// Queries of a tile: as many as there is room for, or fewer where that would leave workers without any. A query's bits are
/// the same.
fn queries(call: &Attention, rows: &[Row], workers: usize) -> usize {
    let sizes = if call.method == Method::Tiles { tiles::QUERIES } else { columns::QUERIES };
    let tiles = |queries: usize| -> usize {
        let of = |group: Range<usize>| -> usize {
            call.runs.iter().map(|(run, _)| group.len().div_ceil(rows_of(queries, run.len()))).sum()
        };
        groups(rows).filter(|group| !is_alone(call, group)).map(of).sum()
    };
    let enough = |queries: &usize| tiles(*queries) >= TILES * workers;
    sizes.iter().copied().find(enough).or(sizes.last().copied()).unwrap_or(LANES)
}

/// All tiles of a step, later rows first.
struct Units<'a> {
    call: &'a Attention,
    groups: Groups<'a>,
    queries: usize,
    group: Range<usize>,
    run: usize,
    /// Where the next tile of this run ends.
    end: usize,
}

impl<'a> Units<'a> {
    /// The tiles of `rows`, of `queries` each.
    fn new(call: &'a Attention, rows: &'a [Row], queries: usize) -> Self {
        Self { call, groups: groups(rows), queries, group: 0..0, run: call.runs.len(), end: 0 }
    }
}

impl Iterator for Units<'_> {
    type Item = Unit;

    fn next(&mut self) -> Option<Unit> {
        while self.end <= self.group.start {
            self.run += 1;
            if self.run >= self.call.runs.len() {
                let call = self.call;
                self.group = self.groups.find(|group| !is_alone(call, group))?;
                self.run = 0;
            }
            self.end = self.group.end;
        }
        let rows = rows_of(self.queries, self.call.runs[self.run].0.len());
        let start = self.end.saturating_sub(rows).max(self.group.start);
        let unit = Unit { rows: start..self.end, run: self.run };
        self.end = start;
        Some(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::InTiles;
    use super::*;
    use crate::dispatch::in_tiles;
    use crate::memory::Memory;
    use crate::rows::Rows;
    use tare_ops::{TokenSource, Wants};

    fn call(kv_of_head: &[u16]) -> Attention {
        let nothing = Rows::new(&Memory::zeroed(0).unwrap(), 0);
        let runs = Attention::runs_of(kv_of_head);
        Attention {
            layer: 0,
            q: nothing,
            out: nothing,
            head_size: 64,
            scale: 1.0,
            runs,
            method: Method::Columns,
            tiled: InTiles::default(),
        }
    }

    fn rows(tables: &[u32]) -> Vec<Row> {
        let row =
            |&table| Row { token: TokenSource::Id(0), position: 0, table, slot: 0, context: 1, wants: Wants::Nothing };
        tables.iter().map(row).collect()
    }

    #[test]
    fn every_row_is_taken_once_for_each_head() {
        // A chunk of 70, one row, a chunk of 33, three rows of sequences of their own.
        let tables: Vec<u32> = [(0, 70), (1, 1), (2, 33), (3, 1), (4, 1), (0, 1)]
            .into_iter()
            .flat_map(|(table, n)| std::iter::repeat_n(table, n))
            .collect();
        let rows = rows(&tables);
        for kv_of_head in [&[0u16][..], &[0, 0, 1, 1], &[0, 0, 0, 1], &[0; 9]] {
            let call = call(kv_of_head);
            for workers in [1, 2, 16, 200] {
                let queries = queries(&call, &rows, workers);
                let mut taken = vec![vec![0; call.heads()]; rows.len()];
                for unit in Units::new(&call, &rows, queries) {
                    let heads = call.runs[unit.run].0.clone();
                    assert!(unit.rows.len() * heads.len() <= queries);
                    assert!(rows[unit.rows.clone()].iter().all(|r| r.table == rows[unit.rows.start].table));
                    unit.rows.for_each(|t| heads.clone().for_each(|h| taken[t][h] += 1));
                }
                alone(&call, &rows).for_each(|t| taken[t].iter_mut().for_each(|n| *n += 1));
                assert!(taken.iter().flatten().all(|n| *n == 1), "{kv_of_head:?} {workers} workers");
            }
        }
    }

    #[test]
    fn a_report_counts_tiles_and_the_rows_beside_them() {
        let (call, workers) = (call(&[0, 0, 1, 1]), 2);
        let said = |tables: &[u32]| in_tiles(&call, &rows(tables), workers).to_string();
        let (tiles, single) = ("tiles of rows, taken one by one", "runs of heads of single rows, each by all workers");
        assert_eq!(said(&[0; 96]), format!("8 {tiles}"), "96 rows of two runs, 24 rows in a tile");
        assert_eq!(said(&[0, 1, 2]), format!("6 {single}"), "three rows of two runs, and no tile");
        assert_eq!(said(&[&[0; 96][..], &[1, 2]].concat()), format!("8 {tiles}, and 4 {single}"));
        for tables in [&[0; 9][..], &[0; 4], &[0, 0, 1], &[3; 200]] {
            assert!(!said(tables).starts_with("0 "), "{}", said(tables));
        }
    }

    #[test]
    fn tiles_are_small_where_workers_would_have_none() {
        let (call, rows) = (call(&[0, 0, 1, 1]), rows(&[0; 96]));
        assert_eq!([1, 4, 5].map(|workers| queries(&call, &rows, workers)), [48, 48, 16]);
    }
}
