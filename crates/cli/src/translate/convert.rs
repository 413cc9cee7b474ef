//! A command line of another tool, read by the table.

use serde::Serialize;
use tare_core::Fault;

use super::seeds::{NO_PLAN, PLANS};
use super::table::{Becomes, Flag, Takes, To, Tool};
use super::{tools, words};

/// What tare has for a command line.
#[derive(Debug, Serialize)]
pub(crate) struct Translation {
    /// The tool that was meant.
    pub(crate) tool: &'static str,
    /// The command lines, several where theirs has lists; empty where tare has none.
    pub(crate) commands: Vec<String>,
    /// Their words, without redirections: what tare's own parser is given.
    #[serde(skip)]
    pub(crate) arguments: Vec<Vec<String>>,
    /// Why there is no command.
    pub(crate) why_none: Option<&'static str>,
    /// Flag by flag, in their order; defaults that were written out come last.
    pub(crate) flags: Vec<Translated>,
    /// Words that the table does not know.
    pub(crate) unknown: Vec<String>,
    /// What is not the same.
    pub(crate) differs: Vec<&'static str>,
}

/// One flag.
#[derive(Debug, Serialize)]
pub(crate) struct Translated {
    /// As it was given.
    pub(crate) flag: String,
    /// Its value, where it takes one.
    pub(crate) value: Option<String>,
    /// Whether it is their default, which nobody gave.
    pub(crate) default: bool,
    /// What it means.
    pub(crate) meaning: &'static str,
    /// What became of it.
    pub(crate) verdict: Verdict,
}

/// What became of a flag.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// These words of tare.
    Becomes(String),
    /// tare does it in any case.
    Always(&'static str),
    /// No counterpart.
    NoCounterpart(String),
    /// A value that the work depends on and that was not understood: the command is for other work.
    NotUnderstood(String),
}

/// Translates a command line.
///
/// # Errors
/// When it is not one of the table's, or breaks off.
pub(crate) fn translate(line: &str) -> Result<Translation, Fault> {
    let all = words::split(line)?;
    let environment = all.iter().take_while(|w| is_assignment(w)).count();
    let (tool, rest) = find(&all[environment..])?;
    let mut reading = Reading {
        tool,
        gathered: Vec::new(),
        built: Built::default(),
        flags: Vec::new(),
        unknown: Vec::new(),
        given: Vec::new(),
    };
    for (name, value) in all[..environment].iter().filter_map(|w| w.split_once('=')) {
        reading.flags.push(Translated {
            flag: name.to_string(),
            value: Some(value.to_string()),
            default: false,
            meaning: "a variable of the environment",
            verdict: Verdict::NoCounterpart("tare reads no such variable".to_string()),
        });
    }
    if let Becomes::Tare(base) = tool.becomes {
        reading.built.commands = vec![base.iter().map(|w| w.to_string()).collect()];
        reading.read(rest)?;
        for (flag, name, value) in std::mem::take(&mut reading.gathered) {
            reading.take(flag, name, value, false);
        }
        reading.add_defaults();
    }
    Ok(reading.finish())
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.starts_with('-')
    })
}

/// The tool whose beginning fits the longest, and the words after it. A path before the program's name does not count.
fn find(words: &[String]) -> Result<(&'static Tool, &[String]), Fault> {
    let word_is = |(i, (have, want)): (usize, (&String, &&str))| {
        let name = if i == 0 { have.rsplit('/').next().unwrap_or(have) } else { have };
        name == *want || (i == 0 && *want == "python" && (name == "python3" || name == "python"))
    };
    let fits = |start: &[&str]| words.len() >= start.len() && words.iter().zip(start).enumerate().all(word_is);
    let starts = tools().flat_map(|t| t.starts.iter().map(move |s| (t, *s)));
    let best = starts.filter(|(_, s)| fits(s)).max_by_key(|(_, s)| s.len());
    let (tool, start) = best.ok_or_else(|| {
        let known: Vec<&str> = tools().map(|t| t.name).collect();
        Fault::new("the command line", format!("one of: {}", known.join(", ")), format!("`{}`", words.join(" ")))
    })?;
    Ok((tool, &words[start.len()..]))
}

/// The commands as they grow.
#[derive(Debug, Default)]
struct Built {
    commands: Vec<Vec<String>>,
    json_file: Option<String>,
    host: Option<String>,
    port: Option<String>,
}

