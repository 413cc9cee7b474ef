//! A step of the model as data: buffers, weights and the calls in order.

use serde::{Deserialize, Serialize};
use tare_core::{DType, Fault, Format};
use tare_formats::codec::quants::Coding;
pub use tare_formats::config::RopeStyle;

use crate::class::{Class, Order, Rounding};
use crate::op::{BufId, Op, WeightId};
use crate::variant::OpShape;

/// How many rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowSpace {
    /// One for each row of the step (T).
    All,
    /// One for each row that wants something.
    Selected,
}

/// An F32 buffer [rows, width] that lives for one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// For people: `hidden`, `q`, `gate`.
    pub name: String,
    /// Elements of a row.
    pub width: usize,
    /// Which rows it has.
    pub rows: RowSpace,
}

/// A weight as a plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightInfo {
    /// The backend's handle.
    pub id: WeightId,
    /// The name in the model: `layers.0.q`.
    pub name: String,
    /// How it is packed.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Bytes of it, scales included.
    pub bytes: usize,
}

/// The shape of a token's place in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvShape {
    /// Decoder layers (L).
    pub layers: usize,
    /// Key and value heads (K).
    pub kv_heads: usize,
    /// Elements of a head (E).
    pub head_size: usize,
    /// F32 or BF16.
    pub dtype: DType,
}

impl KvShape {
    /// Bytes of one token: keys and values of all layers.
    pub const fn token_bytes(&self) -> usize {
        2 * self.layers * self.kv_heads * self.head_size * self.dtype.bytes()
    }
}

/// Rows that no bucket exceeds: buffers and checks are made for all of them at once.
const MOST_ROWS: usize = 1 << 20;

/// The most rows that an executable can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bucket {
    /// Rows of the step (T).
    pub rows: usize,
    /// Rows among them that want something.
    pub selected: usize,
}

/// One operator bound to a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpCall {
    /// What is computed.
    pub op: Op,
    /// The kernel that computes it: a key of the backend's registry.
    pub kernel: String,
    /// Decoder layer, for traces; none before the first and after the last.
    pub layer: Option<u32>,
}

/// The calls of one step for one architecture and one bucket, each bound to a kernel.
///
/// This value is what a record keeps (with its digest), what `tare doctor --plan` prints and what a backend compiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForwardPlan {
    /// Name of the rung or plan: `capacity-cache`.
    pub name: String,
    /// Name of the arithmetic class: see [`crate::class::CLASSES`].
    pub class: String,
    /// The most rows it takes.
    pub bucket: Bucket,
    /// Step buffers; a [`BufId`] is an index.
    pub buffers: Vec<Buffer>,
    /// Every weight that the calls read.
    pub weights: Vec<WeightInfo>,
    /// Rotary embedding: angle per position of each of the E/2 pairs.
    pub rope: RopeTable,
    /// KV cache of a token.
    pub kv: KvShape,
    /// The operators, in dependency order.
    pub calls: Vec<OpCall>,
}

/// What [`Op::Rope`] needs: computed once from the model's configuration in F64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeTable {
    /// Radians a position for each pair: E / 2 entries.
    pub inv_freq: Vec<f64>,
    /// Multiplies sine and cosine (YaRN's attention factor; 1 elsewhere).
    pub factor: f32,
    /// Which elements make a pair.
    #[serde(with = "style")]
    pub style: RopeStyle,
}

/// A [`RopeStyle`] in plans: `half_split` or `interleaved`.
mod style {
    use super::RopeStyle;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    const NAMES: [(&str, RopeStyle); 2] =
        [("half_split", RopeStyle::HalfSplit), ("interleaved", RopeStyle::Interleaved)];

    pub(super) fn serialize<S: Serializer>(style: &RopeStyle, s: S) -> Result<S::Ok, S::Error> {
        let name = NAMES.iter().find(|(_, v)| v == style).map_or("", |(name, _)| name);
        s.serialize_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<RopeStyle, D::Error> {
        let name = String::deserialize(d)?;
        let style = NAMES.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        style.ok_or_else(|| D::Error::custom(format!("expected half_split or interleaved, found `{name}`")))
    }
}

/// What [`ForwardPlan::heads`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCalls {
    /// The first call.
    pub first: usize,
    /// Whether the first two calls are norms: of q, then of k.
    pub normed: bool,
    /// Queries.
    pub q: BufId,
    /// Keys.
    pub k: BufId,
}

impl HeadCalls {
    /// The rotation of q; that of k and the append follow.
    pub const fn rope(&self) -> usize {
        self.first + if self.normed { 2 } else { 0 }
    }

    /// The append, which is the last call.
    pub const fn append(&self) -> usize {
        self.rope() + 2
    }
}

