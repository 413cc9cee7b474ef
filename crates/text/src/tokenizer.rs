//! Text to ids and back.

use crate::added::{AddedToken, AddedTokens, Hit};
use crate::detokenize::Detokenizer;
use crate::error::TextError;
use crate::surface::Surface;
use crate::tokenizer_json::JsonParts;
use crate::vocab::{BpeParts, BpeVocab, VocabParts};
use std::fmt;
use std::sync::Arc;
use tare_core::Fault;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::normalizer::Range as Span;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token,
};

/// What becomes of strings in the text that spell an added token, such as `<|im_end|>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They stay text: the right choice for anything that a user wrote.
    Text,
    /// They become the token's id: the right choice for text that the model's own template produced.
    Parse,
}

/// A tokenizer. Cloning copies a pointer; use from many threads at once is fine.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
    surface: Surface,
    added: AddedTokens,
    vocab_size: usize,
    bos: Option<u32>,
    /// Every byte of a text must come out in some token; false where an unknown token or byte fallback stands in.
    complete: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} ids, {:?})", self.0.vocab_size, self.0.surface)
    }
}

impl Tokenizer {
    /// Reads the bytes of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] when the JSON is malformed, the model is not BPE, the decoder is not byte-level or
    /// SentencePiece-like, or merges and added tokens contradict the vocabulary.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        let parts = JsonParts::read(bytes).map_err(TextError::Tokenizer)?;
        let inner = Inner::new(parts.model, parts.added).map_err(TextError::Tokenizer)?;
        Ok(Self(Arc::new(Inner {
            normalizer: parts.normalizer,
            pre_tokenizer: parts.pre_tokenizer,
            complete: inner.complete && parts.surface == Surface::ByteLevel,
            surface: parts.surface,
            bos: parts.bos,
            ..inner
        })))
    }

    /// Builds the tokenizer of a GGUF's vocabulary. The result equals that of the model's `tokenizer.json`, Unicode
    /// normalization included.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] when the type is not `gpt2`, the pre-tokenizer is none of
    /// [`crate::PRE_TOKENIZERS`], or tokens, types and merges contradict each other.
    pub fn from_vocab(v: &BpeVocab) -> Result<Self, TextError> {
        let parts = VocabParts::read(v).map_err(TextError::Tokenizer)?;
        let inner = Inner::new(parts.model, parts.added).map_err(TextError::Tokenizer)?;
        Ok(Self(Arc::new(Inner {
            normalizer: parts.normalizer,
            pre_tokenizer: Some(parts.pre_tokenizer),
            bos: parts.bos,
            ..inner
        })))
    }

    /// The ids of `text`, without begin-of-text (see [`Tokenizer::add_bos`]).
    ///
    /// # Errors
    /// [`TextError::Tokens`] when the vocabulary lacks a byte of the text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TextError> {
        let hits = match special {
            Special::Text => Vec::new(),
            Special::Parse => self.0.added.find(text),
        };
        self.encode_around(text, hits)
    }

    /// The ids of `text` in which exactly `hits` are added tokens; what lies between them is text.
    pub(crate) fn encode_around(&self, text: &str, mut hits: Vec<Hit>) -> Result<Vec<u32>, TextError> {
        self.0.added.absorb_space(text, &mut hits);
        self.0.run(text, &hits).map_err(|e| {
            let remedy = "use the tokenizer that belongs to this model";
            TextError::Tokens(Fault::new("text", "only bytes that the vocabulary spells", e.to_string()).remedy(remedy))
        })
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD, as in `tokenizers`.
    ///
    /// # Errors
    /// [`TextError::Tokens`] for an id that no token has.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        let mut stream = Detokenizer::new(self.clone(), skip_special);
        let mut text = String::new();
        for id in ids {
            if self.0.spelling(*id).is_none() {
                let expected = format!("an id of the vocabulary (below {})", self.0.vocab_size);
                let remedy = "use the tokenizer that belongs to this model";
                return Err(TextError::Tokens(Fault::new("id", expected, id.to_string()).remedy(remedy)));
            }
            text.push_str(&stream.push(*id));
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// The bytes that a token stands for (they need not be UTF-8 alone); `None` for an id that no token has.
    ///
    /// An added token stands for its own string.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        match self.0.added.by_id(id) {
            Some(token) => Some(token.content.clone().into_bytes()),
            None => self.0.model.id_to_token(id).map(|t| self.0.surface.bytes(&t)),
        }
    }

    /// One more than the highest id. A model may have more rows than this (padding), never fewer.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// The id of a token as the vocabulary spells it (a space is `Ġ` in byte-level vocabularies).
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.0.added.id_of(token).or_else(|| self.0.model.token_to_id(token))
    }

    /// Whether `skip_special` leaves this id out: control tokens, not `<think>` and the like.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.added.by_id(id).is_some_and(|t| t.special)
    }

    /// The id that the model wants before plain prompts, if any. Chat templates write their own.
    pub fn add_bos(&self) -> Option<u32> {
        self.0.bos
    }

    pub(crate) fn added(&self) -> &AddedTokens {
        &self.0.added
    }

    /// Whether the first space of decoded text is an artefact of encoding.
    pub(crate) fn strips_first_space(&self) -> bool {
        self.0.surface == Surface::Spaced { strip_first: true }
    }
}

