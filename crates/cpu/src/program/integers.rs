//! Linears with activations in integers: their panels, and the conversion in front of them.

use tare_core::Fault;
use tare_ops::{BufId, Op, OpError, WeightId};

use super::room::Share;
use super::{Build, Task};
use crate::codes::Codes;
use crate::kernels::linear_int::LinearInt;
use crate::kernels::quantize::Quantize;
use crate::matrix::Kept;
use crate::order::Resource;
use crate::panels::Panels;
use crate::registry::Integers;

impl Build<'_> {
    /// The linear `op`, which multiplies x with a weight.
    pub(super) fn linear_int(
        &mut self,
        i: usize,
        op: &Op,
        (x, weight): (BufId, WeightId),
        kernel: Integers,
    ) -> Result<(), OpError> {
        let codes = self.codes(i, x, kernel)?;
        let call = LinearInt { x: codes, weight: self.panels(weight)?, end: self.epilogue(op)? };
        let task = Task::LinearInt(kernel.product, call, self.space(x));
        self.push_linear(i, op, task, Resource::Codes(x, kernel.planes));
        Ok(())
    }

    /// A matrix in panels.
    pub(super) fn panels(&mut self, id: WeightId) -> Result<Panels, Fault> {
        let linker = self.linker;
        let held = &linker.weights[id.0 as usize];
        let packed = held.panels().or_else(|| linker.fresh.get(&id));
        let format = held.info().format.to_string();
        let packed =
            packed.ok_or_else(|| Fault::new(&held.info().name, "a format and columns that go into panels", format))?;
        self.kept.push(Kept::Panels(packed.clone()));
        Ok(packed.panels())
    }

    /// The copy of a buffer in the integers of a kernel, made by a stage unless it is there already.
    fn codes(&mut self, i: usize, x: BufId, kernel: Integers) -> Result<Codes, OpError> {
        let (at, planes) = (x.0 as usize, kernel.planes);
        let (out, fresh) = match self.codes[at][planes - 1] {
            Some(copy) => copy,
            None => {
                let (rows, width) = (self.most(self.space(x)), self.buffer(x).width);
                let first = self.piece(Resource::Codes(x, planes), Share::Codes, Codes::bytes(planes, rows, width))?;
                (Codes::at(first, width), false)
            }
        };
        if !fresh {
            let task = Task::Quantize(kernel.quantize, Quantize { x: self.buffer(x), out }, self.space(x));
            self.push(i, task, &[Resource::Buffer(x)], &[Resource::Codes(x, planes)]);
        }
        self.codes[at][planes - 1] = Some((out, true));
        Ok(out)
    }
}
