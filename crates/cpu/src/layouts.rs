//! In which layouts a plan reads its matrices.

use std::collections::{BTreeMap, BTreeSet};

use tare_ops::{ForwardPlan, OpError, WeightId};

use crate::matrix::Held;
use crate::panels::Packed;
use crate::pool::Pool;
use crate::registry::Entry;

/// The matrices of a plan, by what its kernels read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layouts {
    /// In panels, each once, in the order of calls.
    panels: Vec<WeightId>,
    /// As the file has them.
    file: BTreeSet<WeightId>,
}

/// Panels that a plan needs and the backend does not have yet: room, to be filled when everything else is ready.
pub type Fresh = BTreeMap<WeightId, Packed>;

impl Layouts {
    /// Those of `plan`, whose calls are bound to `entries`.
    pub fn of(plan: &ForwardPlan, entries: &[Entry]) -> Self {
        let mut layouts = Self::default();
        for (call, entry) in plan.calls.iter().zip(entries) {
            let Some(id) = call.op.matrix() else { continue };
            if !entry.reads_panels() {
                layouts.file.insert(id);
            } else if !layouts.panels.contains(&id) {
                layouts.panels.push(id);
            }
        }
        layouts
    }

    /// Room for the panels that `weights` lack.
    ///
    /// # Errors
    /// When memory runs out, or a weight has been let go.
    pub fn reserve(&self, weights: &[Held]) -> Result<Fresh, OpError> {
        let missing = self.panels.iter().filter(|id| weights[id.0 as usize].panels().is_none());
        let missing: Vec<(WeightId, &tare_core::Weight)> =
            missing.map(|id| Ok((*id, weights[id.0 as usize].file()?))).collect::<Result<_, OpError>>()?;
        let packed = Packed::reserve(missing.iter().map(|(_, w)| *w))?;
        Ok(missing.iter().zip(packed).filter_map(|((id, _), p)| Some((*id, p?))).collect())
    }

    /// Fills the room and gives it to `weights`. Bytes that this plan does not read as the file has them are let go one by
    /// one, so that at most one weight is held twice where they are memory of their own.
    ///
    /// # Errors
    /// When a worker panics, or a weight has been let go.
    pub fn settle(&self, mut fresh: Fresh, weights: &mut [Held], workers: &mut Pool) -> Result<(), OpError> {
        for id in &self.panels {
            let held = &mut weights[id.0 as usize];
            if let Some(packed) = fresh.remove(id) {
                // Through a clone, with which goes what had to be made of it.
                packed.fill(&held.file()?.clone(), workers)?;
                held.take_panels(packed);
            }
            if !self.file.contains(id) {
                held.let_file_go();
            }
        }
        Ok(())
    }
}
