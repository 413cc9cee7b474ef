//! `tare chat`: a conversation. The cached part of the conversation is kept between turns.

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use std::io::Write;
use std::path::Path;
use tare_engine::{Engine, Request, Retained};
use tare_model::Model;
use tare_text::{ChatRequest, ChatTemplate, Json, Tokenizer};

use crate::args::ChatArgs;
use crate::commands::run::{sampling, summary};
use crate::generate::{Text, answer};
use crate::interrupt::Interrupt;
use crate::settings::Settings;
use crate::setup::{How, chat_template, open_model, tokenizer};

const HELP: &str = "\
/help             this list
/reset            forget the conversation
/system TEXT      set the system message and start anew; without TEXT, show it
/save FILE        write the conversation as JSON
/quit             leave; so does Ctrl-D
Ctrl-C stops an answer";

/// Runs the command.
pub(crate) fn run(args: &ChatArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model.model, settings)?;
    let tokenizer = tokenizer(&model)?;
    let template = chat_template(&model, &tokenizer)?;
    let how = How::of(&args.model.how, &model, None, settings)?;
    let engine = how.engine(&model)?;
    let interrupt = Interrupt::listen()?;
    let mut chat = Chat {
        args,
        model: &model,
        tokenizer,
        template,
        engine,
        context: how.context,
        interrupt,
        system: args.system.clone(),
        messages: Vec::new(),
        kept: None,
    };
    eprintln!("{} ({}). /help lists the commands.", args.model.model, how.class.name);
    let mut editor = rustyline::DefaultEditor::new()?;
    let history = settings.home.join("chat-history");
    // A first start has no history yet.
    let _first_start = editor.load_history(&history);
    loop {
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                editor.add_history_entry(&line)?;
                if !chat.line(line.trim())? {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(e.into()),
        }
    }
    std::fs::create_dir_all(&settings.home)?;
    editor.save_history(&history).with_context(|| format!("cannot write {}", history.display()))
}

struct Chat<'a> {
    args: &'a ChatArgs,
    model: &'a Model,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    engine: Engine,
    context: usize,
    interrupt: Interrupt,
    system: Option<String>,
    messages: Vec<Json>,
    kept: Option<Retained>,
}

impl Chat<'_> {
    /// Does what a line says; false ends the program.
    fn line(&mut self, line: &str) -> Result<bool> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "/quit" | "/exit" => return Ok(false),
            "/help" => println!("{HELP}"),
            "/reset" => self.reset(),
            "/system" if rest.is_empty() => println!("{}", self.system.as_deref().unwrap_or("(none)")),
            "/system" => {
                self.system = Some(rest.trim().to_string());
                self.reset();
            }
            "/save" if rest.is_empty() => println!("/save needs a file name"),
            "/save" => match self.save(Path::new(rest.trim())) {
                Ok(()) => println!("saved"),
                Err(e) => println!("not saved: {e:#}"),
            },
            c if c.starts_with('/') => println!("there is no {c}; /help lists the commands"),
            _ => self.turn(line)?,
        }
        Ok(true)
    }

    fn reset(&mut self) {
        self.messages.clear();
        if let Some(kept) = self.kept.take() {
            self.engine.release_retained(kept);
        }
        println!("(a new conversation)");
    }

    fn save(&self, path: &Path) -> Result<()> {
        let mut file = std::fs::File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(file.write_all(&serde_json::to_vec_pretty(&self.conversation())?)?)
    }

    fn conversation(&self) -> Vec<Json> {
        let system = self.system.iter().map(|s| Json::message("system", s));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// One question and its answer. A question that does not fit is taken back, so that the conversation stays usable.
    fn turn(&mut self, question: &str) -> Result<()> {
        self.messages.push(Json::message("user", question));
        let request = ChatRequest {
            messages: self.conversation(),
            add_generation_prompt: true,
            enable_thinking: self.args.thinking,
            ..ChatRequest::default()
        };
        let prompt = self.template.encode(&request, &self.tokenizer)?;
        let Some(room) = self.context.checked_sub(prompt.len()).filter(|r| *r > 0) else {
            println!(
                "the conversation has {} tokens and the context {}: /reset, or start with a larger --context",
                prompt.len(),
                self.context
            );
            self.messages.pop();
            return Ok(());
        };
        let request = Request {
            sampling: sampling(&self.args.sample),
            seed: self.args.sample.seed,
            stop_tokens: self.model.config().eos.clone(),
            retain: true,
            resume: self.kept.take(),
            ..Request::greedy(prompt, self.args.max_tokens.min(room))
        };
        self.interrupt.clear();
        let text = Text { tokenizer: Some(&self.tokenizer), stop: &[] };
        let mut out = std::io::stdout().lock();
        let done = answer(&mut self.engine, request, &text, &self.interrupt, &mut |piece| {
            out.write_all(piece.as_bytes())?;
            Ok(out.flush()?)
        })?;
        self.interrupt.clear();
        writeln!(out)?;
        eprintln!("{}", summary(&done));
        self.kept = done.retained;
        self.messages.push(Json::message("assistant", &done.text));
        Ok(())
    }
}
