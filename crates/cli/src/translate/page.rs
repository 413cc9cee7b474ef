//! docs/coming-from.md, printed from the table.

use std::fmt::Write;

use super::convert::translate;
use super::table::{Becomes, Flag, To, Tool};
use super::tools;

const HEAD: &str = "# Coming from another tool

`tare translate '<your command line>'` gives tare's command for the same work, flag by flag. This page is its table; write
it anew with `tare translate --page > docs/coming-from.md`. What it cannot translate it says: a flag is never dropped
without a word, and one that the table does not know makes the command fail, as does a length that it cannot read.
";

/// The whole page.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_string();
    for tool in tools() {
        page.push_str(&section(tool));
    }
    page
}

fn section(tool: &Tool) -> String {
    let starts: Vec<String> = tool.starts.iter().map(|s| format!("`{}`", s.join(" "))).collect();
    let mut text = format!("\n## {}\n\n{}\n\n```\n{}\n", tool.name, starts.join(", "), tool.example);
    let translated = translate(tool.example);
    for command in translated.iter().flat_map(|t| &t.commands) {
        let _infallible = writeln!(text, "    {command}");
    }
    text.push_str("```\n");
    if let Becomes::Nothing(why) = tool.becomes {
        text.push_str(&format!("\nNo counterpart: {why}.\n"));
    }
    if !tool.flags.is_empty() || !tool.positional.is_empty() {
        text.push_str("\n| theirs | meaning | tare |\n|---|---|---|\n");
        for flag in tool.positional.iter().chain(tool.flags) {
            text.push_str(&row(flag, tool));
        }
    }
    if !tool.differs.is_empty() {
        text.push_str("\nWhat differs:\n\n");
        tool.differs.iter().for_each(|d| text.push_str(&format!("- {d}\n")));
    }
    text
}

fn row(flag: &Flag, tool: &Tool) -> String {
    let names: Vec<String> = flag.names.iter().map(|n| format!("`{n}`")).collect();
    let default = tool.defaults.iter().find(|(name, _)| flag.names.contains(name));
    let default = default.map(|(_, value)| format!(" (theirs: {value})")).unwrap_or_default();
    format!("| {} | {}{default} | {} |\n", names.join(", "), flag.meaning, cell(&flag.to))
}

fn cell(to: &To) -> String {
    match to {
        To::Same(flag) => format!("`{flag}`"),
        To::OneMore(flag) => format!("`{flag}`, one more: the first belongs to prefill"),
        To::NotZero(flag) => format!("`{flag}`, 1 for 0"),
        To::Each(inner) => format!("{}; a command for each value of a list or range", cell(inner)),
        To::List(flag) => format!("`{flag}`, lists and ranges written out"),
        To::Unless(values, inner) => {
            let told = values.iter().map(|(value, why)| format!("; `{value}` is left out: {why}"));
            format!("{}{}", cell(inner), told.collect::<String>())
        }
        To::One(choices, why) => {
            let words = |(value, words): &(&str, &[&str])| match words {
                [] => format!("{value}: as it is"),
                words => format!("{value}: `{}`", words.join(" ")),
            };
            format!("{}; else none: {why}", choices.iter().map(words).collect::<Vec<_>>().join(", "))
        }
        To::Words(words) => format!("`{}`", words.join(" ")),
        To::JsonFile => "`--json > FILE`".to_string(),
        To::Case => "`--plan PLAN --phase PHASE`, and the tokens as `--depth` (decode) or `-p` (prefill)".to_string(),
        To::Host | To::Port => "`--url http://HOST:PORT`".to_string(),
        To::Always(why) => format!("always so: {why}"),
        To::None(why) => format!("none: {why}"),
    }
}
