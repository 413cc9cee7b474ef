//! Rules on Rust source: no environment and no printing below the cli, no unsafe code but in the metal crates.

use super::Violation;
use super::scan::Line;
use super::tree::TextFile;

/// Crates that talk to the person at the terminal, or to the tests.
const MAY_TALK: [&str; 2] = ["cli", "testkit"];
/// Crates with unsafe code: the metal, and the memory map of formats.
const MAY_BE_UNSAFE: [&str; 4] = ["cpu", "cuda", "probe", "formats"];

/// Lines of library code below the cli that match, as violations.
fn below_cli(file: &TextFile, lines: &[Line], matches: impl Fn(&Line) -> Option<Violation>) -> Vec<Violation> {
    if file.library().is_none_or(|name| MAY_TALK.contains(&name)) {
        return Vec::new();
    }
    let numbered = lines.iter().enumerate().filter(|(_, line)| !line.in_test);
    let with_place = |(at, line)| {
        let violation = matches(line)?;
        Some(Violation { at: format!("{}:{}", file.path, at + 1), ..violation })
    };
    numbered.filter_map(with_place).collect()
}

/// Libraries get their configuration from their callers.
pub(crate) fn environment_reads(file: &TextFile, lines: &[Line]) -> Vec<Violation> {
    let reads = ["env::var", "env::set_var", "env::remove_var", "option_env!"];
    below_cli(file, lines, |line| {
        let code = line.squeezed();
        let listed = code.split_once("env::{").is_some_and(|(_, names)| names.contains("var"));
        let what = reads.into_iter().find(|r| code.contains(r)).or(listed.then_some("env::{..var..}"))?;
        Some(Violation {
            rule: "environment",
            at: String::new(),
            found: format!("{what} below the cli"),
            remedy: "take the value as an argument; the cli reads the environment",
        })
    })
}

/// Libraries print nothing.
pub(crate) fn printing(file: &TextFile, lines: &[Line]) -> Vec<Violation> {
    let prints = ["println!", "eprintln!", "print!", "eprint!", "dbg!"];
    below_cli(file, lines, |line| {
        let printed = prints.into_iter().find(|p| !line.word_offsets(p).is_empty());
        let handle = ["stdout()", "stderr()"].into_iter().find(|h| line.squeezed().contains(h));
        Some(Violation {
            rule: "printing",
            at: String::new(),
            found: format!("{} below the cli", printed.or(handle)?),
            remedy: "return the value, or use tracing; the cli prints",
        })
    })
}

/// Every crate but the metal ones forbids unsafe code at its top.
pub(crate) fn missing_forbid(files: &[TextFile]) -> Vec<Violation> {
    let top_of = |file: &TextFile| -> Option<String> {
        let folder = file.path.strip_suffix("/src/lib.rs").or_else(|| file.path.strip_suffix("/src/main.rs"))?;
        let name = folder.strip_prefix("crates/").unwrap_or(folder);
        (name == "xtask" || folder.starts_with("crates/")).then(|| name.to_string())
    };
    let tops = files.iter().filter(|f| top_of(f).is_some_and(|name| !MAY_BE_UNSAFE.contains(&name.as_str())));
    tops.filter(|f| !f.text.contains("#![forbid(unsafe_code)]"))
        .map(|file| Violation {
            rule: "forbid-unsafe",
            at: file.path.clone(),
            found: "no #![forbid(unsafe_code)]".to_string(),
            remedy: "put it after the crate's documentation",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::scan::lines;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    fn planted(text: &str, rule: fn(&TextFile, &[Line]) -> Vec<Violation>) -> Vec<Violation> {
        rule(&file("crates/engine/src/a.rs", text), &lines(text))
    }

    #[test]
    fn reading_the_environment_is_named_with_its_line() {
        for text in [
            "std::env::var(\"X\")",
            "env::vars()",
            "env :: var_os(x)",
            "option_env!(\"X\")",
            "use std::env::{self, var};",
        ] {
            let found = planted(&format!("\n{text}\n"), environment_reads);
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].at, "crates/engine/src/a.rs:2");
        }
        assert_eq!(
            planted("env!(\"CARGO_PKG_VERSION\"); std::env::consts::OS; \"env::var\" // env::var", environment_reads),
            []
        );
    }

    #[test]
    fn printing_is_named() {
        for text in ["println!(\"\")", "eprintln!()", "print!()", "eprint!()", "dbg!(x)", "io::stdout().lock()"] {
            assert_eq!(planted(text, printing).len(), 1, "{text}");
        }
        assert_eq!(planted("writeln!(out); // println!\nf(\"println!\")", printing), []);
    }

    #[test]
    fn tests_the_cli_and_chores_may_talk() {
        let text = "#[cfg(test)]\nmod tests {\n    fn a() { println!(); std::env::var(x); }\n}\n";
        assert_eq!(planted(text, printing), []);
        assert_eq!(planted(text, environment_reads), []);
        for path in ["crates/cli/src/main.rs", "xtask/src/main.rs", "crates/ops/tests/a.rs", "crates/ops/examples/b.rs"]
        {
            assert_eq!(printing(&file(path, "println!()"), &lines("println!()")), [], "{path}");
        }
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_is_named() {
        let files = [
            file("crates/model/src/lib.rs", "//! x\n"),
            file("crates/text/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            file("crates/cpu/src/lib.rs", ""),
            file("crates/cli/src/main.rs", ""),
        ];
        let at: Vec<String> = missing_forbid(&files).into_iter().map(|v| v.at).collect();
        assert_eq!(at, ["crates/model/src/lib.rs", "crates/cli/src/main.rs"]);
    }
}