impl ForwardPlan {
    /// The buffer `id`.
    ///
    /// # Panics
    /// When the plan has no such buffer: [`ForwardPlan::validate`] finds that before anything runs.
    pub fn buffer(&self, id: BufId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The weight `id`, if the plan lists it.
    pub fn weight(&self, id: WeightId) -> Option<&WeightInfo> {
        self.weights.iter().find(|w| w.id == id)
    }

    /// The calls from `at` on, by their indices, that read what `buffer` holds before another call writes it.
    pub fn readers(&self, at: usize, buffer: BufId) -> impl Iterator<Item = usize> + '_ {
        let rest = self.calls.iter().enumerate().skip(at);
        let mut written = false;
        rest.take_while(move |(_, call)| !std::mem::replace(&mut written, call.op.writes() == Some(buffer)))
            .filter(move |(_, call)| call.op.reads().contains(&Some(buffer)))
            .map(|(i, _)| i)
    }

    /// The calls from `at` on that make queries and keys ready for attention, when they begin there and touch nothing else:
    /// norms of the heads of both, or none, both rotations and the append of the keys. All of them count the same heads, of the
    /// size that the cache has and that is turned whole.
    pub fn heads(&self, at: usize) -> Option<HeadCalls> {
        let op = |i: usize| self.calls.get(i).map(|c| &c.op);
        let normed = matches!(op(at), Some(Op::HeadNorm { .. }));
        let rope = if normed { at + 2 } else { at };
        let (Op::Rope { x: q, heads: of_q }, Op::Rope { x: k, heads: of_k }) = (op(rope)?, op(rope + 1)?) else {
            return None;
        };
        let Op::KvAppend { k: stored, v, .. } = op(rope + 2)? else { return None };
        let norms = match (op(at)?, op(at + 1)?) {
            (Op::HeadNorm { x: a, heads: of_a, .. }, Op::HeadNorm { x: b, heads: of_b, .. }) => {
                (a, of_a, b, of_b) == (q, of_q, k, of_k)
            }
            _ => !normed,
        };
        let size = self.kv.head_size;
        let sized = |id: BufId, heads: u32| self.buffer(id).width == heads as usize * size;
        let alike = size == 2 * self.rope.inv_freq.len() && sized(*q, *of_q) && sized(*k, *of_k);
        let apart = q != k && q != v && k != v;
        let found = HeadCalls { first: at, normed, q: *q, k: *k };
        (norms && alike && apart && stored == k && *of_k as usize == self.kv.kv_heads).then_some(found)
    }

    /// Checks every call against the buffers and weights it names: widths, row spaces, layers.
    ///
    /// # Errors
    /// The first call that does not fit, with what was expected and found.
    pub fn validate(&self) -> Result<(), Fault> {
        let rows = self.bucket.rows.max(self.bucket.selected);
        if rows > MOST_ROWS {
            let at = format!("plan {}: bucket", self.name);
            return Err(Fault::new(at, format!("at most {MOST_ROWS} rows"), rows.to_string()));
        }
        if let Some(b) = self.buffers.iter().find(|b| b.width == 0) {
            return Err(Fault::new(format!("plan {}: buffer {}", self.name, b.name), "a width above 0", "0"));
        }
        for (i, call) in self.calls.iter().enumerate() {
            self.validate_call(&call.op)
                .map_err(|f| f.within(format!("plan {} call {i} ({})", self.name, call.kernel)))?;
        }
        Ok(())
    }

    fn validate_call(&self, op: &Op) -> Result<(), Fault> {
        if let Some(b) = op.overwritten_input() {
            let name = &self.get(b)?.name;
            return Err(Fault::new("out", "another buffer than the one that is read", format!("{name} as both")));
        }
        let q_width = |kv_of_head: &[u16]| kv_of_head.len() * self.kv.head_size;
        match op {
            Op::Embedding { table, out } => self.expect(*out, self.info(*table)?.cols, RowSpace::All),
            Op::RmsNorm { x, weight, out, .. } => {
                let w = self.vector(*weight)?;
                self.expect(*x, w, self.space(*x)?)?;
                self.expect(*out, w, self.space(*x)?)
            }
            Op::HeadNorm { x, heads, weight, .. } => {
                self.expect(*x, *heads as usize * self.vector(*weight)?, RowSpace::All)
            }
            Op::Rope { x, heads } => self.expect(*x, *heads as usize * 2 * self.rope.inv_freq.len(), RowSpace::All),
            Op::Linear { x, weight, bias, rounding, out, .. } => {
                let w = self.info(*weight)?;
                if rounding.is_integer() && Coding::of(w.format).is_none() {
                    let expected =
                        format!("a packed format, whose codes are multiplied with activations in {rounding}");
                    return Err(Fault::new(format!("weight {}", w.name), expected, w.format.to_string()));
                }
                self.expect(*x, w.cols, self.space(*x)?)?;
                self.expect(*out, w.rows, self.space(*x)?)?;
                match bias.map(|b| self.vector(b)).transpose()? {
                    Some(b) if b != w.rows => Err(Fault::new("bias", format!("{} elements", w.rows), b.to_string())),
                    _ => Ok(()),
                }
            }
            Op::KvAppend { layer, k, v } => {
                self.expect_layer(*layer)?;
                let w = self.kv.kv_heads * self.kv.head_size;
                self.expect(*k, w, RowSpace::All)?;
                self.expect(*v, w, RowSpace::All)
            }
            Op::Attention { layer, q, kv_of_head, out, .. } => {
                self.expect_layer(*layer)?;
                if let Some(h) = kv_of_head.iter().find(|h| **h as usize >= self.kv.kv_heads) {
                    return Err(Fault::new(
                        "kv_of_head",
                        format!("kv heads below {}", self.kv.kv_heads),
                        h.to_string(),
                    ));
                }
                self.expect(*q, q_width(kv_of_head), RowSpace::All)?;
                self.expect(*out, q_width(kv_of_head), RowSpace::All)
            }
            Op::SwiGlu { gate, up, out } => {
                let w = self.width(*gate)?;
                self.expect(*up, w, RowSpace::All)?;
                self.expect(*out, w, RowSpace::All)
            }
            Op::SelectRows { x, out } => {
                self.expect(*x, self.width(*out)?, RowSpace::All)?;
                self.expect(*out, self.width(*x)?, RowSpace::Selected)
            }
            Op::Sample { logits } => self.expect(*logits, self.width(*logits)?, RowSpace::Selected),
        }
    }