impl Inner {
    /// A byte-level tokenizer without rules; the callers put theirs in.
    fn new(model: BpeParts, added: Vec<AddedToken>) -> Result<Self, Fault> {
        for t in &added {
            if let Some(id) = model.vocab.get(&t.content).filter(|id| **id != t.id) {
                let at = format!("added token {:?}", t.content);
                return Err(Fault::new(at, format!("id {id}, as the vocabulary has it"), t.id.to_string())
                    .remedy("fetch the file again"));
            }
        }
        let ids = model.vocab.values().copied().chain(added.iter().map(|t| t.id));
        Ok(Self {
            vocab_size: ids.max().map_or(0, |id| id as usize + 1),
            complete: model.unk_token.is_none() && !model.byte_fallback,
            model: model.build()?,
            added: AddedTokens::new(added)?,
            surface: Surface::ByteLevel,
            normalizer: None,
            pre_tokenizer: None,
            bos: None,
        })
    }

    fn spelling(&self, id: u32) -> Option<String> {
        self.added.by_id(id).map(|t| t.content.clone()).or_else(|| self.model.id_to_token(id))
    }

    /// The pipeline of `tokenizers`: cut at added tokens, normalize, pre-tokenize and merge the rest.
    fn run(&self, text: &str, hits: &[Hit]) -> tokenizers::Result<Vec<u32>> {
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, whole| self.cut(&whole, hits))?;
        if let Some(normalizer) = &self.normalizer {
            parts.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        parts.tokenize(|piece| self.merge(piece.get()))?;
        let splits = parts.get_splits(OffsetReferential::Original, OffsetType::None);
        Ok(splits.iter().flat_map(|(_, _, tokens)| tokens.iter().flatten().map(|t| t.id)).collect())
    }

    fn cut(
        &self,
        whole: &NormalizedString,
        hits: &[Hit],
    ) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let slice = |from: usize, to: usize| {
            whole.slice(Span::Original(from..to)).ok_or("a cut inside a character; report this as a defect")
        };
        let mut pieces = Vec::with_capacity(hits.len() * 2 + 1);
        let mut at = 0;
        for hit in hits {
            let (from, to) = (hit.range.start, hit.range.end);
            if at < from {
                pieces.push((slice(at, from)?, None));
            }
            let token = self.added.get(hit.index);
            pieces.push((slice(from, to)?, Some(vec![Token::new(token.id, token.content.clone(), (0, to - from))])));
            at = to;
        }
        if at < whole.len_original() {
            pieces.push((slice(at, whole.len_original())?, None));
        }
        Ok(pieces)
    }

    /// Merges one piece. `tokenizers` drops bytes that the vocabulary lacks without a word; here that is an error.
    fn merge(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.model.tokenize(piece)?;
        if self.complete && tokens.iter().map(|t| t.value.len()).sum::<usize>() != piece.len() {
            return Err(format!("a byte without a token in {piece:?}").into());
        }
        Ok(tokens)
    }
}
