//! Guards: a kernel that a plan takes for some numbers of rows because a measurement said so.

use serde::{Deserialize, Serialize};
use tare_core::Fault;
use tare_ops::{OpName, OpShape};

/// In buckets of so many rows an operator of this shape takes this kernel, whatever the backend would prefer.
///
/// It is written into a plan by `tare study ops` from a crossover that was found again in every pass, and it names the
/// evidence. On a host or in a format for which the kernel is not made, a guard says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Name of the operator: `linear`.
    pub operator: String,
    /// Key of the kernel: `linear.q4_0.avx2`.
    pub kernel: String,
    /// Output width of the calls that it is for.
    pub n: usize,
    /// Their input width.
    pub k: usize,
    /// The least and the most rows of the buckets that it is for.
    pub rows: [usize; 2],
    /// Id of the evidence that set it.
    pub evidence: String,
}

impl Guard {
    /// Whether it is for calls of `op` of this shape at the full bucket. What was measured at one shape says nothing about
    /// another.
    pub fn is_for(&self, op: OpName, shape: &OpShape) -> bool {
        self.operator == op.name()
            && (self.n, self.k) == (shape.n, shape.k)
            && (self.rows[0]..=self.rows[1]).contains(&shape.rows)
    }

    /// The kernel's key without the instruction set: guards of different kinds never meet.
    fn kind(&self) -> &str {
        self.kernel.rsplit_once('.').map_or(&self.kernel, |(kind, _)| kind)
    }
}

/// Checks the guards of a plan.
///
/// # Errors
/// When an operator is unknown, a kernel is of another operator, rows are no range, the evidence is missing, or two
/// guards claim the same rows.
pub(crate) fn check(guards: &[Guard]) -> Result<(), Fault> {
    for (i, g) in guards.iter().enumerate() {
        let at = |field: &str| format!("guards[{i}].{field}");
        if !OpName::ALL.iter().any(|op| op.name() == g.operator) {
            let names: Vec<&str> = OpName::ALL.iter().map(|op| op.name()).collect();
            return Err(Fault::new(
                at("operator"),
                format!("one of {}", names.join(", ")),
                format!("`{}`", g.operator),
            ));
        }
        if !g.kernel.starts_with(&format!("{}.", g.operator)) {
            let expected = format!("a kernel key `{}.…`", g.operator);
            return Err(Fault::new(at("kernel"), expected, format!("`{}`", g.kernel)));
        }
        if g.rows[0] == 0 || g.rows[0] > g.rows[1] {
            let found = format!("{} to {}", g.rows[0], g.rows[1]);
            return Err(Fault::new(at("rows"), "[least, most], from 1 on", found));
        }
        if g.evidence.trim().is_empty() {
            return Err(Fault::new(at("evidence"), "the id of what was measured", "nothing"));
        }
        let meets = |o: &&Guard| {
            (o.kind(), o.n, o.k) == (g.kind(), g.n, g.k) && o.rows[0] <= g.rows[1] && g.rows[0] <= o.rows[1]
        };
        if let Some(other) = guards[..i].iter().find(meets) {
            let expected = format!("rows that no other guard of {} claims", g.kind());
            let found = format!("{} to {}, which {} claims too", g.rows[0], g.rows[1], other.kernel);
            return Err(Fault::new(at("rows"), expected, found));
        }
    }
    Ok(())
}
