//! Chat templates: a conversation to the text, or the ids, that the model was trained on.

mod environment;
mod marks;
mod tojson;

use crate::error::TextError;
use crate::json::Json;
use crate::tokenizer::Tokenizer;
use environment::Program;
use marks::{Guard, Marks};
use tare_core::Fault;

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// Messages as the OpenAI API has them; keys that this crate does not know reach the template too.
    /// `null` or missing `content` of an assistant message with tool calls is passed as the empty string.
    pub messages: Vec<Json>,
    /// Tools as the OpenAI API has them. The template sees `none` when there are none.
    pub tools: Vec<Json>,
    /// Ask for the opening of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Thinking on or off; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables (`chat_template_kwargs`); they may not replace those above.
    pub extra: Vec<(String, Json)>,
    /// What `strftime_now` formats. The library reads no clock: a template that asks for the date needs it here.
    pub now: Option<jiff::civil::DateTime>,
}

/// A compiled chat template, with the environment that Hugging Face gives templates: `trim_blocks`, `lstrip_blocks`,
/// Python's string methods, `break` and `continue`, `tojson` as Python writes JSON, `raise_exception`,
/// `strftime_now`, and `{% generation %}` blocks (which only mark text for training).
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    program: Program,
}

impl ChatTemplate {
    /// Compiles the template. `bos` and `eos` are what it sees as `bos_token` and `eos_token`; undefined when `None`.
    ///
    /// # Errors
    /// [`TextError::Template`] when the source is empty or is not a Jinja template.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        Ok(Self { program: Program::compile(source, bos, eos)? })
    }

    /// The conversation as text. Special tokens of the template and look-alikes in messages are not told apart here;
    /// give the ids of [`ChatTemplate::encode`] to a model.
    ///
    /// # Errors
    /// [`TextError::Refused`] when the template raises an exception, [`TextError::Template`] when it fails or runs
    /// out of its budget, [`TextError::Request`] when `extra` names a variable that is taken.
    pub fn render(&self, r: &ChatRequest) -> Result<String, TextError> {
        self.program.render(&normalized(r)?)
    }

    /// The conversation as ids: those of [`ChatTemplate::render`]'s text, in which the template's special tokens are
    /// parsed and the same strings inside the request stay text.
    ///
    /// What stays text: every added token in messages, tools and `extra`, with two exceptions that concern tokens which
    /// are not control tokens (`<think>`, `<tool_call>`, `<tool_response>`). Messages of the role `assistant` are the
    /// model's output given back, and the model wrote these as tokens. And a template may look for them in messages:
    /// Qwen3 takes a user message wrapped in `<tool_response>` for a tool's answer; they are part of its protocol then
    /// and are parsed, as Hugging Face does. Control tokens (`<|im_end|>`) stay text everywhere. Decoding the ids gives
    /// the rendered text back (normalized as the tokenizer does).
    ///
    /// How: the template is rendered again with a mark (a character that the text does not contain) inside each such
    /// string and wherever a string of the request ends or begins with a part of an added token, so that none can be
    /// put together from two strings. The marked text without its marks must equal the plain text; then each added
    /// token in it that no mark breaks is the template's own. Not covered: a template that itself writes both the
    /// first and the last characters of a token around a string of the request.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`]; [`TextError::Request`] when the template acts on
    /// control tokens in messages, so that nobody could tell whose a token is.
    pub fn encode(&self, r: &ChatRequest, tok: &Tokenizer) -> Result<Vec<u32>, TextError> {
        let r = normalized(r)?;
        let plain = self.program.render(&r)?;
        for guard in [Guard::All, Guard::Control] {
            let marks = Marks::new(tok.added(), guard, &plain)?;
            let Some(marked) = marks.mark(&r) else {
                return tok.encode_around(&plain, tok.added().find(&plain));
            };
            // A template may fail on marked messages that it accepts plain: it acts on what the marks break.
            let Ok(text) = self.program.render(&marked) else { continue };
            if marks.removed(&text) == plain {
                return tok.encode_around(&plain, marks.own_tokens(&text));
            }
        }
        let found = "a template that acts on them";
        let fault = Fault::new("messages", "text whose control tokens the template only passes on", found);
        Err(TextError::Request(fault.remedy("take strings such as <|im_end|> out of the messages")))
    }
}

/// The request as templates expect it: an assistant message that only calls tools has content, if empty.
fn normalized(r: &ChatRequest) -> Result<ChatRequest, TextError> {
    let mut r = r.clone();
    for (i, message) in r.messages.iter_mut().enumerate() {
        if !matches!(message, Json::Object(_)) {
            let fault = Fault::new(format!("messages[{i}]"), "an object with role and content", "another JSON value");
            return Err(TextError::Request(fault.remedy("write {\"role\": \"user\", \"content\": \"...\"}")));
        }
        let calls = matches!(message.get("tool_calls"), Some(Json::Array(calls)) if !calls.is_empty());
        if calls && matches!(message.get("content"), None | Some(Json::Null)) {
            message.set("content", Json::String(String::new()));
        }
    }
    Ok(r)
}
