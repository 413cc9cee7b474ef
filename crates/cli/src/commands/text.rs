//! `tare tokenize`, `tare detokenize` and `tare template`: the model's text machinery by itself.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use tare_text::{ChatRequest, Json, Special};

use crate::args::{DetokenizeArgs, TemplateArgs, TokenizeArgs};
use crate::settings::Settings;
use crate::setup::{chat_template, open_model, read_ids, text_argument, tokenizer};

/// Text to ids.
pub(crate) fn tokenize(args: &TokenizeArgs, settings: &Settings) -> Result<()> {
    let tokenizer = tokenizer(&open_model(&args.model, settings)?)?;
    let special = if args.parse_special { Special::Parse } else { Special::Text };
    let ids = tokenizer.encode(&text_argument(&args.text)?, special)?;
    if args.json {
        println!("{}", serde_json::to_string(&ids)?);
        return Ok(());
    }
    for id in &ids {
        println!("{id:>8}  {:?}", tokenizer.decode(&[*id], false)?);
    }
    eprintln!("[{} tokens]", ids.len());
    Ok(())
}

/// Ids to text.
pub(crate) fn detokenize(args: &DetokenizeArgs, settings: &Settings) -> Result<()> {
    let tokenizer = tokenizer(&open_model(&args.model, settings)?)?;
    let ids = match &args.ids {
        Some(path) => read_ids(path)?,
        None => args.tokens.clone(),
    };
    let text = tokenizer.decode(&ids, args.skip_special)?;
    if args.json {
        println!("{}", json!(text));
    } else {
        println!("{text}");
    }
    Ok(())
}

/// The two forms of a conversation file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Conversation {
    Messages(Vec<Json>),
    Whole {
        messages: Vec<Json>,
        #[serde(default)]
        tools: Vec<Json>,
    },
}

/// Renders a template.
pub(crate) fn template(args: &TemplateArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let tokenizer = tokenizer(&model)?;
    let template = chat_template(&model, &tokenizer)?;
    let text = match args.file.to_str() {
        Some("-") => text_argument("-")?,
        _ => std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?,
    };
    let (messages, tools) = match serde_json::from_str(&text).with_context(|| {
        format!("{}: expected an array of messages, or an object with messages and tools", args.file.display())
    })? {
        Conversation::Messages(m) => (m, Vec::new()),
        Conversation::Whole { messages, tools } => (messages, tools),
    };
    let request = ChatRequest {
        messages,
        tools,
        add_generation_prompt: !args.no_generation_prompt,
        enable_thinking: args.thinking,
        ..ChatRequest::default()
    };
    let rendered = template.render(&request)?;
    if args.json {
        println!("{}", json!({ "rendered": rendered, "ids": template.encode(&request, &tokenizer)? }));
    } else {
        println!("{rendered}");
    }
    Ok(())
}
