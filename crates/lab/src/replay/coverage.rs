//! Whether the groups together ran what the step ran.

use serde::{Deserialize, Serialize};
use tare_core::Fault;
use tare_core::digest::sha256_hex;
use tare_cpu::Dispatch;

use super::Dispatched;

/// The dispatch traces of the step and of its groups, compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Whether every stage of the step ran in exactly one group, with the same kernel, rows and split, and nothing else.
    pub complete: bool,
    /// The first difference.
    pub reason: Option<String>,
    /// Stages that the step ran.
    pub step_stages: usize,
    /// Stages that the groups ran together.
    pub group_stages: usize,
    /// SHA-256 of the step's trace.
    pub step_sha256: String,
    /// SHA-256 of the traces of the groups, merged in the order of calls.
    pub groups_sha256: String,
}

impl Coverage {
    pub(super) fn of(ran: &Dispatched) -> Result<Self, Fault> {
        let mut merged: Vec<Dispatch> = ran.groups.iter().flatten().cloned().collect();
        // Stages of one call lie in one group, in order: a stable sort by call puts all of them in the step's order.
        merged.sort_by_key(|d| d.call);
        let longest = ran.whole.len().max(merged.len());
        let differs = (0..longest).find(|&i| ran.whole.get(i) != merged.get(i));
        let reason = differs.map(|i| {
            let say = |d: Option<&Dispatch>| d.map_or_else(|| "nothing".to_string(), describe);
            format!("stage {i} of the step is {}, in the groups {}", say(ran.whole.get(i)), say(merged.get(i)))
        });
        Ok(Self {
            complete: reason.is_none(),
            reason,
            step_stages: ran.whole.len(),
            group_stages: merged.len(),
            step_sha256: digest(&ran.whole)?,
            groups_sha256: digest(&merged)?,
        })
    }
}

fn describe(d: &Dispatch) -> String {
    format!("{} of call {} ({}) on {} rows, {:?}", d.stage, d.call, d.kernel, d.rows, d.split)
}

fn digest(trace: &[Dispatch]) -> Result<String, Fault> {
    let json = serde_json::to_vec(trace).map_err(|e| Fault::new("dispatch trace", "a JSON value", e.to_string()))?;
    Ok(sha256_hex(&json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_cpu::Split;

    fn stage(call: usize, kernel: &str, of_worker: [usize; 2]) -> Dispatch {
        let split = Split::Fixed { unit: "rows", items: 4, chunk: 1, of_worker: of_worker.to_vec() };
        Dispatch { call, first_call: call, kernel: kernel.into(), stage: "kernel", rows: 4, split }
    }

    fn covered(groups: Vec<Vec<Dispatch>>) -> Coverage {
        let whole = vec![stage(0, "norm", [2, 2]), stage(1, "linear", [2, 2]), stage(2, "norm", [2, 2])];
        Coverage::of(&Dispatched { whole, groups }).unwrap()
    }

    #[test]
    fn groups_in_any_order_cover_the_step() {
        let c =
            covered(vec![vec![stage(1, "linear", [2, 2])], vec![stage(0, "norm", [2, 2]), stage(2, "norm", [2, 2])]]);
        assert!(c.complete, "{c:?}");
        assert_eq!(c.step_sha256, c.groups_sha256);
    }

    #[test]
    fn a_stage_missing_twice_or_launched_otherwise_is_named() {
        let norms = || vec![stage(0, "norm", [2, 2]), stage(2, "norm", [2, 2])];
        let wrong = [
            (vec![norms()], "stage 1 of the step is kernel of call 1 (linear)"),
            (
                vec![norms(), vec![stage(1, "linear", [2, 2])], vec![stage(2, "norm", [2, 2])]],
                "stage 3 of the step is nothing",
            ),
            (vec![norms(), vec![stage(1, "linear", [3, 1])]], "of_worker: [3, 1]"),
            (vec![norms(), vec![stage(1, "linear.other", [2, 2])]], "linear.other"),
        ];
        for (groups, reason) in wrong {
            let c = covered(groups);
            assert!(!c.complete && c.step_sha256 != c.groups_sha256);
            assert!(c.reason.as_deref().is_some_and(|r| r.contains(reason)), "{:?} lacks {reason}", c.reason);
        }
    }
}
