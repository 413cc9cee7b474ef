//! Linears with 8-bit activations: their panels, and the conversion in front of them.

use tare_core::Fault;
use tare_ops::{BufId, Op, OpError, WeightId};

use super::{Build, Task, step_memory};
use crate::codes::Codes;
use crate::kernels::linear_int8::{LinearInt8, LinearInt8Fn};
use crate::kernels::quantize::{Quantize, QuantizeFn};
use crate::matrix::Kept;
use crate::order::Resource;
use crate::panels::Panels;

impl Build<'_> {
    /// The linear `op`, which multiplies x with a weight.
    pub(super) fn linear_int8(
        &mut self,
        i: usize,
        op: &Op,
        (x, weight): (BufId, WeightId),
        (quantize, product): (QuantizeFn, LinearInt8Fn),
    ) -> Result<(), OpError> {
        let codes = self.codes(i, x, quantize)?;
        let call = LinearInt8 { x: codes, weight: self.panels(weight)?, end: self.epilogue(op)? };
        let task = Task::LinearInt8(product, call, self.space(x));
        self.push(i, task, &[Resource::Codes(x)], &[Resource::Buffer(*op.output())]);
        Ok(())
    }

    /// A matrix in panels.
    pub(super) fn panels(&mut self, id: WeightId) -> Result<Panels, Fault> {
        let linker = self.linker;
        let held = &linker.weights[id.0 as usize];
        let packed = held.panels().or_else(|| linker.fresh.get(&id));
        let format = held.info().format.to_string();
        let packed = packed.ok_or_else(|| Fault::new(&held.info().name, "a format with codes", format))?;
        self.kept.push(Kept::Panels(packed.clone()));
        Ok(packed.panels())
    }

    /// The copy of a buffer in 8 bits, made by a stage unless it is there already.
    fn codes(&mut self, i: usize, x: BufId, f: QuantizeFn) -> Result<Codes, OpError> {
        let at = x.0 as usize;
        let (out, fresh) = match self.codes[at] {
            Some(copy) => copy,
            None => {
                let (rows, width) = (self.most(self.space(x)), self.buffer(x).width);
                let memory = step_memory(Codes::bytes(rows, width))?;
                let view = Codes::new(&memory, width);
                self.memory.push(memory);
                (view, false)
            }
        };
        if !fresh {
            let task = Task::Quantize(f, Quantize { x: self.buffer(x), out }, self.space(x));
            self.push(i, task, &[Resource::Buffer(x)], &[Resource::Codes(x)]);
        }
        self.codes[at] = Some((out, true));
        Ok(out)
    }
}