    /// What a call of `op` looks like to a kernel when `rows` rows travel through it and each reads `context` tokens.
    pub fn shape_of(&self, op: &Op, rows: usize, context: usize) -> OpShape {
        let width = |id: &BufId| self.buffers.get(id.0 as usize).map_or(0, |b| b.width);
        let format = op.weight().and_then(|w| self.weight(w)).map(|w| w.format);
        let kv = &self.kv;
        let mut shape = OpShape {
            rows,
            n: width(op.output()),
            k: 0,
            format,
            heads: 0,
            kv_heads: kv.kv_heads,
            head_size: kv.head_size,
            kv_element_bytes: kv.dtype.bytes(),
            context: 0,
            rounding: None,
            order: self.order(),
        };
        match op {
            Op::Linear { x, rounding, .. } => (shape.k, shape.rounding) = (width(x), Some(*rounding)),
            Op::Embedding { table, .. } => shape.rounding = self.rounding_of(*table),
            Op::Rope { heads, .. } | Op::HeadNorm { heads, .. } => {
                shape.heads = *heads as usize;
                shape.head_size = shape.n / (*heads).max(1) as usize;
            }
            Op::Attention { kv_of_head, .. } => (shape.heads, shape.context) = (kv_of_head.len(), context),
            _ => {}
        }
        shape
    }

    /// The order of sums that the plan's class promises; that of the reference for a class that is not built.
    pub fn order(&self) -> Order {
        Class::by_name(&self.class).map_or(Order::Reference, |class| class.order)
    }

    /// What the linears that multiply with a weight do to their input first; none when there are none.
    pub fn rounding_of(&self, id: WeightId) -> Option<Rounding> {
        self.calls.iter().find_map(|c| match &c.op {
            Op::Linear { weight, rounding, .. } if *weight == id => Some(*rounding),
            _ => None,
        })
    }

    fn info(&self, id: WeightId) -> Result<&WeightInfo, Fault> {
        self.weight(id).ok_or_else(|| Fault::new("weight", "a weight of this plan", format!("{id:?}")))
    }

    /// Elements of a weight that must have one row.
    fn vector(&self, id: WeightId) -> Result<usize, Fault> {
        let w = self.info(id)?;
        if w.rows == 1 {
            return Ok(w.cols);
        }
        Err(Fault::new(format!("weight {}", w.name), "one row", w.rows.to_string()))
    }

    fn get(&self, id: BufId) -> Result<&Buffer, Fault> {
        self.buffers
            .get(id.0 as usize)
            .ok_or_else(|| Fault::new("buffer", format!("one of {}", self.buffers.len()), format!("{id:?}")))
    }

    fn width(&self, id: BufId) -> Result<usize, Fault> {
        Ok(self.get(id)?.width)
    }

    fn space(&self, id: BufId) -> Result<RowSpace, Fault> {
        Ok(self.get(id)?.rows)
    }

    fn expect(&self, id: BufId, width: usize, rows: RowSpace) -> Result<(), Fault> {
        let b = self.get(id)?;
        if (b.width, b.rows) == (width, rows) {
            return Ok(());
        }
        let say = |w: usize, r: RowSpace| format!("width {w}, {r:?} rows");
        Err(Fault::new(format!("buffer {}", b.name), say(width, rows), say(b.width, b.rows)))
    }

    fn expect_layer(&self, layer: u32) -> Result<(), Fault> {
        if (layer as usize) < self.kv.layers {
            return Ok(());
        }
        Err(Fault::new("layer", format!("below {}", self.kv.layers), layer.to_string()))
    }
}
