//! The vocabulary inside a GGUF file (`tokenizer.ggml.*`).

use super::header::Header;
use super::value::{Array, Kind, Value};
use tare_core::Fault;

/// Key that is true in a file whose vocabulary only stands in for a missing one: its texts mean nothing, so such a
/// file has no tokenizer. llama.cpp passes over keys that it does not know.
pub const PLACEHOLDER: &str = "tare.placeholder_vocabulary";

/// A vocabulary as the file gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgufVocab {
    /// Kind of tokenizer: `gpt2` is byte-level BPE.
    pub model: String,
    /// Name of the pre-tokenizer: `qwen2`, `llama-bpe`, `smollm`, `default`...
    pub pre: String,
    /// Token texts by id, in the byte alphabet of GPT-2 where the kind says so.
    pub tokens: Vec<String>,
    /// Merges in order of rank, `left right`.
    pub merges: Vec<String>,
    /// Per token: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. Empty when the file has none.
    pub token_types: Vec<i32>,
    /// Starts a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn, where the file names it beside `eos`.
    pub eot: Option<u32>,
    /// Ends a message that goes on (a tool call), where the file names it.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// Fills batches.
    pub pad: Option<u32>,
    /// Whether a text starts with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
}

/// Typed reads of metadata.
pub(crate) struct Metadata<'a>(pub(crate) &'a Header);

impl Metadata<'_> {
    pub(crate) fn fault(&self, key: &str, expected: impl Into<String>) -> Fault {
        Fault::new(key, expected, self.0.get(key).map_or_else(|| "nothing".into(), Value::show))
    }

    pub(crate) fn integer(&self, key: &str, max: u64) -> Result<Option<u64>, Fault> {
        let Some(v) = self.0.get(key) else { return Ok(None) };
        let n = v.as_u64().filter(|&n| n <= max);
        n.map(Some).ok_or_else(|| self.fault(key, format!("an integer from 0 to {max}")))
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, Fault> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Float(_, v)) if v.is_finite() => Ok(Some(*v)),
            Some(_) => Err(self.fault(key, "a finite number")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Fault> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.fault(key, "a string")),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Fault> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.fault(key, "true or false")),
        }
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&Array>, Fault> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Array(a)) => Ok(Some(a)),
            Some(_) => Err(self.fault(key, "an array")),
        }
    }

    /// The id of a special token, which must be one of the `count` tokens.
    pub(crate) fn token(&self, key: &str, count: usize) -> Result<Option<u32>, Fault> {
        Ok(self.integer(key, (count as u64).saturating_sub(1).min(u64::from(u32::MAX)))?.map(|n| n as u32))
    }
}

/// Number of tokens in the vocabulary of `header`, if it has one.
pub(crate) fn token_count(header: &Header) -> Result<Option<usize>, Fault> {
    Ok(Metadata(header).array("tokenizer.ggml.tokens")?.map(Array::count))
}

impl GgufVocab {
    /// The vocabulary of `header`; `None` when it has none.
    ///
    /// # Errors
    /// When a key has the wrong type, a string is not UTF-8, or a special token is not in the vocabulary.
    pub fn read(header: &Header) -> Result<Option<Self>, Fault> {
        let m = Metadata(header);
        let Some(tokens) = m.array("tokenizer.ggml.tokens")? else { return Ok(None) };
        let strings = |key: &str| m.array(key)?.map(|a| a.to_strings(key)).transpose();
        let types = "tokenizer.ggml.token_type";
        let token_types = m.array(types)?.map(|a| a.to_i32s(types)).transpose()?.unwrap_or_default();
        let count = tokens.count();
        if !token_types.is_empty() && token_types.len() != count {
            return Err(m.fault(types, format!("one type for each of {count} tokens")));
        }
        let special = |name: &str| m.token(&format!("tokenizer.ggml.{name}_token_id"), count);
        let model = m.text("tokenizer.ggml.model")?;
        Ok(Some(Self {
            model: model.ok_or_else(|| m.fault("tokenizer.ggml.model", "the kind of vocabulary"))?.to_owned(),
            pre: m.text("tokenizer.ggml.pre")?.unwrap_or("default").to_owned(),
            tokens: tokens.to_strings("tokenizer.ggml.tokens")?,
            merges: strings("tokenizer.ggml.merges")?.unwrap_or_default(),
            token_types,
            bos: special("bos")?,
            eos: special("eos")?,
            eot: special("eot")?,
            eom: special("eom")?,
            unk: special("unknown")?,
            pad: special("padding")?,
            add_bos: m.flag("tokenizer.ggml.add_bos_token")?,
            add_eos: m.flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: m.flag("tokenizer.ggml.add_space_prefix")?,
        }))
    }

    /// The metadata that [`GgufVocab::read`] reads back.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let mut out = Vec::new();
        let mut put = |name: &str, value| out.push((format!("tokenizer.ggml.{name}"), value));
        put("model", Value::text(&self.model));
        put("pre", Value::text(&self.pre));
        put("tokens", Value::Array(Array::strings(&self.tokens)));
        if !self.token_types.is_empty() {
            put("token_type", Value::Array(Array::i32s(&self.token_types)));
        }
        put("merges", Value::Array(Array::strings(&self.merges)));
        let ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("padding", self.pad),
        ];
        for (name, id) in ids {
            if let Some(id) = id {
                put(&format!("{name}_token_id"), Value::Unsigned(Kind::U32, id.into()));
            }
        }
        let flags = [
            ("add_bos_token", self.add_bos),
            ("add_eos_token", self.add_eos),
            ("add_space_prefix", self.add_space_prefix),
        ];
        for (name, flag) in flags {
            if let Some(flag) = flag {
                put(name, Value::Bool(flag));
            }
        }
        out
    }
}
