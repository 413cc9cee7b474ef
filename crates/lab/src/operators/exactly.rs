//! What the operators of a step give exactly, on weights of the judge's own.

use std::collections::BTreeMap;
use std::ops::Range;

use tare_core::Weight;
use tare_formats::Role;
use tare_formats::codec::dequantize_row;
use tare_ops::exact::{self, Bounds, Taken};
use tare_ops::reference::kv::Half;
use tare_ops::reference::linear::{self, Epilogue};
use tare_ops::{ForwardPlan, Op, OpCall, Order, Row, Slack, Variant, WeightId};

use super::cached::Cached;
use crate::LabError;
use crate::rig::Rig;

/// Computes on the processors of the rig.
#[derive(Debug)]
pub(super) struct Exactly<'a> {
    rig: &'a Rig<'a>,
    /// The kernels of the backend that is judged: what each promises.
    variants: BTreeMap<String, (Order, Slack)>,
    roles: BTreeMap<String, Role>,
    /// Weights that were made so far.
    fresh: BTreeMap<String, Weight>,
}

/// Rows of a product and what is added to each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<'a> {
    /// The weight.
    pub(super) weight: &'a Weight,
    /// [n]
    pub(super) bias: Option<&'a [f32]>,
    /// Inputs, row by row. [T, k]
    pub(super) x: &'a [Bounds],
    /// What outputs are added to. [T, n]
    pub(super) before: Option<&'a [Bounds]>,
}

impl<'a> Exactly<'a> {
    /// A judge of what runs on kernels of `variants`.
    pub(super) fn new(rig: &'a Rig<'a>, variants: &[Variant]) -> Self {
        let variants = variants.iter().map(|v| (v.key.clone(), (v.order, v.slack))).collect();
        let roles = Role::all(rig.model.config()).into_iter().map(|role| (role.to_string(), role)).collect();
        Self { rig, variants, roles, fresh: BTreeMap::new() }
    }

    /// What the kernel of a call promises.
    ///
    /// # Errors
    /// When the backend has no such kernel.
    pub(super) fn promise(&self, call: &OpCall) -> Result<(Order, Slack), LabError> {
        let found = self.variants.get(&call.kernel).copied();
        found.ok_or_else(|| LabError::Judge(format!("the backend does not list its kernel {}", call.kernel)))
    }

    /// A weight of the plan, from the model itself.
    ///
    /// # Errors
    /// When the model has none of that name.
    pub(super) fn weight(&mut self, plan: &ForwardPlan, id: WeightId) -> Result<Weight, LabError> {
        let name = plan.weight(id).map(|info| info.name.clone()).unwrap_or_default();
        if let Some(weight) = self.fresh.get(&name) {
            return Ok(weight.clone());
        }
        let role = self.roles.get(&name).ok_or_else(|| LabError::Judge(format!("the model has no weight `{name}`")))?;
        let weight = self.rig.model.weight(*role)?;
        weight.look();
        self.fresh.insert(name, weight.clone());
        Ok(weight)
    }

    /// The one row of a weight that is a vector.
    ///
    /// # Errors
    /// As [`Exactly::weight`].
    pub(super) fn vector(&mut self, plan: &ForwardPlan, id: WeightId) -> Result<Vec<f32>, LabError> {
        let weight = self.weight(plan, id)?;
        let mut values = vec![0.0; weight.cols()];
        dequantize_row(&weight, 0, &mut values);
        Ok(values)
    }