impl Built {
    fn add(&mut self, words: &[&str]) -> Verdict {
        for command in &mut self.commands {
            command.extend(words.iter().map(|w| w.to_string()));
        }
        Verdict::Becomes(words.iter().map(|w| words::quote(w)).collect::<Vec<_>>().join(" "))
    }

    /// Whether the address to measure is there already.
    fn has_url(&self) -> bool {
        self.commands.iter().flatten().any(|w| w == "--url")
    }

    /// Adds what `to` makes of `value`.
    fn take(&mut self, to: &To, value: &str) -> Verdict {
        let number = |f: fn(u64) -> u64| value.parse::<u64>().map(f).map(|n| n.to_string());
        let not_a_number = || Verdict::NotUnderstood(format!("`{value}` is no number"));
        match to {
            To::Same(flag) => self.add(&[*flag, value]),
            To::OneMore(flag) => match number(|n| n.saturating_add(1).max(2)) {
                Ok(n) => self.add(&[*flag, &n]),
                Err(_) => not_a_number(),
            },
            To::NotZero(flag) => match number(|n| n.max(1)) {
                Ok(n) => self.add(&[*flag, &n]),
                Err(_) => not_a_number(),
            },
            To::Each(inner) => self.each(inner, value),
            To::List(flag) => match words::list(value) {
                Some(values) => self.add(&[*flag, &values.join(",")]),
                None => Verdict::NotUnderstood(format!("`{value}` is no list that tare can write out")),
            },
            To::Unless(values, inner) => match values.iter().find(|(name, _)| *name == value) {
                Some((_, why)) => Verdict::Always(why),
                None => self.take(inner, value),
            },
            To::One(choices, why) => match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(value)) {
                Some((_, [])) => Verdict::Always("tare does that without being told"),
                Some((_, words)) => self.add(words),
                None => Verdict::NoCounterpart((*why).to_string()),
            },
            To::Words(words) => self.add(words),
            To::JsonFile => {
                self.json_file = Some(value.to_string());
                Verdict::Becomes(format!("--json > {}", words::quote(value)))
            }
            To::Case => self.case(value),
            To::Host => {
                self.host = Some(value.to_string());
                Verdict::Becomes(format!("--url http://{value}:PORT"))
            }
            To::Port => {
                self.port = Some(value.to_string());
                Verdict::Becomes(format!("--url http://HOST:{value}"))
            }
            To::Always(why) => Verdict::Always(why),
            To::None(why) => Verdict::NoCounterpart((*why).to_string()),
        }
    }

    /// `kv-cache:decode:128`.
    fn case(&mut self, value: &str) -> Verdict {
        let parts: Vec<&str> = value.split(':').collect();
        let (checkpoint, phase, length, tokens) = match parts[..] {
            [checkpoint, "decode", tokens] => (checkpoint, "decode", "--depth", tokens),
            [checkpoint, "prefill", tokens] => (checkpoint, "prefill", "--prompt-tokens", tokens),
            _ => return Verdict::NotUnderstood(format!("`{value}` is not CHECKPOINT:PHASE:TOKENS")),
        };
        if tokens.parse::<u64>().is_err() {
            return Verdict::NotUnderstood(format!("`{tokens}` is no number"));
        }
        match PLANS.iter().find(|(name, _)| *name == checkpoint) {
            Some((_, plan)) => self.add(&[*plan, &["--phase", phase, length, tokens][..]].concat()),
            None => Verdict::NotUnderstood(NO_PLAN.to_string()),
        }
    }

    /// One copy of the commands for each value of a list.
    fn each(&mut self, to: &To, list: &str) -> Verdict {
        let Some(values) = words::list(list) else {
            return Verdict::NotUnderstood(format!("`{list}` is no list that tare can write out"));
        };
        let before = std::mem::take(&mut self.commands);
        let (mut after, mut verdicts) = (Vec::new(), Vec::new());
        for value in &values {
            self.commands.clone_from(&before);
            verdicts.push(self.take(to, value));
            after.append(&mut self.commands);
        }
        self.commands = after;
        match verdicts.iter().position(|v| matches!(v, Verdict::NotUnderstood(_))) {
            Some(wrong) => verdicts.remove(wrong),
            None if verdicts.len() == 1 => verdicts.remove(0),
            None => Verdict::Becomes(format!("{} commands, one for each value", values.len())),
        }
    }
}

