//! The Jinja environment that Hugging Face gives chat templates.

use super::{ChatRequest, tojson};
use crate::error::TextError;
use crate::json::Json;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tare_core::Fault;

/// What one rendering may cost: about as many instructions, or 64 bytes of data for each, so 256 MB at most. A
/// conversation of a megabyte in a published template takes less than a twentieth.
const FUEL: u64 = 4_000_000;

/// The name under which the one template is compiled.
const NAME: &str = "chat";

/// Names that requests may not redefine.
const TAKEN: [&str; 8] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "namespace",
];

/// A compiled template with its fixed variables.
#[derive(Clone)]
pub(super) struct Program {
    environment: Arc<Environment<'static>>,
    bos: Option<String>,
    eos: Option<String>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program(bos {:?}, eos {:?})", self.bos, self.eos)
    }
}

/// The text that a template gave to `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl Program {
    pub(super) fn compile(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, TextError> {
        if source.trim().is_empty() {
            let fault = Fault::new("source", "a Jinja template", "nothing");
            let remedy = "use a model whose tokenizer_config.json or GGUF has a chat template, or give one";
            return Err(TextError::Template(fault.remedy(remedy)));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| failure(&e))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(python_text);
        environment.set_fuel(Some(FUEL));
        environment.set_debug(false);
        environment.add_filter("tojson", |v: Value, options| tojson::filter(&v, options));
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(text)))
        });
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| failure(&e))?;
        Ok(Self { environment: Arc::new(environment), bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    pub(super) fn render(&self, r: &ChatRequest) -> Result<String, TextError> {
        let variables = self.variables(r)?;
        let template = self.environment.get_template(NAME).map_err(|e| failure(&e))?;
        template.render(Value::from_pairs(variables)).map_err(|e| failure(&e))
    }

    fn variables(&self, r: &ChatRequest) -> Result<BTreeMap<String, Value>, TextError> {
        let mut variables = BTreeMap::new();
        for (name, v) in &r.extra {
            if TAKEN.contains(&name.as_str()) || (name == "enable_thinking" && r.enable_thinking.is_some()) {
                let fault =
                    Fault::new(format!("chat_template_kwargs.{name}"), "a name of its own", "one that is taken");
                return Err(TextError::Request(fault.remedy("leave it out; the request has a field for it")));
            }
            variables.insert(name.clone(), value(v));
        }
        let list = |items: &[Json]| items.iter().map(value).collect::<Value>();
        let tools = if r.tools.is_empty() { Value::from(()) } else { list(&r.tools) };
        let now = r.now;
        let fixed = [
            ("messages", Some(list(&r.messages))),
            ("tools", Some(tools)),
            ("add_generation_prompt", Some(r.add_generation_prompt.into())),
            ("enable_thinking", r.enable_thinking.map(Value::from)),
            ("bos_token", self.bos.as_deref().map(Value::from)),
            ("eos_token", self.eos.as_deref().map(Value::from)),
            ("strftime_now", Some(Value::from_function(move |format: String| date(now, &format)))),
        ];
        variables.extend(fixed.into_iter().filter_map(|(name, v)| Some((name.to_owned(), v?))));
        Ok(variables)
    }
}

fn date(now: Option<jiff::civil::DateTime>, format: &str) -> Result<String, Error> {
    let now = now.ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "strftime_now: the template asks for the date; pass it as `now`")
    })?;
    jiff::fmt::strtime::format(format, now)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?}: {e}")))
}

/// JSON as a template sees it; objects keep the order of their keys.
fn value(v: &Json) -> Value {
    match v {
        Json::Null => Value::from(()),
        Json::Bool(b) => (*b).into(),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => n.into(),
            (None, Some(n)) => n.into(),
            (None, None) => n.as_f64().unwrap_or(f64::NAN).into(),
        },
        Json::String(s) => s.into(),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(pairs) => Value::from_pairs(pairs.iter().map(|(k, v)| (k.clone(), value(v)))),
    }
}

/// What `{{ }}` prints is what Python's `str` gives for these constants.
fn python_text(out: &mut Output, state: &mut State, v: &Value) -> Result<(), Error> {
    match v.kind() {
        ValueKind::Bool => Ok(out.write_str(if v.is_true() { "True" } else { "False" })?),
        ValueKind::None => Ok(out.write_str("None")?),
        _ => escape_formatter(out, state, v),
    }
}

/// Replaces `{% generation %}` and its end, which mark the assistant's text for training, by a block that is always
/// taken, so that white space around the tags is treated alike.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (inner, end) = (&rest[start + 2..start + len], start + len + 2);
        out.push_str(&rest[..start]);
        let name = inner.trim_matches(['-', '+']).trim();
        match name {
            "generation" | "endgeneration" => {
                let block = if name == "generation" { "if true" } else { "endif" };
                out.push_str(&format!("{{%{}%}}", inner.replace(name, block)));
            }
            _ => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// A failure of the template engine in our words.
fn failure(e: &Error) -> TextError {
    let mut cause: Option<&dyn std::error::Error> = Some(e);
    while let Some(inner) = cause {
        if let Some(Raised(text)) = inner.downcast_ref::<Raised>() {
            return TextError::Refused(text.clone());
        }
        cause = inner.source();
    }
    let at = e.line().map_or_else(|| "template".to_owned(), |line| format!("line {line}"));
    let found = match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    };
    TextError::Template(match e.kind() {
        ErrorKind::OutOfFuel => {
            let expected = format!("at most {FUEL} steps or as many times 64 bytes");
            Fault::new(at, expected, "more").remedy("shorten the conversation, or distrust the template")
        }
        ErrorKind::SyntaxError | ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            Fault::new(at, "Jinja as Hugging Face's templates use it", found).remedy("give another chat template")
        }
        _ => Fault::new(at, "messages of the form that the template handles", found)
            .remedy("check that each message has a role and text content, or give another chat template"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_blocks_that_keep_white_space_control() {
        let source = "{%- generation -%}a{%generation%}{{ '{%' }}{%+ endgeneration %}b{% if x %}{% open";
        let want = "{%- if true -%}a{%if true%}{{ '{%' }}{%+ endgeneration %}b{% if x %}{% open";
        assert_eq!(without_generation_tags(source), want, "a tag-like string may hide the tag after it, never more");
        assert_eq!(without_generation_tags("x{% generation %}y{% endgeneration %}"), "x{% if true %}y{% endif %}");
    }
}
