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

/// The most values that a list may have.
const LONGEST_LIST: usize = 1000;

/// The values of `1,4-6,8-16+4,32-128*2`: words, and ranges with their step. None when a range does not end.
pub(crate) fn list(text: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        match range(part) {
            Some(values) => all.extend(values?.iter().map(u64::to_string)),
            None => all.push(part.to_string()),
        }
        if all.len() > LONGEST_LIST {
            return None;
        }
    }
    Some(all)
}

/// `FIRST-LAST`, `FIRST-LAST+STEP` or `FIRST-LAST*FACTOR`; outer none when it is no range, inner when it has no end.
fn range(part: &str) -> Option<Option<Vec<u64>>> {
    let (first, rest) = part.split_once('-')?;
    let number = |text: &str| text.parse::<u64>().ok();
    let first = number(first)?;
    let (last, by) = match rest.find(['+', '*']) {
        Some(at) => (number(&rest[..at])?, Some((rest.as_bytes()[at], number(&rest[at + 1..])?))),
        None => (number(rest)?, None),
    };
    let next = |n: &u64| match by {
        Some((b'*', factor)) => n.checked_mul(factor).filter(|m| m > n),
        Some((_, step)) => n.checked_add(step).filter(|m| m > n),
        None => n.checked_add(1),
    };
    let values: Vec<u64> =
        std::iter::successors(Some(first), next).take_while(|n| *n <= last).take(LONGEST_LIST + 1).collect();
    let ends = values.len() <= LONGEST_LIST && values.last().is_some_and(|n| next(n).is_some_and(|m| m > last));
    Some(ends.then_some(values))
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
