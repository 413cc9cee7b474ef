//! What a stage was launched with: which kernel, on how many rows, and who did which share.

use std::fmt;

use serde::Serialize;
use tare_ops::{Row, RowSpace};

use crate::coded;
use crate::kernels::attention::{Attention, Method};
use crate::kernels::linear;
use crate::kernels::linear_tiles::grid::Grid;
use crate::pool::share_of;
use crate::program::{Program, Stage, Task};

/// One stage of a step as it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dispatch {
    /// Index of its call in the plan: the last one that it carries.
    pub call: usize,
    /// Index of the first one.
    pub first_call: usize,
    /// Key of the call's kernel; of calls that run together all of them, joined by `+`.
    pub kernel: String,
    /// What the stage did for its calls: `kernel`, or what goes before it or was planted behind it.
    pub stage: &'static str,
    /// Rows that went through it.
    pub rows: usize,
    /// Who did what.
    pub split: Split,
}

/// How the workers shared a stage out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Each takes its run of items, fixed beforehand.
    Fixed {
        /// What is counted.
        unit: &'static str,
        /// How many.
        items: usize,
        /// Items that are never parted.
        chunk: usize,
        /// Items of each worker.
        of_worker: Vec<usize>,
    },
    /// Each takes the next piece when it is done with one.
    Taken {
        /// What is counted.
        unit: &'static str,
        /// How many.
        items: usize,
    },
    /// Each item is shared out among the workers, who meet inside the stage.
    Shared {
        /// What is counted.
        unit: &'static str,
        /// How many.
        items: usize,
    },
    /// Some items are taken as in [`Split::Taken`], those of another kind shared out as in [`Split::Shared`].
    TakenAndShared {
        /// What is taken.
        taken_unit: &'static str,
        /// How many.
        taken: usize,
        /// What is shared out.
        shared_unit: &'static str,
        /// How many.
        shared: usize,
    },
    /// Every worker does the same.
    Every,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Split::Fixed { unit, items, of_worker, .. } => {
                let shares: Vec<String> = of_worker.iter().map(ToString::to_string).collect();
                write!(f, "{items} {unit}: {}", shares.join(" + "))
            }
            Split::Taken { unit, items } => write!(f, "{items} {unit}, taken one by one"),
            Split::Shared { unit, items } => write!(f, "{items} {unit}, each by all workers"),
            Split::TakenAndShared { taken_unit, taken, shared_unit, shared } => {
                write!(f, "{taken} {taken_unit}, taken one by one, and {shared} {shared_unit}, each by all workers")
            }
            Split::Every => f.write_str("every worker"),
        }
    }
}

/// How attention in tiles shares out `rows`: rows that would fill little of a tile are taken alone, in spans of their context.
pub(crate) fn in_tiles(call: &Attention, rows: &[Row], workers: usize) -> Split {
    let (taken, shared) = (call.tiles(rows, workers), call.pieces(call.rows_alone(rows)));
    let (taken_unit, shared_unit) = ("tiles of rows", "runs of heads of single rows");
    match (taken, shared) {
        (0, _) => Split::Shared { unit: shared_unit, items: shared },
        (_, 0) => Split::Taken { unit: taken_unit, items: taken },
        _ => Split::TakenAndShared { taken_unit, taken, shared_unit, shared },
    }
}