/// A command line half read.
struct Reading {
    tool: &'static Tool,
    /// Flags with the name and the value that they were given, in order; lists that were given in parts are one.
    gathered: Vec<(&'static Flag, String, Option<String>)>,
    built: Built,
    flags: Vec<Translated>,
    unknown: Vec<String>,
    given: Vec<&'static str>,
}

impl Reading {
    fn read(&mut self, words: &[String]) -> Result<(), Fault> {
        let mut positional = self.tool.positional.iter();
        let mut left = words.iter().peekable();
        while let Some(word) = left.next() {
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if word.starts_with('-') => (name, Some(value.to_string())),
                _ => (word.as_str(), None),
            };
            let known = self.tool.flags.iter().find(|f| f.names.contains(&name));
            match known {
                None if word.starts_with('-') && word.len() > 1 => {
                    let value = left.next_if(|next| !next.starts_with('-'));
                    self.unknown.push([Some(word), value].into_iter().flatten().cloned().collect::<Vec<_>>().join(" "));
                }
                None => match positional.next() {
                    Some(flag) => self.gathered.push((flag, flag.names[0].to_string(), Some(word.clone()))),
                    None => self.unknown.push(word.clone()),
                },
                Some(flag) => {
                    let value = match (flag.takes, attached) {
                        (Takes::Nothing, attached) => attached,
                        (_, Some(value)) => Some(value),
                        (Takes::Value, None) => Some(left.next().cloned().ok_or_else(|| {
                            Fault::new("the command line", format!("a value after {name}"), "its end")
                        })?),
                    };
                    self.gather(flag, name, value);
                }
            }
        }
        Ok(())
    }

    /// `-p 128 -p 512` is `-p 128,512` where the flag takes a list.
    fn gather(&mut self, flag: &'static Flag, name: &str, value: Option<String>) {
        let is_list = matches!(flag.to, To::Each(_) | To::List(_));
        let earlier = self.gathered.iter_mut().find(|(have, ..)| is_list && std::ptr::eq(*have, flag));
        match (earlier, value) {
            (Some((_, _, Some(list))), Some(value)) => *list = format!("{list},{value}"),
            (_, value) => self.gathered.push((flag, name.to_string(), value)),
        }
    }

    fn take(&mut self, flag: &'static Flag, name: String, value: Option<String>, default: bool) {
        self.given.extend(flag.names);
        let verdict = self.built.take(&flag.to, value.as_deref().unwrap_or_default());
        self.flags.push(Translated { flag: name, value, default, meaning: flag.meaning, verdict });
    }

    fn add_defaults(&mut self) {
        for (name, value) in self.tool.defaults {
            if !self.given.contains(name)
                && let Some(flag) = self.tool.flags.iter().find(|f| f.names.contains(name))
                && !(self.built.has_url() && matches!(flag.to, To::Host | To::Port))
            {
                self.take(flag, (*name).to_string(), Some((*value).to_string()), true);
            }
        }
    }

    fn finish(mut self) -> Translation {
        let (host, port) = (self.built.host.take(), self.built.port.take());
        if host.is_some() || port.is_some() {
            let url =
                format!("http://{}:{}", host.as_deref().unwrap_or("127.0.0.1"), port.as_deref().unwrap_or("8000"));
            if !self.built.has_url() {
                self.built.add(&["--url", &url]);
            }
        }
        if self.built.json_file.is_some() {
            self.built.add(&["--json"]);
        }
        let several = self.built.commands.len() > 1;
        let line = |(n, words): (usize, &Vec<String>)| {
            let mut line = String::from("tare");
            words.iter().for_each(|w| line.extend([" ", &words::quote(w)]));
            if let Some(file) = &self.built.json_file {
                let number = if several { format!(".{}", n + 1) } else { String::new() };
                line.push_str(&format!(" > {}{number}", words::quote(file)));
            }
            line
        };
        Translation {
            tool: self.tool.name,
            commands: self.built.commands.iter().enumerate().map(line).collect(),
            why_none: match self.tool.becomes {
                Becomes::Nothing(why) => Some(why),
                Becomes::Tare(_) => None,
            },
            arguments: self.built.commands,
            flags: self.flags,
            unknown: self.unknown,
            differs: self.tool.differs.to_vec(),
        }
    }
}
