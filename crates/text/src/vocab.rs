//! Vocabularies as a GGUF carries them, and the model that `tokenizers` runs.

use crate::added::AddedToken;
use std::collections::HashMap;
use tare_core::Fault;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// A vocabulary of the GGUF type `gpt2` (byte-level BPE). The index of a token is its id.
#[derive(Clone, Debug, Default)]
pub struct BpeVocab {
    /// `tokenizer.ggml.model`; `gpt2` is the supported one.
    pub model: String,
    /// `tokenizer.ggml.pre`, one of [`PRE_TOKENIZERS`].
    pub pre: String,
    /// `tokenizer.ggml.tokens` in the byte alphabet of GPT-2.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`: two tokens each, parted by the first space; earlier merges come first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. As many as
    /// tokens, or none at all (then all are normal but `bos` and `eos`, which are control tokens).
    pub token_types: Vec<i32>,
    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Whether plain prompts begin with `bos`. `None`: as llama.cpp does, only for `llama-bpe`.
    pub add_bos: Option<bool>,
    /// A SentencePiece setting; `Some(true)` is refused for BPE, where llama.cpp would ignore it.
    pub add_space_prefix: Option<bool>,
}

/// Names of pre-tokenizers that [`crate::Tokenizer::from_vocab`] knows.
pub const PRE_TOKENIZERS: [&str; 5] = ["qwen2", "llama-bpe", "smollm", "gpt-2", "default"];

/// GPT-2's splitting rule.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen2's rule; digits stand alone.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3's rule; digits go in threes.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a pre-tokenizer name of a GGUF stands for.
pub(crate) struct PreTokenizer {
    /// Splitting rules, applied one after the other.
    rules: &'static [&'static str],
    /// Text is put in Unicode normal form C first, as Hugging Face does for this family (llama.cpp does not).
    nfc: bool,
    /// A piece that is a token as a whole is not built from merges.
    ignore_merges: bool,
    /// Begin-of-text before plain prompts when the file does not say.
    add_bos: bool,
}

impl PreTokenizer {
    fn named(name: &str) -> Result<Self, Fault> {
        let plain = |rules| PreTokenizer { rules, nfc: false, ignore_merges: false, add_bos: false };
        match name {
            "qwen2" => Ok(PreTokenizer { nfc: true, ..plain(&[QWEN2]) }),
            "llama-bpe" => Ok(PreTokenizer { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) }),
            "smollm" => Ok(plain(&[r"\p{N}", GPT2])),
            "gpt-2" => Ok(plain(&[GPT2])),
            // What llama.cpp applies under this name.
            "default" => Ok(plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"])),
            other => Err(Fault::new("tokenizer.ggml.pre", PRE_TOKENIZERS.join(", "), format!("{other:?}"))
                .remedy("use the model's Hugging Face folder, whose tokenizer.json spells the rule out")),
        }
    }

    fn build(&self) -> Result<PreTokenizerWrapper, Fault> {
        let mut parts = Vec::with_capacity(self.rules.len() + 1);
        for rule in self.rules {
            let pattern = SplitPattern::Regex((*rule).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| Fault::new("pre-tokenizer", "a regular expression", e.to_string()))?;
            parts.push(PreTokenizerWrapper::Split(split));
        }
        parts.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(parts)))
    }
}

/// A byte-pair model in parts, from whichever file.
#[derive(Debug, Default)]
pub(crate) struct BpeParts {
    pub(crate) vocab: HashMap<String, u32>,
    pub(crate) merges: Vec<(String, String)>,
    pub(crate) unk_token: Option<String>,
    pub(crate) fuse_unk: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) ignore_merges: bool,
}

impl BpeParts {
    /// Builds the model. Merges are checked here since the builder trusts their products to be tokens.
    pub(crate) fn build(self) -> Result<BPE, Fault> {
        for (i, (a, b)) in self.merges.iter().enumerate() {
            let product = format!("{a}{b}");
            if let Some(missing) = [a, b, &product].into_iter().find(|t| !self.vocab.contains_key(*t)) {
                return Err(Fault::new(format!("merge {i}"), "tokens of the vocabulary", format!("{missing:?}"))
                    .remedy("vocabulary and merges are of different models; fetch the file again"));
            }
        }
        let vocab: Vocab = self.vocab.into_iter().collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, self.merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(unk) = self.unk_token {
            builder = builder.unk_token(unk);
        }
        builder.build().map_err(|e| Fault::new("model", "a byte-pair model", e.to_string()))
    }
}

