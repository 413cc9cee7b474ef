//! Who multiplies what: outputs in squares of 32 weight rows by 32 rows of x.

use std::ops::Range;

use crate::pool::share_of;

/// Weight rows, and rows of x, of a square.
pub const SQUARE: usize = 32;
/// What it costs to unpack the weights of a square, in squares.
const UNPACK: usize = 2;

/// Squares, and the parts into which they are cut along weight rows (across) and rows of x (down). Each worker has one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    across: usize,
    down: usize,
    /// Squares across that are never parted.
    run: usize,
    parts: (usize, usize),
}

impl Grid {
    /// The cut for n weight rows and `rows` rows of x whose largest part takes the least time. Narrow matrices are cut along
    /// rows of x as well, and each part then unpacks its weights again.
    pub fn of(n: usize, rows: usize, workers: usize) -> Self {
        Self::in_runs(n, rows, workers, SQUARE)
    }

    /// The same of runs of `run` weight rows that are never parted, a multiple of 32.
    pub fn in_runs(n: usize, rows: usize, workers: usize, run: usize) -> Self {
        let (across, down, run) = (n.div_ceil(SQUARE), rows.div_ceil(SQUARE), run / SQUARE);
        let cut = |wide: usize| (wide, workers / wide);
        let widest = |wide: usize| across.div_ceil(run).div_ceil(wide) * run;
        let time = |&(wide, high): &(usize, usize)| widest(wide) * (UNPACK + down.div_ceil(high));
        // Of equal ones the widest, which unpacks least.
        let parts = (1..=workers.max(1)).rev().map(cut).min_by_key(time).unwrap_or((1, 1));
        Self { across, down, run, parts }
    }

    /// The squares of worker `worker`: across and down.
    pub fn share(&self, worker: usize) -> (Range<usize>, Range<usize>) {
        let (wide, high) = self.parts;
        if worker >= wide * high {
            return (0..0, 0..0);
        }
        (share_of(self.across, self.run, worker / high, wide), share_of(self.down, 1, worker % high, high))
    }

    /// How many squares there are.
    pub fn squares(&self) -> usize {
        self.across * self.down
    }

    /// How many worker `worker` multiplies.
    pub fn squares_of(&self, worker: usize) -> usize {
        let (across, down) = self.share(worker);
        across.len() * down.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_square_has_one_worker() {
        for (n, rows, workers) in [(1, 1, 1), (70, 130, 3), (128, 512, 16), (1024, 512, 16), (159, 500, 7), (33, 5, 16)]
        {
            let grid = Grid::of(n, rows, workers);
            let mut times = vec![0; grid.squares()];
            for worker in 0..workers {
                let (across, down) = grid.share(worker);
                for (i, j) in down.flat_map(|i| across.clone().map(move |j| (i, j))) {
                    times[i * grid.across + j] += 1;
                }
            }
            assert!(times.iter().all(|n| *n == 1), "{n} by {rows} among {workers}");
        }
    }

    #[test]
    fn runs_are_never_parted() {
        for (n, rows, workers, run) in [(4096, 512, 2, 128), (640, 45, 3, 64), (1024, 45, 16, 256), (384, 9, 5, 96)] {
            let grid = Grid::in_runs(n, rows, workers, run);
            let shares = (0..workers).map(|worker| grid.share(worker).0);
            let runs =
                |r: &Range<usize>| (r.start * SQUARE).is_multiple_of(run) && (r.end * SQUARE).is_multiple_of(run);
            assert!(shares.clone().all(|r| runs(&r)), "{n} by {rows} among {workers} in runs of {run}");
            assert_eq!((0..workers).map(|worker| grid.squares_of(worker)).sum::<usize>(), grid.squares());
        }
    }

    #[test]
    fn wide_matrices_are_cut_along_their_rows_and_narrow_ones_both_ways() {
        assert_eq!(Grid::of(3072, 512, 16).parts, (16, 1));
        assert_eq!(Grid::of(1024, 32, 16).parts, (16, 1));
        assert_eq!(Grid::of(128, 512, 16).parts, (4, 4));
        assert_eq!(Grid::of(64, 64, 1).parts, (1, 1));
    }
}
