//! From a plan to a program: which kernels, which weights, where its buffers lie.

use std::sync::Arc;

use tare_core::Fault;
use tare_ops::{BatchCheck, ForwardPlan, HeadCalls, IsaSet, Op, OpCall, OpError, Variant};

use super::room::{Arenas, Room};
use super::{Build, Carried, Program};
use crate::fuse::{self, Role};
use crate::layouts::{Fresh, Layouts};
use crate::matrix::Held;
use crate::registry::{Entry, Registry};

/// What a plan is compiled against.
#[derive(Clone, Copy, Debug)]
pub struct Linker<'a> {
    /// The kernels.
    pub registry: &'a Registry,
    /// The levels that may be used.
    pub isa: &'a IsaSet,
    /// The weights of the backend, by [`WeightId`](tare_ops::WeightId).
    pub weights: &'a [Held],
    /// Panels that are not filled yet.
    pub fresh: &'a Fresh,
    /// Step memory of earlier programs.
    pub arenas: Option<&'a Arenas>,
}

impl Linker<'_> {
    /// In which layouts `plan` reads its matrices.
    ///
    /// # Errors
    /// As [`Linker::compile`].
    pub fn layouts(&self, plan: &ForwardPlan) -> Result<Layouts, OpError> {
        plan.validate()?;
        self.check_weights(plan)?;
        let entries = plan.calls.iter().map(|call| self.resolve(plan, call)).collect::<Result<Vec<_>, _>>()?;
        Ok(Layouts::of(plan, &entries))
    }

    /// Compiles `plan`.
    ///
    /// # Errors
    /// When the plan does not validate, names an unknown kernel or weight, or memory runs out.
    pub fn compile(&self, plan: &ForwardPlan) -> Result<Program, OpError> {
        plan.validate()?;
        self.check_weights(plan)?;
        // Kept until the second is there: what it has looked at of the weights need not be made again.
        let sketch = self.build(plan, Room::default())?.0;
        let (build, carried) = self.build(plan, sketch.room.placed(self.arenas)?)?;
        let Some((arenas, own)) = build.room.into_memory() else {
            return Err(Fault::new(format!("plan {}", plan.name), "a place for each buffer", "none").into());
        };
        Ok(Program {
            check: BatchCheck::new(plan),
            bucket: plan.bucket,
            rope: plan.rope.clone(),
            kernels: plan.calls.iter().map(|c| c.kernel.clone()).collect(),
            attends: build.attends,
            carried,
            stages: build.stages,
            arenas,
            own: own.into_iter().map(Arc::new).collect(),
            kept: Arc::new(build.kept),
            spun_ns: Arc::default(),
        })
    }

    /// The stages, the calls that run together, and what these leave.
    fn build<'a>(&'a self, plan: &'a ForwardPlan, room: Room) -> Result<(Build<'a>, Vec<Carried>), OpError> {
        let mut build = Build::new(*self, plan, room)?;
        let entries = plan.calls.iter().map(|call| self.resolve(plan, call)).collect::<Result<Vec<_>, _>>()?;
        let roles = fuse::roles(plan, &entries);
        let mut carried = Vec::with_capacity(roles.len());
        for (i, (call, role)) in plan.calls.iter().zip(roles).enumerate() {
            build.call(i, &call.op, (&entries, role)).map_err(|e| match e {
                OpError::Input(f) => f.within(format!("plan {} call {i} ({})", plan.name, call.kernel)).into(),
                other => other,
            })?;
            if let Some(calls) = role.calls(i) {
                let left = match role {
                    Role::Heads(HeadCalls { q, k, .. }) => vec![q, k],
                    Role::Projected(HeadCalls { q, .. }, _) => vec![q],
                    _ => call.op.writes().into_iter().collect(),
                };
                carried.push((calls, left.into_iter().map(|buffer| build.written(buffer, role)).collect()));
            }
        }
        Ok((build, carried))
    }

    /// The weights of a plan must be those that were packed.
    fn check_weights(&self, plan: &ForwardPlan) -> Result<(), Fault> {
        for info in &plan.weights {
            let at = || format!("plan {}: weight {}", plan.name, info.name);
            let Some(held) = self.weights.get(info.id.0 as usize) else {
                return Err(Fault::new(at(), "a handle of this backend", info.id.0.to_string()));
            };
            let w = held.info();
            if (w.format, w.rows, w.cols) != (info.format, info.rows, info.cols) {
                let expected = format!("{} [{}, {}]", w.format, w.rows, w.cols);
                return Err(Fault::new(at(), expected, format!("{} [{}, {}]", info.format, info.rows, info.cols)));
            }
        }
        Ok(())
    }

    fn resolve(&self, plan: &ForwardPlan, call: &OpCall) -> Result<Entry, Fault> {
        let format = call.op.matrix().and_then(|w| plan.weight(w)).map(|w| w.format);
        let named = self.registry.find(&call.kernel);
        let computes = |v: &Variant| match &call.op {
            Op::Linear { rounding, .. } => v.rounds(Some(*rounding)),
            _ => true,
        };
        let fitting =
            named.filter(|(v, _)| v.op == call.op.name() && (v.format.is_none() || v.format == format) && computes(v));
        let reads = format.map_or_else(String::new, |f| format!(" for {f}"));
        match fitting {
            Some((v, entry)) if self.isa.has(v.isa) => Ok(entry),
            Some((v, _)) => {
                Err(Fault::new(format!("plan {}", plan.name), format!("a host with {}", v.isa), call.kernel.clone()))
            }
            None => {
                let with = match &call.op {
                    Op::Linear { rounding, .. } => format!(" with activations in {rounding}"),
                    _ => String::new(),
                };
                let expected = format!("a kernel of this backend that computes {}{reads}{with}", call.op.name());
                Err(Fault::new(format!("plan {}", plan.name), expected, call.kernel.clone()))
            }
        }
    }
}
