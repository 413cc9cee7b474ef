//! Added tokens: strings that a tokenizer recognises before its pre-tokenizer sees the text.

use std::collections::HashMap;
use std::ops::Range;
use tare_core::Fault;

/// One added token, with the flags of a `tokenizer.json`.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    /// The string.
    pub(crate) content: String,
    /// Its id.
    pub(crate) id: u32,
    /// A control token: left out by `skip_special`.
    pub(crate) special: bool,
    /// Matches only where no word character touches it.
    pub(crate) single_word: bool,
    /// Takes the white space before it along.
    pub(crate) lstrip: bool,
    /// Takes the white space after it along.
    pub(crate) rstrip: bool,
}

/// Where an added token lies in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Bytes of the text that become the id.
    pub(crate) range: Range<usize>,
    /// Index for [`AddedTokens::get`].
    pub(crate) index: usize,
}

/// All added tokens of a tokenizer.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    /// Indices by first byte, longest content first, so that a scan costs one look-up a byte.
    by_first: Vec<Vec<usize>>,
    by_id: HashMap<u32, usize>,
}

impl AddedTokens {
    /// Indexes the tokens; empty and repeated strings are faults.
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Result<Self, Fault> {
        tokens.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then_with(|| a.content.cmp(&b.content)));
        let mut by_first = vec![Vec::new(); 256];
        let mut by_id = HashMap::new();
        for (i, t) in tokens.iter().enumerate() {
            let Some(first) = t.content.bytes().next() else {
                return Err(Fault::new("added_tokens", "a string", format!("an empty one for id {}", t.id)));
            };
            if i > 0 && tokens[i - 1].content == t.content {
                return Err(Fault::new("added_tokens", "every string once", format!("{:?} twice", t.content)));
            }
            by_first[usize::from(first)].push(i);
            by_id.insert(t.id, i);
        }
        Ok(Self { tokens, by_first, by_id })
    }

    /// The token of a hit.
    pub(crate) fn get(&self, index: usize) -> &AddedToken {
        &self.tokens[index]
    }

    /// All tokens, longest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.tokens.iter()
    }

    /// The added token with this id.
    pub(crate) fn by_id(&self, id: u32) -> Option<&AddedToken> {
        self.by_id.get(&id).map(|i| &self.tokens[*i])
    }

    /// The id of an added token.
    pub(crate) fn id_of(&self, content: &str) -> Option<u32> {
        let first = content.bytes().next()?;
        let mut same_first = self.by_first[usize::from(first)].iter().map(|i| &self.tokens[*i]);
        same_first.find(|t| t.content == content).map(|t| t.id)
    }

    /// Tokens whose string begins at byte `at`, longest first.
    pub(crate) fn at<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = usize> + 'a {
        let rest = &text.as_bytes()[at..];
        let same_first = rest.first().map(|b| self.by_first[usize::from(*b)].as_slice()).unwrap_or_default();
        same_first.iter().copied().filter(move |i| rest.starts_with(self.tokens[*i].content.as_bytes()))
    }

    /// The strings of added tokens in `text`, leftmost first, then longest, not overlapping: the bare strings, before
    /// `lstrip` and `rstrip`.
    ///
    /// Matching is on the text as given. `tokenizers` matches tokens flagged `normalized` on normalized text instead;
    /// that would let a look-alike in user text turn into a control token, and no supported family needs it.
    pub(crate) fn find(&self, text: &str) -> Vec<Hit> {
        let mut hits = Vec::new();
        let mut at = 0;
        while at < text.len() {
            match self.at(text, at).find(|i| self.may_stand(text, at, *i)) {
                Some(index) => {
                    let end = at + self.tokens[index].content.len();
                    hits.push(Hit { range: at..end, index });
                    at = end;
                }
                None => at += 1,
            }
        }
        hits
    }

    /// Widens hits over the white space that their tokens take along, never into a neighbouring hit.
    pub(crate) fn absorb_space(&self, text: &str, hits: &mut [Hit]) {
        for i in 0..hits.len() {
            let before = if i == 0 { 0 } else { hits[i - 1].range.end };
            let after = hits.get(i + 1).map_or(text.len(), |h| h.range.start);
            let (token, range) = (&self.tokens[hits[i].index], hits[i].range.clone());
            if token.lstrip {
                hits[i].range.start = before + text[before..range.start].trim_end().len();
            }
            if token.rstrip {
                hits[i].range.end = after - text[range.end..after].trim_start().len();
            }
        }
    }

    fn may_stand(&self, text: &str, at: usize, index: usize) -> bool {
        let token = &self.tokens[index];
        let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !token.single_word
            || !(word(text[..at].chars().next_back()) || word(text[at + token.content.len()..].chars().next()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(content: &str, id: u32) -> AddedToken {
        AddedToken { content: content.into(), id, special: true, single_word: false, lstrip: false, rstrip: false }
    }

    #[test]
    fn leftmost_then_longest() {
        let a = AddedTokens::new(vec![token("<a>", 1), token("<a><b>", 2), token("é", 3)]).unwrap();
        let ids = |text: &str| -> Vec<(Range<usize>, u32)> {
            a.find(text).into_iter().map(|h| (h.range, a.get(h.index).id)).collect()
        };
        assert_eq!(ids("x<a><b><a>é<"), [(1..7, 2), (7..10, 1), (10..12, 3)]);
        assert_eq!(ids("<a"), []);
        assert_eq!(a.id_of("<a>"), Some(1));
        assert_eq!(a.by_id(2).unwrap().content, "<a><b>");
    }

    #[test]
    fn stripping_flags_take_white_space_along() {
        let wide = AddedToken { lstrip: true, rstrip: true, ..token("<m>", 1) };
        let a = AddedTokens::new(vec![wide, token("<n>", 2)]).unwrap();
        let text = "a \n<m>  <n> <m>";
        let mut hits = a.find(text);
        a.absorb_space(text, &mut hits);
        assert_eq!(hits.into_iter().map(|h| h.range).collect::<Vec<_>>(), [1..8, 8..11, 11..15]);
    }

    #[test]
    fn single_words_do_not_match_inside_words() {
        let a = AddedTokens::new(vec![AddedToken { single_word: true, ..token("ab", 1) }]).unwrap();
        assert_eq!(a.find("ab cab abc ab.").len(), 2);
    }

    #[test]
    fn repeats_and_empties_are_refused() {
        assert!(AddedTokens::new(vec![token("a", 1), token("a", 2)]).is_err());
        assert!(AddedTokens::new(vec![token("", 1)]).is_err());
    }
}
