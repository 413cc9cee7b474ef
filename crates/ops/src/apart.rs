//! A step launch by launch: what each launch left, for whoever judges it by itself.

use std::ops::Range;

use crate::batch::{Batch, Wants};
use crate::op::BufId;
use crate::plan::RowSpace;

/// What some calls of a plan that ran together left.
#[derive(Clone, Debug, PartialEq)]
pub struct Launched {
    /// The calls, by their indices in the plan.
    pub calls: Range<usize>,
    /// The step buffers that were written. What one of the calls hands to another need not be among them.
    pub left: Vec<Left>,
}

/// Rows of a step buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    /// Which.
    pub buffer: BufId,
    /// Whether the launch kept them as BF16 alone, since nobody reads more of them.
    pub bf16: bool,
    /// [rows, width]: those that [`Batch::places`] gives for the rows that were asked for.
    pub values: Vec<f32>,
}

impl Batch {
    /// Where a buffer of `space` has the rows `rows` of the step: all of them, or those among them that want something.
    pub fn places(&self, space: RowSpace, rows: &[usize]) -> Vec<usize> {
        if space == RowSpace::All {
            return rows.to_vec();
        }
        let wants = |t: &usize| self.rows[*t].wants != Wants::Nothing;
        rows.iter().filter(|t| wants(t)).map(|t| (0..*t).filter(wants).count()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Row, TokenSource};

    #[test]
    fn selected_rows_lie_one_after_the_other() {
        let row = |wants| Row { token: TokenSource::Id(0), position: 0, table: 0, slot: 0, context: 1, wants };
        let wants = [Wants::Logits, Wants::Nothing, Wants::Logits, Wants::Nothing, Wants::Logits];
        let batch = Batch { rows: wants.map(row).to_vec(), ..Batch::default() };
        assert_eq!(batch.places(RowSpace::All, &[1, 4]), [1, 4]);
        assert_eq!(batch.places(RowSpace::Selected, &[1, 2, 4]), [1, 2]);
    }
}