    /// The outputs of a product: known where its kernel keeps the reference's order and so are its inputs.
    ///
    /// # Errors
    /// When the backend does not list the kernel.
    pub(super) fn product(&self, call: &OpCall, p: Product<'_>) -> Result<Vec<Bounds>, LabError> {
        let Op::Linear { rounding, .. } = &call.op else { return Ok(Vec::new()) };
        let (order, slack) = self.promise(call)?;
        let known = |rows: &[Bounds]| rows.iter().map(Bounds::numbers).collect::<Option<Vec<_>>>();
        let outputs = p.weight.rows();
        if order == Order::Reference
            && let (Some(x), Some(before)) = (known(p.x), known(p.before.unwrap_or_default()))
        {
            let mut x = x.concat();
            linear::round(*rounding, &mut x);
            let epilogue = Epilogue { bias: p.bias, accumulate: p.before.is_some() };
            let parts = self.side_by_side(outputs, |of| {
                let mut out = vec![0.0; p.x.len() * of.len()];
                for (out, before) in out.chunks_exact_mut(of.len()).zip(&before) {
                    out.copy_from_slice(&before[of.clone()]);
                }
                linear::outputs(p.weight, of.clone(), &x, epilogue, &mut out);
                out.chunks_exact(of.len()).map(Bounds::exactly).collect()
            });
            return Ok(joined(parts, p.x.len()));
        }
        let x: Vec<Taken> = p.x.iter().map(|row| Taken::new(row, *rounding, slack)).collect();
        let parts = self.side_by_side(outputs, |of| exact::products(p.weight, slack, of, &x));
        let mut rows = joined(parts, p.x.len());
        let bias = p.bias.map(Bounds::exactly);
        for (t, row) in rows.iter_mut().enumerate() {
            bias.iter().for_each(|bias| row.add(bias));
            p.before.iter().for_each(|before| row.add(&before[t]));
        }
        Ok(rows)
    }

    /// Attention of rows over a cache: `rows` with their queries [H * E].
    ///
    /// # Errors
    /// As [`Exactly::product`].
    pub(super) fn attention(
        &self,
        call: &OpCall,
        head_size: usize,
        rows: &[(Row, Vec<f32>)],
        caches: &[Cached],
    ) -> Result<Vec<Bounds>, LabError> {
        let Op::Attention { layer, kv_of_head, scale, .. } = &call.op else { return Ok(Vec::new()) };
        let (order, slack) = self.promise(call)?;
        let (e, heads) = (head_size, kv_of_head.len());
        let one = |n: usize| {
            let ((row, q), head) = (&rows[n / heads], n % heads);
            let cached = |half| {
                let token = |j| caches[row.table as usize].head(*layer as usize, half, j, kv_of_head[head] as usize);
                (0..row.context as usize).map(token).collect::<Vec<Vec<f32>>>()
            };
            let (keys, values) = (cached(Half::Key), cached(Half::Value));
            let (keys, values): (Vec<&[f32]>, Vec<&[f32]>) =
                keys.iter().map(|k| &k[..]).zip(values.iter().map(|v| &v[..])).unzip();
            let q = &q[head * e..][..e];
            if order == Order::Free {
                return exact::attention(q, *scale, slack, &keys, &values);
            }
            let mut out = vec![0.0; e];
            let tokens = keys.iter().copied().zip(values.iter().copied());
            tare_ops::reference::attention::attend(q, *scale, tokens, &mut Vec::new(), &mut out);
            Bounds::exactly(&out)
        };
        let parts = self.side_by_side(rows.len() * heads, |of| of.map(&one).collect::<Vec<_>>());
        let all: Vec<Bounds> = parts.into_iter().flatten().collect();
        Ok(all
            .chunks(heads.max(1))
            .map(|heads| joined(heads.iter().map(|h| vec![h.clone()]).collect(), 1).remove(0))
            .collect())
    }

    /// What `work` makes of the parts of `0..n`, in order, on as many threads as the rig has.
    fn side_by_side<T: Send>(&self, n: usize, work: impl Fn(Range<usize>) -> Vec<T> + Sync) -> Vec<Vec<T>> {
        let (each, work) = (n.div_ceil(self.rig.cpu.threads.max(1)).max(1), &work);
        std::thread::scope(|scope| {
            let parts = (0..n).step_by(each).map(|first| first..(first + each).min(n));
            let threads: Vec<_> = parts.map(|of| scope.spawn(move || work(of))).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, Vec<T>>| {
                t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    }
}

/// Rows whose columns come in parts, put together. parts [parts, rows]
fn joined(parts: Vec<Vec<Bounds>>, rows: usize) -> Vec<Bounds> {
    let mut whole = vec![Bounds { value: Vec::new(), limit: Vec::new() }; rows];
    for part in parts {
        for (row, piece) in whole.iter_mut().zip(part) {
            row.value.extend(piece.value);
            row.limit.extend(piece.limit);
        }
    }
    whole
}