/// The pieces of a tokenizer read out of a [`BpeVocab`].
pub(crate) struct VocabParts {
    pub(crate) model: BpeParts,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: PreTokenizerWrapper,
    pub(crate) bos: Option<u32>,
}

impl VocabParts {
    pub(crate) fn read(v: &BpeVocab) -> Result<Self, Fault> {
        check_shape(v)?;
        let pre = PreTokenizer::named(&v.pre)?;
        let mut vocab = HashMap::with_capacity(v.tokens.len());
        for (id, token) in (0u32..).zip(&v.tokens) {
            if let Some(first) = vocab.insert(token.clone(), id) {
                return Err(Fault::new(
                    format!("token {id}"),
                    "every token once",
                    format!("{token:?}, also id {first}"),
                )
                .remedy("convert the model again"));
            }
        }
        let merges = v.merges.iter().enumerate().map(|(i, m)| match m.split_once(' ') {
            Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
            None => Err(Fault::new(format!("merge {i}"), "two tokens parted by a space", format!("{m:?}"))),
        });
        let model = BpeParts {
            vocab,
            merges: merges.collect::<Result<_, _>>()?,
            ignore_merges: pre.ignore_merges,
            ..BpeParts::default()
        };
        let bos = if v.add_bos.unwrap_or(pre.add_bos) { v.bos } else { None };
        if v.add_bos == Some(true) && bos.is_none() {
            return Err(Fault::new("tokenizer.ggml.bos_token_id", "an id, since add_bos_token is true", "nothing"));
        }
        Ok(Self {
            model,
            added: added_tokens(v),
            normalizer: pre.nfc.then_some(NormalizerWrapper::NFC(NFC)),
            pre_tokenizer: pre.build()?,
            bos,
        })
    }
}

fn check_shape(v: &BpeVocab) -> Result<(), Fault> {
    if v.model != "gpt2" {
        return Err(Fault::new("tokenizer.ggml.model", "gpt2 (byte-level BPE)", format!("{:?}", v.model))
            .remedy("use the model's Hugging Face folder with its tokenizer.json"));
    }
    if v.tokens.is_empty() {
        return Err(Fault::new("tokenizer.ggml.tokens", "at least one token", "none")
            .remedy("use a GGUF with a vocabulary, or give a tokenizer.json"));
    }
    if !v.token_types.is_empty() && v.token_types.len() != v.tokens.len() {
        let found = format!("{} types for {} tokens", v.token_types.len(), v.tokens.len());
        return Err(
            Fault::new("tokenizer.ggml.token_type", "one type a token", found).remedy("convert the model again")
        );
    }
    if v.add_space_prefix == Some(true) {
        return Err(Fault::new("tokenizer.ggml.add_space_prefix", "false for a gpt2 vocabulary", "true")
            .remedy("use the model's Hugging Face folder with its tokenizer.json"));
    }
    for (name, id) in [("bos", v.bos), ("eos", v.eos), ("unknown", v.unk), ("padding", v.pad)] {
        if let Some(id) = id.filter(|id| *id as usize >= v.tokens.len()) {
            let expected = format!("an id below {}", v.tokens.len());
            return Err(Fault::new(format!("tokenizer.ggml.{name}_token_id"), expected, id.to_string()));
        }
    }
    Ok(())
}

/// Control and unknown tokens are special; user-defined ones are recognised but are text to a reader.
///
/// Types decide where the file has them: a converter may name any token for padding, even `!`.
fn added_tokens(v: &BpeVocab) -> Vec<AddedToken> {
    let kind = |id: u32| match v.token_types.get(id as usize) {
        Some(kind) => *kind,
        None if v.bos == Some(id) || v.eos == Some(id) => CONTROL,
        None => NORMAL,
    };
    let mut added = Vec::new();
    for (id, content) in (0u32..).zip(&v.tokens) {
        let special = matches!(kind(id), UNKNOWN | CONTROL);
        if (special || kind(id) == USER_DEFINED) && !content.is_empty() {
            let content = content.clone();
            added.push(AddedToken { content, id, special, single_word: false, lstrip: false, rstrip: false });
        }
    }
    added
}

/// Token types of GGUF.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
