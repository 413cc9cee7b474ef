//! `tare translate`: another tool's command line in tare's words.

use anyhow::{Result, bail};
use clap::Parser;

use crate::args::{Cli, TranslateArgs};
use crate::setup::text_argument;
use crate::translate::{Translation, Verdict, page, translate};

/// Runs the command. Words that the table does not know, and values that it cannot read, are an error after everything else
/// was said.
pub(crate) fn run(args: &TranslateArgs) -> Result<()> {
    let Some(line) = &args.line else {
        crate::output::print(format_args!("{}", page()));
        return Ok(());
    };
    let translation = translate(&text_argument(line)?)?;
    if args.json {
        println!("{}", serde_json::to_string(&translation)?);
    } else {
        print(&translation);
    }
    let not_understood = translation.flags.iter().find_map(|f| match &f.verdict {
        Verdict::NotUnderstood(why) => Some(format!("{}: {why}", f.flag)),
        _ => None,
    });
    if let Some(why) = not_understood {
        bail!("the command is for other work than theirs: {why}");
    }
    if let Some(lacks) = translation.arguments.iter().find_map(|words| incomplete(words)) {
        bail!("the command is not complete: {lacks}");
    }
    match translation.unknown.as_slice() {
        [] => Ok(()),
        unknown => bail!("not in the table of {}, and not translated: {}", translation.tool, unknown.join("; ")),
    }
}

/// What tare's own parser has against a translated command: their line left something out that tare needs.
fn incomplete(words: &[String]) -> Option<String> {
    let line = ["tare"].into_iter().chain(words.iter().map(String::as_str));
    Cli::try_parse_from(line).err().map(|e| e.to_string().trim_start_matches("error: ").trim().to_string())
}

fn print(t: &Translation) {
    for command in &t.commands {
        println!("{command}");
    }
    if let Some(why) = t.why_none {
        println!("{} has no counterpart: {why}", t.tool);
    }
    for flag in &t.flags {
        let value = flag.value.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
        let default = if flag.default { ", their default" } else { "" };
        let verdict = match &flag.verdict {
            Verdict::Becomes(words) => format!("-> {words}"),
            Verdict::Always(why) => format!("always so: {why}"),
            Verdict::NoCounterpart(why) => format!("no counterpart: {why}"),
            Verdict::NotUnderstood(why) => format!("NOT UNDERSTOOD: {why}"),
        };
        println!("  {}{value} ({}{default}) {verdict}", flag.flag, flag.meaning);
    }
    for difference in &t.differs {
        println!("  differs: {difference}");
    }
}
