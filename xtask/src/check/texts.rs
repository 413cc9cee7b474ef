//! Rules on any text file: words that do not belong, sizes, names.

use super::Violation;
use super::tree::TextFile;

/// Unfinished work, silenced warnings, and paths of one machine. Written in pieces, so that this file may stand here.
const FORBIDDEN: [&str; 10] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("allow(", "dead_code)"),
    concat!("allow(", "unused)"),
    concat!("expect(", "dead_code)"),
    concat!("/work", "/main"),
    concat!("/work", "/shared"),
    concat!("/tmp/", "bash_jobs"),
];
const VAGUE: [&str; 8] = ["util", "utils", "helper", "helpers", "common", "manager", "misc", "stuff"];

/// Above this a file is named to the reader.
const LONG_LINES: usize = 400;
/// Above this it is an error.
const MAX_LINES: usize = 800;

/// None of the forbidden words, anywhere.
pub(crate) fn forbidden_words(file: &TextFile) -> Vec<Violation> {
    let numbered = file.text.lines().enumerate();
    let hits = numbered.flat_map(|(at, line)| FORBIDDEN.iter().filter(|w| line.contains(**w)).map(move |w| (at, w)));
    hits.map(|(at, word)| Violation {
        rule: "words",
        at: format!("{}:{}", file.path, at + 1),
        found: format!("\"{word}\""),
        remedy: "finish it, remove it, or open an issue",
    })
    .collect()
}

/// Source that people read; golden values are data.
fn is_source(path: &str) -> bool {
    let source = [".rs", ".cu", ".cuh", ".py", ".sh"].iter().any(|end| path.ends_with(end));
    source && !path.starts_with("goldens/")
}

/// A note on a source file that has grown long.
pub(crate) fn long_file(file: &TextFile) -> Option<String> {
    let lines = file.text.lines().count();
    let long = is_source(&file.path) && (LONG_LINES + 1..=MAX_LINES).contains(&lines);
    long.then(|| format!("{}: {lines} lines (aim for {LONG_LINES}, at most {MAX_LINES})", file.path))
}

/// No source file over the limit.
pub(crate) fn too_long(file: &TextFile) -> Option<Violation> {
    let lines = file.text.lines().count();
    (is_source(&file.path) && lines > MAX_LINES).then(|| Violation {
        rule: "size",
        at: file.path.clone(),
        found: format!("{lines} lines, more than {MAX_LINES}"),
        remedy: "split it by subject",
    })
}

/// A file is named after its subject.
pub(crate) fn vague_name(file: &TextFile) -> Option<Violation> {
    let parts = file.path.trim_end_matches(".rs").split('/');
    let vague = parts.into_iter().find(|part| VAGUE.contains(part));
    vague.filter(|_| file.is_rust()).map(|part| Violation {
        rule: "names",
        at: file.path.clone(),
        found: format!("\"{part}\" says nothing about what is inside"),
        remedy: "name the file after its subject",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn every_forbidden_word_is_named_with_its_line() {
        for word in FORBIDDEN {
            let found = forbidden_words(&file("docs/a.md", &format!("one\ntwo {word} x)\n")));
            assert!(found.iter().any(|v| v.at == "docs/a.md:2" && v.found.contains(word)), "{word}");
        }
        assert_eq!(forbidden_words(&file("a.md", "today, a fixed method; work to do")), []);
    }

    #[test]
    fn long_files_are_noted_and_longer_ones_refused() {
        let of = |lines: usize| file("crates/ops/src/a.rs", &"x\n".repeat(lines));
        assert_eq!((long_file(&of(400)), too_long(&of(400))), (None, None));
        assert!(long_file(&of(401)).unwrap().contains("401 lines"));
        assert_eq!(too_long(&of(800)), None);
        assert!(too_long(&of(801)).unwrap().found.contains("801 lines"));
        assert_eq!(too_long(&file("goldens/scripts/a.py", &"x\n".repeat(900))), None);
    }

    #[test]
    fn vague_names_are_named() {
        for path in ["crates/ops/src/utils.rs", "crates/ops/src/common/a.rs"] {
            assert!(vague_name(&file(path, "")).is_some(), "{path}");
        }
        assert_eq!(vague_name(&file("crates/ops/src/plan.rs", "")), None);
    }
}
