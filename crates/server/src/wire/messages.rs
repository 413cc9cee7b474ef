//! Messages of a conversation, checked and brought into the shape that templates expect.

use tare_core::Fault;
use tare_text::Json;

use super::fields::{Fields, shown};
use crate::problem::Problem;

/// Fields of a message that the API has and this server has not.
const NOT_BUILT: [&str; 4] = ["annotations", "audio", "function_call", "refusal"];

/// Checks messages. What templates get: `developer` is `system`, lists of text parts are joined by newlines, and the
/// arguments of a tool call are an object.
pub(super) fn read(list: Vec<Json>) -> Result<Vec<Json>, Problem> {
    list.into_iter().enumerate().map(|(i, message)| one(Fields::new(format!("messages[{i}]"), message)?)).collect()
}

fn one(mut fields: Fields) -> Result<Json, Problem> {
    let role = role(&mut fields)?;
    let calls = tool_calls(&mut fields)?;
    let content = content(&mut fields)?;
    if content.is_none() && calls.is_none() {
        fields.required("content", "a string or a list of text parts", content.as_ref())?;
    }
    let mut message = vec![("role".to_owned(), Json::String(role))];
    message.extend(content.map(|text| ("content".to_owned(), Json::String(text))));
    message.extend(calls.map(|calls| ("tool_calls".to_owned(), Json::Array(calls))));
    for name in ["name", "tool_call_id", "reasoning_content"] {
        message.extend(fields.string(name)?.map(|text| (name.to_owned(), Json::String(text))));
    }
    fields.refuse(&NOT_BUILT)?;
    fields.finish()?;
    Ok(Json::Object(message))
}

fn role(fields: &mut Fields) -> Result<String, Problem> {
    let expected = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
    let role = fields.string("role")?;
    let role = fields.required("role", expected, role)?;
    match role.as_str() {
        "system" | "developer" => Ok("system".to_owned()),
        "user" | "assistant" | "tool" => Ok(role),
        _ => Err(Problem::parameter(Fault::new(fields.path("role"), expected, shown(&Json::String(role))))),
    }
}

fn content(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let at = fields.path("content");
    let parts = match fields.take("content") {
        None => return Ok(None),
        Some(Json::String(text)) => return Ok(Some(text)),
        Some(Json::Array(parts)) => parts,
        Some(other) => return Err(super::fields::mismatch(&at, "a string or a list of text parts", &other)),
    };
    let text = |(i, part): (usize, Json)| {
        let mut part = Fields::new(format!("{at}[{i}]"), part)?;
        part.one_of("type", &["text"])?;
        let text = part.string("text")?;
        let text = part.required("text", "a string", text)?;
        part.finish()?;
        Ok(text)
    };
    let texts: Vec<String> = parts.into_iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(Some(texts.join("\n")))
}

fn tool_calls(fields: &mut Fields) -> Result<Option<Vec<Json>>, Problem> {
    let at = fields.path("tool_calls");
    let Some(calls) = fields.list("tool_calls")?.filter(|calls| !calls.is_empty()) else { return Ok(None) };
    let call = |(i, call)| tool_call(Fields::new(format!("{at}[{i}]"), call)?);
    calls.into_iter().enumerate().map(call).collect::<Result<_, _>>().map(Some)
}

fn tool_call(mut fields: Fields) -> Result<Json, Problem> {
    fields.one_of("type", &["function"])?;
    let id = fields.string("id")?;
    let function = fields.object("function")?;
    let mut function = fields.required("function", "an object with name and arguments", function)?;
    fields.finish()?;
    let name = function.string("name")?;
    let name = function.required("name", "the name of the function", name)?;
    let arguments = arguments(&mut function)?;
    function.finish()?;
    let function = vec![("name".to_owned(), Json::String(name)), ("arguments".to_owned(), arguments)];
    let mut call = vec![("type".to_owned(), Json::String("function".to_owned()))];
    call.extend(id.map(|id| ("id".to_owned(), Json::String(id))));
    call.push(("function".to_owned(), Json::Object(function)));
    Ok(Json::Object(call))
}

/// The API writes arguments as a string that holds JSON; templates print an object.
fn arguments(function: &mut Fields) -> Result<Json, Problem> {
    let expected = "a string that holds a JSON object";
    let text = function.string("arguments")?;
    let text = function.required("arguments", expected, text)?;
    match serde_json::from_str::<Json>(&text) {
        Ok(object @ Json::Object(_)) => Ok(object),
        _ => {
            let found = shown(&Json::String(text));
            Err(Problem::parameter(Fault::new(function.path("arguments"), expected, found)))
        }
    }
}
