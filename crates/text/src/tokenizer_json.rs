//! The `tokenizer.json` of Hugging Face, read into the parts that a [`crate::Tokenizer`] is made of.

use crate::added::AddedToken;
use crate::surface::Surface;
use crate::vocab::BpeParts;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use tare_core::Fault;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

/// The keys that are used. `truncation` and `padding` are settings of training pipelines and have no meaning here.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Entry>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    decoder: Option<Value>,
    #[serde(default)]
    post_processor: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Entry {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Merges are pairs in new files, lines with one space in older ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

/// The parts of a tokenizer.
pub(crate) struct JsonParts {
    pub(crate) model: BpeParts,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(crate) surface: Surface,
    pub(crate) bos: Option<u32>,
}

impl JsonParts {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let file: File = serde_json::from_slice(bytes).map_err(|e| {
            Fault::new("tokenizer.json", "a BPE tokenizer of Hugging Face's tokenizers", e.to_string())
                .remedy("fetch the file again; WordPiece, WordLevel and Unigram models are not supported")
        })?;
        let bos = leading_special(&file.post_processor)
            .map(|name| {
                let added = file.added_tokens.iter().find(|t| t.content == name).map(|t| t.id);
                added.or_else(|| file.model.vocab.get(name).copied()).ok_or_else(|| {
                    Fault::new("post_processor", "a token of the vocabulary", format!("{name:?}"))
                        .remedy("fetch the file again")
                })
            })
            .transpose()?;
        let added = file.added_tokens.into_iter().map(|t| AddedToken {
            content: t.content,
            id: t.id,
            special: t.special,
            single_word: t.single_word,
            lstrip: t.lstrip,
            rstrip: t.rstrip,
        });
        Ok(Self {
            added: added.collect(),
            normalizer: file.normalizer,
            pre_tokenizer: file.pre_tokenizer,
            surface: Surface::from_decoder(file.decoder.as_ref())?,
            model: file.model.parts()?,
            bos,
        })
    }
}

impl Model {
    fn parts(self) -> Result<BpeParts, Fault> {
        if let Some(kind) = self.kind.filter(|k| k != "BPE") {
            return Err(
                Fault::new("model.type", "BPE", kind).remedy("use a model of the Qwen, Llama or SmolLM families")
            );
        }
        let affixes = [
            ("continuing_subword_prefix", self.continuing_subword_prefix),
            ("end_of_word_suffix", self.end_of_word_suffix),
        ];
        for (name, affix) in affixes {
            if let Some(affix) = affix.filter(|a| !a.is_empty()) {
                return Err(Fault::new(format!("model.{name}"), "nothing", format!("{affix:?}"))
                    .remedy("such vocabularies are not of a supported family"));
            }
        }
        let lines = self.merges.into_iter().filter(|m| !matches!(m, Merge::Line(l) if l.starts_with("#version")));
        let merges = lines.enumerate().map(|(i, m)| match m {
            Merge::Pair(a, b) => Ok((a, b)),
            Merge::Line(line) => match line.split_once(' ') {
                Some((a, b)) => Ok((a.to_owned(), b.to_owned())),
                None => Err(Fault::new(format!("merge {i}"), "two tokens parted by a space", format!("{line:?}"))),
            },
        });
        Ok(BpeParts {
            merges: merges.collect::<Result<_, _>>()?,
            vocab: self.vocab,
            unk_token: self.unk_token,
            fuse_unk: self.fuse_unk,
            byte_fallback: self.byte_fallback,
            ignore_merges: self.ignore_merges,
        })
    }
}

/// The special token that the post-processor puts before a single text, as Llama 3 does with begin-of-text.
fn leading_special(post_processor: &Value) -> Option<&str> {
    match post_processor["type"].as_str()? {
        "TemplateProcessing" => post_processor["single"].get(0)?["SpecialToken"]["id"].as_str(),
        "Sequence" => post_processor["processors"].as_array()?.iter().find_map(leading_special),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn begin_of_text_is_read_out_of_the_post_processor() {
        let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}]});
        assert_eq!(leading_special(&template), Some("<s>"));
        assert_eq!(
            leading_special(&json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]})),
            Some("<s>")
        );
        assert_eq!(
            leading_special(&json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]})),
            None
        );
        assert_eq!(leading_special(&Value::Null), None);
    }
}
