//! A command line as words, the way a POSIX shell splits it, and back.

use tare_core::Fault;

/// The words of a command line: quotes, backslashes, a backslash before a line's end.
///
/// # Errors
/// When a quote is not closed.
pub(crate) fn split(line: &str) -> Result<Vec<String>, Fault> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => literal(&mut chars, word.get_or_insert_default())?,
            '"' => quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(other) => word.get_or_insert_default().push(other),
            },
            c if c.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn literal(chars: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), Fault> {
    for c in chars {
        match c {
            '\'' => return Ok(()),
            other => word.push(other),
        }
    }
    Err(Fault::new("the command line", "a closing '", "its end"))
}

fn quoted(chars: &mut impl Iterator<Item = char>, word: &mut String) -> Result<(), Fault> {
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(()),
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                Some(other) => word.extend(['\\', other]),
                None => break,
            },
            other => word.push(other),
        }
    }
    Err(Fault::new("the command line", "a closing \"", "its end"))
}

/// A word as it may stand in a command line.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (line, expected) in [
            ("a  b\tc\n", &["a", "b", "c"][..]),
            ("a \\\n  b", &["a", "b"]),
            ("'a b' \"c \\\"d\\\" \\n\" e\\ f g'h'i", &["a b", "c \"d\" \\n", "e f", "ghi"]),
            ("a '' \"\"", &["a", "", ""]),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
        for open in ["a 'b", "a \"b", "'", "a 'b' 'c"] {
            assert!(split(open).is_err(), "{open}");
        }
    }

    #[test]
    fn what_is_quoted_is_split_to_itself() {
        for word in ["plain", "two words", "it's", "", "a\"b", "$HOME", "?x&y"] {
            assert_eq!(split(&quote(word)).unwrap(), [word]);
        }
    }
}
