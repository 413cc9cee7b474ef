//! The body of POST /v1/chat/completions.

use tare_core::Fault;
use tare_text::{ChatRequest, Json};

use super::fields::{Fields, shown};
use super::generation::MAX_TOP_LOGPROBS;
use super::{Generation, body, harmless, messages, model};
use crate::problem::Problem;

/// Parameters that the API has and this server has not, whatever their value.
const NOT_BUILT: [&str; 8] = [
    "audio",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "prompt_cache_retention",
    "verbosity",
    "web_search_options",
];

/// A conversation to continue.
#[derive(Clone, Debug)]
pub(crate) struct ChatCall {
    /// The model asked for.
    pub(crate) model: String,
    /// What the template is rendered with.
    pub(crate) chat: ChatRequest,
    /// How tokens are drawn.
    pub(crate) generation: Generation,
    /// Whether tokens are reported, and beside each how many of the most likely ones.
    pub(crate) logprobs: Option<u32>,
}

impl ChatCall {
    /// Reads a body. Ids in it are below `vocabulary`.
    pub(crate) fn read(bytes: &[u8], vocabulary: usize) -> Result<Self, Problem> {
        let mut fields = body(bytes)?;
        let call = Self {
            model: model(&mut fields)?,
            chat: chat(&mut fields)?,
            generation: Generation::read(&mut fields, vocabulary)?,
            logprobs: logprobs(&mut fields)?,
        };
        harmless(&mut fields)?;
        response_format(&mut fields)?;
        modalities(&mut fields)?;
        fields.one_of("reasoning_effort", &[])?;
        fields.refuse(&NOT_BUILT)?;
        fields.finish()?;
        Ok(call)
    }
}

fn chat(fields: &mut Fields) -> Result<ChatRequest, Problem> {
    let list = fields.list("messages")?;
    let list = fields.required("messages", "a list of at least one message", list)?;
    if list.is_empty() {
        let fault = Fault::new("messages", "a list of at least one message", "an empty list");
        return Err(Problem::parameter(fault));
    }
    let mut chat = ChatRequest {
        tools: tools(fields)?,
        add_generation_prompt: true,
        now: Some(jiff::tz::TimeZone::UTC.to_datetime(jiff::Timestamp::now())),
        ..ChatRequest::default()
    };
    if let Some(mut variables) = fields.object("chat_template_kwargs")? {
        chat.enable_thinking = variables.flag("enable_thinking")?;
        chat.extra = variables.rest();
    }
    chat.messages = messages::read(list)?;
    Ok(chat)
}

/// The tools that the template is to show; none under `tool_choice: "none"`, so that there is nothing to call.
fn tools(fields: &mut Fields) -> Result<Vec<Json>, Problem> {
    let tools = fields.list("tools")?.unwrap_or_default();
    for (i, tool) in tools.iter().enumerate() {
        check_tool(&format!("tools[{i}]"), tool)?;
    }
    if fields.flag("parallel_tool_calls")? == Some(false) {
        return Err(Problem::not_built("parallel_tool_calls", "true", "false"));
    }
    match fields.take("tool_choice") {
        None => Ok(tools),
        Some(Json::String(s)) if s == "auto" => Ok(tools),
        Some(Json::String(s)) if s == "none" => Ok(Vec::new()),
        Some(other) => Err(Problem::not_built("tool_choice", "\"none\" or \"auto\"", shown(&other))),
    }
}

fn check_tool(at: &str, tool: &Json) -> Result<(), Problem> {
    let mut fields = Fields::new(at, tool.clone())?;
    fields.one_of("type", &["function"])?;
    let function = fields.object("function")?;
    let mut function = fields.required("function", "an object with a name", function)?;
    let name = function.string("name")?;
    function.required("name", "the name of the function", name)?;
    match function.flag("strict")? {
        Some(true) => Err(Problem::not_built(function.path("strict"), "false", "true")),
        _ => Ok(()),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, Problem> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(n)) if n > 0 => {
            let fault = Fault::new("top_logprobs", "logprobs to be true", "logprobs off");
            Err(Problem::parameter(fault.remedy("set logprobs to true")))
        }
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
    }
}

fn response_format(fields: &mut Fields) -> Result<(), Problem> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(()) };
    format.one_of("type", &["text"])?;
    format.finish()
}

fn modalities(fields: &mut Fields) -> Result<(), Problem> {
    let kinds = fields.list("modalities")?.unwrap_or_default();
    match kinds.iter().find(|kind| kind.as_str() != Some("text")) {
        Some(other) => Err(Problem::not_built("modalities", "\"text\" alone", shown(other))),
        None => Ok(()),
    }
}
