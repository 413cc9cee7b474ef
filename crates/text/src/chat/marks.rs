//! Marks: a character that follows the strings of a request through a template, so that afterwards the template's own
//! special tokens can be told from look-alikes.

use super::ChatRequest;
use crate::added::{AddedTokens, Hit};
use crate::error::TextError;
use crate::json::Json;
use tare_core::Fault;

/// Which added tokens stay text in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// Every one.
    All,
    /// Control tokens; `<think>` and the like are parsed.
    Control,
}

/// The marks of one rendering.
pub(super) struct Marks<'a> {
    added: &'a AddedTokens,
    /// For all but the model's own messages, where only control tokens are guarded anyway.
    guard: Guard,
    /// Stands in each look-alike and breaks it.
    mark: char,
}

impl<'a> Marks<'a> {
    /// Marks with a character that does not occur in `plain`, the rendered text: a noncharacter, else a private-use
    /// one.
    pub(super) fn new(added: &'a AddedTokens, guard: Guard, plain: &str) -> Result<Self, TextError> {
        let mut free = ('\u{fdd0}'..='\u{fdef}').chain('\u{e000}'..='\u{f8ff}').filter(|c| !plain.contains(*c));
        let mark = free.next().ok_or_else(|| {
            let fault = Fault::new("messages", "text that leaves a private-use character unused", "all of them");
            TextError::Request(fault.remedy("take private-use characters out of the messages"))
        })?;
        Ok(Self { added, guard, mark })
    }

    /// The request with marks; `None` when it needs none.
    pub(super) fn mark(&self, r: &ChatRequest) -> Option<ChatRequest> {
        let mut marked = r.clone();
        let mut any = false;
        for message in &mut marked.messages {
            let own = message.get("role").and_then(Json::as_str) == Some("assistant");
            any |= self.mark_value(message, if own { Guard::Control } else { self.guard });
        }
        for v in marked.tools.iter_mut().chain(marked.extra.iter_mut().map(|(_, v)| v)) {
            any |= self.mark_value(v, self.guard);
        }
        any.then_some(marked)
    }

    fn mark_value(&self, v: &mut Json, guard: Guard) -> bool {
        match v {
            Json::String(s) => self.mark_text(s, guard, true),
            Json::Array(items) => items.iter_mut().fold(false, |any, v| self.mark_value(v, guard) | any),
            Json::Object(pairs) => pairs.iter_mut().fold(false, |any, (key, v)| {
                // Templates look keys up by name, and no name that they know spells a token; ends stay unmarked.
                self.mark_text(key, guard, false) | self.mark_value(v, guard) | any
            }),
            Json::Null | Json::Bool(_) | Json::Number(_) => false,
        }
    }

    /// Marks look-alikes behind their first character and, with `ends`, parts of tokens at both ends of the text.
    fn mark_text(&self, text: &mut String, guard: Guard, ends: bool) -> bool {
        let looks_alike = |at: &usize| self.added.at(text, *at).any(|i| self.guarded(i, guard));
        let starts: Vec<usize> = (0..text.len()).filter(looks_alike).collect();
        let mut places: Vec<usize> = starts.iter().map(|at| at + first_len(&text[*at..])).collect();
        if ends {
            places.extend(self.ends(text, guard));
        }
        places.sort_unstable();
        for at in places.iter().rev() {
            text.insert(*at, self.mark);
        }
        !places.is_empty()
    }

    /// Where the text, without the white space that a template may trim, begins with the end of a token or ends with
    /// the beginning of one.
    fn ends(&self, text: &str, guard: Guard) -> impl Iterator<Item = usize> + use<> {
        let core = text.trim();
        let start = text.len() - text.trim_start().len();
        let (mut completes, mut opens) = (false, false);
        for (i, token) in self.added.iter().enumerate() {
            if core.is_empty() || !self.guarded(i, guard) {
                continue;
            }
            let mut cuts = token.content.char_indices().map(|(at, _)| at).skip(1);
            completes |= cuts.clone().any(|at| core.starts_with(&token.content[at..]));
            opens |= cuts.any(|at| core.ends_with(&token.content[..at]));
        }
        [completes.then_some(start), opens.then_some(start + core.len())].into_iter().flatten()
    }

    /// Runs of white space that are added tokens control nothing.
    fn guarded(&self, index: usize, guard: Guard) -> bool {
        let token = self.added.get(index);
        (guard == Guard::All || token.special) && !token.content.trim().is_empty()
    }

    /// The text without marks.
    pub(super) fn removed(&self, marked: &str) -> String {
        marked.replace(self.mark, "")
    }

    /// The added tokens of `marked` that no mark touches, as places in the text without marks.
    pub(super) fn own_tokens(&self, marked: &str) -> Vec<Hit> {
        let (mut removed, mut seen) = (0, 0);
        let mut own = Vec::new();
        for hit in self.added.find(marked) {
            removed += marked[seen..hit.range.start].matches(self.mark).count() * self.mark.len_utf8();
            seen = hit.range.start;
            // A token of one character has no inside: its mark stands behind it.
            let single = first_len(&marked[hit.range.start..]) == hit.range.len();
            if !(single && marked[hit.range.end..].starts_with(self.mark)) {
                own.push(Hit { range: hit.range.start - removed..hit.range.end - removed, index: hit.index });
            }
        }
        own
    }
}

/// Bytes of the first character.
fn first_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}
