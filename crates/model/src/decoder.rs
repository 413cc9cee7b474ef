//! The decoder: every operator of one step, in the order in which a token meets them.
//!
//! There is one decoder. Families differ in data: whether heads are normed, whether projections have biases, how
//! positions turn, whether the head is the embedding. Letters as in docs/reference/shapes.md: T rows of the step, R
//! rows among them that want something, D hidden, H query heads, K key and value heads, E head size, F ffn, V vocabulary.

use tare_core::Fault;
use tare_formats::{Part, Role};
use tare_ops::{BufId, Buffer, Class, Op, RowSpace, WeightId};

use crate::PackedModel;

/// An operator and the layer it belongs to: none before the first and after the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is computed.
    pub op: Op,
    /// Decoder layer.
    pub layer: Option<u32>,
}

/// One step before kernels are chosen: the buffers and the operators over them. It holds for every bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Step buffers; a [`BufId`] is an index.
    pub buffers: Vec<Buffer>,
    /// Operators in dependency order.
    pub calls: Vec<Call>,
}

/// Writes down one step of `model` computed in `class`.
///
/// # Errors
/// When the model lacks a weight that its configuration asks for.
pub fn step(model: &PackedModel, class: Class) -> Result<Step, Fault> {
    let c = model.config();
    let mut step = Step::default();
    let hidden = step.buffer("hidden", c.hidden, RowSpace::All); // [T, D]
    let normed = step.buffer("normed", c.hidden, RowSpace::All); // [T, D]
    let mut decoder = Decoder { model, class, step, hidden, normed };

    decoder.push(None, Op::Embedding { table: model.id(Role::Embed)?, out: hidden }); // ids -> [T, D]
    let attention = decoder.attention_buffers();
    let mlp = decoder.mlp_buffers();
    for layer in 0..c.layers {
        decoder.attention(layer, &attention)?; // hidden += attention(norm(hidden))
        decoder.mlp(layer, &mlp)?; // hidden += mlp(norm(hidden))
    }
    decoder.head()?; // [T, D] -> [R, V] -> tokens
    Ok(decoder.step)
}

impl Step {
    fn buffer(&mut self, name: &str, width: usize, rows: RowSpace) -> BufId {
        self.buffers.push(Buffer { name: name.into(), width, rows });
        BufId((self.buffers.len() - 1) as u16)
    }
}

struct Decoder<'a> {
    model: &'a PackedModel,
    class: Class,
    step: Step,
    hidden: BufId,
    normed: BufId,
}

struct AttentionBuffers {
    q: BufId,
    k: BufId,
    v: BufId,
    attended: BufId,
}

struct MlpBuffers {
    gate: BufId,
    up: BufId,
}

/// A matrix with its optional bias, and whether its product is added to what `out` holds.
struct Projection {
    weight: WeightId,
    bias: Option<WeightId>,
    accumulate: bool,
}