impl Dispatch {
    /// What `stage` of `program` runs with.
    pub(crate) fn of(program: &Program, stage: &Stage, launch: &Launch<'_>) -> Self {
        let Launch { rows: batch, selected, context, workers } = *launch;
        let all = batch.len();
        let of = |space: &RowSpace| if *space == RowSpace::All { all } else { selected };
        let fixed = |unit, items: usize, chunk: usize| Split::Fixed {
            unit,
            items,
            chunk,
            of_worker: (0..workers).map(|w| share_of(items, chunk, w, workers).len()).collect(),
        };
        let (what, rows, split) = match &stage.task {
            Task::Angles(_) => ("angles", all, fixed("rows", all, 1)),
            Task::Round(_, space) => ("round", of(space), fixed("rows", of(space), 1)),
            Task::Quantize(_, call, space) => {
                ("quantize", of(space), fixed("runs of 128 columns", call.items(of(space)), 1))
            }
            Task::Embedding(..) | Task::Gather(..) => (KERNEL, all, fixed("rows", all, 1)),
            Task::Norm(_, call, space) => (KERNEL, of(space), fixed("vectors", call.items(of(space)), 1)),
            Task::Rope(_, call) => (KERNEL, all, fixed("heads", call.items(all), 1)),
            Task::Linear(_, call, space) => (KERNEL, of(space), fixed("weight rows", call.weight.rows, linear::GROUP)),
            Task::LinearInt(_, call, space) => (KERNEL, of(space), fixed("weight rows", call.weight.rows, coded::ROWS)),
            Task::LinearLossless(_, call, space) => {
                (KERNEL, of(space), fixed("weight rows", call.weight.rows, coded::ROWS))
            }
            Task::IntoTiles(_, call, space) => {
                let (what, unit) = match call.norm {
                    Some(_) => (KERNEL, "rows of tiles"),
                    None => ("tiles", "runs of 8 tiles"),
                };
                (what, of(space), fixed(unit, call.items(of(space)), 1))
            }
            Task::LinearTiles(_, call, space) => {
                (KERNEL, of(space), squares("squares of 32 outputs by 32 rows", call.grid(of(space), workers), workers))
            }
            Task::GatedTiles(_, call, space) => {
                let unit = "squares of 16 units by 32 rows";
                (KERNEL, of(space), squares(unit, call.grid(of(space), workers), workers))
            }
            Task::HeadsTiles(_, call) => {
                (KERNEL, all, squares("squares of 32 numbers of heads by 32 rows", call.grid(all, workers), workers))
            }
            Task::Heads(_, call) => (KERNEL, all, fixed("heads of queries and keys", call.items(all), 1)),
            Task::KvAppend(call) => (KERNEL, all, fixed("heads", call.items(all), 1)),
            Task::Attention(_, call, _) => {
                let (unit, items) = ("runs of heads", call.pieces(all));
                let split = match call.method {
                    Method::Ordered if !call.shared_out(all, context, workers) => Split::Taken { unit, items },
                    Method::Ordered | Method::Spans => Split::Shared { unit, items },
                    Method::Columns | Method::Tiles => in_tiles(call, batch, workers),
                };
                (KERNEL, all, split)
            }
            Task::SwiGlu(_, call, space) => (KERNEL, of(space), fixed("lanes of 16", call.items(of(space)), 1)),
            Task::SelectRows(_) => (KERNEL, selected, fixed("rows", selected, 1)),
            Task::Sample(..) => (KERNEL, selected, fixed("rows", selected, 1)),
            Task::Mark(_) => ("mark", all, Split::Every),
            Task::Spin(_) => ("planted delay", all, Split::Every),
        };
        let calls = program.together_with(stage.call);
        let mut kernels = program.kernels[calls.clone()].to_vec();
        kernels.dedup();
        Self { call: stage.call, first_call: calls.start, kernel: kernels.join("+"), stage: what, rows, split }
    }
}

/// The squares of a grid.
fn squares(unit: &'static str, grid: Grid, workers: usize) -> Split {
    let of_worker = (0..workers).map(|w| grid.squares_of(w)).collect();
    Split::Fixed { unit, items: grid.squares(), chunk: 1, of_worker }
}

/// What decides how a step's stages are shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) rows: &'a [Row],
    /// Rows that something is wanted of.
    pub(crate) selected: usize,
    /// The longest context.
    pub(crate) context: usize,
    pub(crate) workers: usize,
}

/// The stage that is the call itself.
const KERNEL: &str = "kernel";
