//! Rust source split into code and comments, line by line, without parsing it.

/// One line of source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code; the insides of strings, characters and comments are blanks.
    pub(crate) code: String,
    /// The text of comments, their slashes and stars included.
    pub(crate) comment: String,
    /// Whether the line belongs to an item that only tests compile.
    pub(crate) in_test: bool,
}

impl Line {
    /// The code without any white space.
    pub(crate) fn squeezed(&self) -> String {
        self.code.split_whitespace().collect()
    }

    /// Byte offsets in `code` at which `word` stands as a whole identifier (a trailing `!` may be part of it).
    pub(crate) fn word_offsets(&self, word: &str) -> Vec<usize> {
        let ident = |c: char| c.is_alphanumeric() || c == '_';
        let whole = |at: usize| {
            let before = self.code[..at].chars().next_back();
            let after = self.code[at + word.len()..].chars().next();
            !before.is_some_and(ident) && (word.ends_with('!') || !after.is_some_and(ident))
        };
        self.code.match_indices(word).map(|(at, _)| at).filter(|&at| whole(at)).collect()
    }
}

/// What the scanner is inside of.
enum State {
    Code,
    LineComment,
    /// Depth of nesting.
    BlockComment(u32),
    Text,
    /// Number of `#` that end it.
    RawText(usize),
}

/// The lines of `source`.
pub(crate) fn lines(source: &str) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let mut out = vec![Line::default()];
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        if chars[i] == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            out.push(Line::default());
            i += 1;
            continue;
        }
        let line = out.last_mut().expect("there is always a last line");
        let (next, taken) = step(&state, &chars[i..], line);
        if let Some(next) = next {
            state = next;
        }
        i += taken;
    }
    mark_tests(&mut out);
    out
}

/// Consumes a few characters from the front of `rest`: the state after them, if it changes, and how many they were.
fn step(state: &State, rest: &[char], line: &mut Line) -> (Option<State>, usize) {
    let pair = (rest[0], rest.get(1).copied().unwrap_or('\0'));
    match state {
        State::Code => code_step(rest, pair, line),
        State::LineComment => {
            line.comment.push(rest[0]);
            (None, 1)
        }
        State::BlockComment(depth) => {
            let next = match pair {
                ('*', '/') if *depth == 1 => Some(State::Code),
                ('*', '/') => Some(State::BlockComment(depth - 1)),
                ('/', '*') => Some(State::BlockComment(depth + 1)),
                _ => None,
            };
            let taken = if next.is_some() { 2 } else { 1 };
            line.comment.extend(&rest[..taken]);
            (next, taken)
        }
        State::Text => match pair {
            ('\\', '\n') => (None, 1),
            ('\\', _) => (None, 2),
            ('"', _) => {
                line.code.push('"');
                (Some(State::Code), 1)
            }
            _ => (None, 1),
        },
        State::RawText(hashes) => {
            let ends = rest[0] == '"' && rest.len() > *hashes && rest[1..=*hashes].iter().all(|&c| c == '#');
            if ends {
                line.code.push('"');
                (Some(State::Code), 1 + hashes)
            } else {
                (None, 1)
            }
        }
    }
}

fn code_step(rest: &[char], pair: (char, char), line: &mut Line) -> (Option<State>, usize) {
    let after_ident = line.code.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
    match pair {
        ('/', '/') => {
            line.comment.push_str("//");
            (Some(State::LineComment), 2)
        }
        ('/', '*') => {
            line.comment.push_str("/*");
            (Some(State::BlockComment(1)), 2)
        }
        ('"', _) => {
            line.code.push('"');
            (Some(State::Text), 1)
        }
        ('r', '"' | '#') if !after_ident || line.code.ends_with('b') || line.code.ends_with('c') => {
            let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
            if rest.get(1 + hashes) == Some(&'"') {
                line.code.push('"');
                (Some(State::RawText(hashes)), 2 + hashes)
            } else {
                line.code.push('r');
                (None, 1)
            }
        }
        ('\'', second) => {
            // 'x' and '\...' are characters; anything else is a lifetime.
            let taken = if second == '\\' {
                rest.iter().skip(3).position(|&c| c == '\'').map_or(1, |at| at + 4)
            } else if rest.get(2) == Some(&'\'') {
                3
            } else {
                1
            };
            line.code.push('\'');
            (None, taken)
        }
        (c, _) => {
            line.code.push(c);
            (None, 1)
        }
    }
}

/// Marks the items that follow `#[cfg(test)]`, `#[cfg(all(test, ...))]` and `#[test]`.
fn mark_tests(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        let squeezed = lines[at].squeezed();
        let attribute = ["#[cfg(test)]", "#[cfg(all(test,", "#[test]"].iter().any(|a| squeezed.contains(a));
        if attribute {
            let last = end_of_item(lines, at);
            lines[at..=last].iter_mut().for_each(|line| line.in_test = true);
            at = last;
        }
        at += 1;
    }
}

/// The line on which the item ends that starts, with its comments and attributes, on line `first`: at its closing brace,
/// or at a semicolon before any brace.
pub(crate) fn end_of_item(lines: &[Line], first: usize) -> usize {
    let mut braces = 0usize;
    let mut brackets = 0usize;
    for (number, line) in lines.iter().enumerate().skip(first) {
        for c in line.code.chars() {
            match c {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets = brackets.saturating_sub(1),
                '{' => braces += 1,
                '}' if braces <= 1 => return number,
                '}' => braces -= 1,
                ';' if braces == 0 && brackets == 0 => return number,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_taken_out_of_the_code() {
        let source = "let a = \"x // \\\" y\"; // note\nlet b = r#\"un\"safe\"#; /* two\nlines */ let c = '\"'; let d: &'a str = e;\n";
        let found = lines(source);
        assert_eq!(found[0].code, "let a = \"\"; ");
        assert_eq!(found[0].comment, "// note");
        assert_eq!(found[1].code, "let b = \"\"; ");
        assert_eq!(found[2].comment, "lines */");
        assert_eq!(found[2].code, " let c = '; let d: &'a str = e;");
    }

    #[test]
    fn escapes_in_characters_do_not_open_strings() {
        let found = lines("f('\\'', '\\n', '\\u{1F600}', b'\\\\'); g(\"unsafe\");");
        assert_eq!(found[0].code, "f(', ', ', b'); g(\"\");");
    }

    #[test]
    fn items_for_tests_alone_are_marked_to_their_end() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { if x { } }\n}\nfn c() {}\n#[cfg(test)]\nuse d;\nfn e() {}\n";
        let marked: Vec<bool> = lines(source).iter().map(|l| l.in_test).collect();
        assert_eq!(marked, [false, true, true, true, true, false, true, true, false, false]);
    }

    #[test]
    fn words_are_whole() {
        let line = &lines("eprintln!(); println!(); unsafe_code; unsafe {}")[0];
        assert_eq!(line.word_offsets("println!").len(), 1);
        assert_eq!(line.word_offsets("unsafe").len(), 1);
    }
}