impl Decoder<'_> {
    fn attention_buffers(&mut self) -> AttentionBuffers {
        let c = self.model.config();
        let (q, kv) = (c.heads * c.head_size, c.kv_heads * c.head_size);
        AttentionBuffers {
            q: self.step.buffer("q", q, RowSpace::All),               // [T, H * E]
            k: self.step.buffer("k", kv, RowSpace::All),              // [T, K * E]
            v: self.step.buffer("v", kv, RowSpace::All),              // [T, K * E]
            attended: self.step.buffer("attended", q, RowSpace::All), // [T, H * E]
        }
    }

    fn mlp_buffers(&mut self) -> MlpBuffers {
        let f = self.model.config().ffn;
        MlpBuffers {
            gate: self.step.buffer("gate", f, RowSpace::All), // [T, F]
            up: self.step.buffer("up", f, RowSpace::All),     // [T, F]
        }
    }

    /// `hidden += O * attention(q, k, v)`, with q, k and v projected from the normed stream.
    fn attention(&mut self, layer: usize, b: &AttentionBuffers) -> Result<(), Fault> {
        let c = self.model.config();
        let (heads, kv_heads, at) = (c.heads as u32, c.kv_heads as u32, layer as u32);
        let (hidden, normed) = (self.hidden, self.normed);

        self.norm(layer, Part::AttnNorm)?; //                                                   [T, D]
        self.linear(layer, normed, self.biased(layer, Part::Q, Part::QBias)?, b.q); //          [T, D] -> [T, H * E]
        self.linear(layer, normed, self.biased(layer, Part::K, Part::KBias)?, b.k); //          [T, D] -> [T, K * E]
        self.linear(layer, normed, self.biased(layer, Part::V, Part::VBias)?, b.v); //          [T, D] -> [T, K * E]
        if c.qk_norm {
            self.head_norm(layer, b.q, heads, Part::QNorm)?; //                                 [T, H, E] per head
            self.head_norm(layer, b.k, kv_heads, Part::KNorm)?; //                              [T, K, E] per head
        }
        self.push(Some(at), Op::Rope { x: b.q, heads }); //                                     [T, H, E] in place
        self.push(Some(at), Op::Rope { x: b.k, heads: kv_heads }); //                           [T, K, E] in place
        self.push(Some(at), Op::KvAppend { layer: at, k: b.k, v: b.v }); //                     cache[slot] = [K, E] x 2
        self.push(
            Some(at),
            Op::Attention {
                layer: at,
                q: b.q,
                kv_of_head: (0..c.heads).map(|h| (h / (c.heads / c.kv_heads)) as u16).collect(),
                scale: 1.0 / (c.head_size as f32).sqrt(),
                out: b.attended,
            },
        ); //                                                                                   [T, H * E], cache -> [T, H * E]
        self.linear(layer, b.attended, self.residual(layer, Part::O)?, hidden); //              [T, H * E] -> += [T, D]
        Ok(())
    }

    /// `hidden += Down * (silu(Gate * x) * (Up * x))` with x the normed stream.
    fn mlp(&mut self, layer: usize, b: &MlpBuffers) -> Result<(), Fault> {
        let (hidden, normed) = (self.hidden, self.normed);
        self.norm(layer, Part::FfnNorm)?; //                                                    [T, D]
        self.linear(layer, normed, self.plain(layer, Part::Gate)?, b.gate); //                  [T, D] -> [T, F]
        self.linear(layer, normed, self.plain(layer, Part::Up)?, b.up); //                      [T, D] -> [T, F]
        self.push(Some(layer as u32), Op::SwiGlu { gate: b.gate, up: b.up, out: b.gate }); //   [T, F]
        self.linear(layer, b.gate, self.residual(layer, Part::Down)?, hidden); //               [T, F] -> += [T, D]
        Ok(())
    }

    /// Rows that nobody asks about leave here, before the final norm and the widest matrix of all.
    fn head(&mut self) -> Result<(), Fault> {
        let c = self.model.config();
        let picked = self.step.buffer("picked", c.hidden, RowSpace::Selected); //               [R, D]
        let final_norm = self.step.buffer("final_norm", c.hidden, RowSpace::Selected); //       [R, D]
        let logits = self.step.buffer("logits", c.vocab, RowSpace::Selected); //                [R, V]
        let weight = self.model.id(Role::FinalNorm)?;

        self.push(None, Op::SelectRows { x: self.hidden, out: picked }); //                     [T, D] -> [R, D]
        self.push(None, Op::RmsNorm { x: picked, weight, eps: c.rms_eps, out: final_norm }); // [R, D]
        let head = Projection { weight: self.model.id(Role::Head)?, bias: None, accumulate: false };
        self.push_linear(None, final_norm, head, logits); //                                    [R, D] -> [R, V]
        self.push(None, Op::Sample { logits }); //                                              [R, V] -> tokens
        Ok(())
    }

    fn norm(&mut self, layer: usize, part: Part) -> Result<(), Fault> {
        let weight = self.model.layer(layer, part)?;
        let eps = self.model.config().rms_eps;
        self.push(Some(layer as u32), Op::RmsNorm { x: self.hidden, weight, eps, out: self.normed });
        Ok(())
    }

    fn head_norm(&mut self, layer: usize, x: BufId, heads: u32, part: Part) -> Result<(), Fault> {
        let weight = self.model.layer(layer, part)?;
        let eps = self.model.config().rms_eps;
        self.push(Some(layer as u32), Op::HeadNorm { x, weight, heads, eps });
        Ok(())
    }

    fn plain(&self, layer: usize, part: Part) -> Result<Projection, Fault> {
        Ok(Projection { weight: self.model.layer(layer, part)?, bias: None, accumulate: false })
    }

    fn residual(&self, layer: usize, part: Part) -> Result<Projection, Fault> {
        Ok(Projection { accumulate: true, ..self.plain(layer, part)? })
    }

    fn biased(&self, layer: usize, part: Part, bias: Part) -> Result<Projection, Fault> {
        let bias = if self.model.config().qkv_bias { Some(self.model.layer(layer, bias)?) } else { None };
        Ok(Projection { bias, ..self.plain(layer, part)? })
    }

    fn linear(&mut self, layer: usize, x: BufId, p: Projection, out: BufId) {
        self.push_linear(Some(layer as u32), x, p, out);
    }

    fn push_linear(&mut self, layer: Option<u32>, x: BufId, p: Projection, out: BufId) {
        let Projection { weight, bias, accumulate } = p;
        self.push(layer, Op::Linear { x, weight, bias, accumulate, rounding: self.class.rounding, out });
    }

    fn push(&mut self, layer: Option<u32>, op: Op) {
        self.step.calls.push(Call { op, layer });
    }
}
