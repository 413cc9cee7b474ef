//! Every `unsafe` says why it is sound.

use super::Violation;
use super::scan::{Line, end_of_item};
use super::tree::TextFile;

/// One reason for a whole item: a comment with these words above it covers the unsafe blocks inside.
const FOR_ALL: &str = "SAFETY of every block below";

/// Every `unsafe` block, impl and function has a `SAFETY:` comment or a `# Safety` section above it.
///
/// Functions of a trait's implementation are explained by the trait; a row of one-line intrinsics may share one reason.
pub(crate) fn unexplained_unsafe(file: &TextFile, lines: &[Line]) -> Vec<Violation> {
    let trait_impls = covered(lines, opens_trait_impl);
    let shared_reason = covered(lines, |line| line.comment.contains(FOR_ALL));
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let needs = |&offset: &usize| match kind(&line.code[offset + "unsafe".len()..]) {
            Kind::Other => false,
            Kind::Function => !trait_impls[at],
            Kind::BlockOrImpl => !shared_reason[at],
        };
        if line.word_offsets("unsafe").iter().any(needs) && !explained(lines, at) {
            found.push(Violation {
                rule: "safety",
                at: format!("{}:{}", file.path, at + 1),
                found: "unsafe without a reason".to_string(),
                remedy: "say above it why it is sound: // SAFETY: ..., or a # Safety section for a function",
            });
        }
    }
    found
}

/// What the word `unsafe` opens.
enum Kind {
    BlockOrImpl,
    Function,
    /// The attribute `unsafe(...)` or the type `unsafe fn(...)`.
    Other,
}

/// By what follows the word.
fn kind(after: &str) -> Kind {
    let after = after.trim_start();
    if after.starts_with('(') {
        return Kind::Other;
    }
    let function = after.split_once("fn").filter(|(before, _)| {
        let before = before.trim();
        before.is_empty() || before.starts_with("extern")
    });
    match function {
        Some((_, rest)) if rest.trim_start().starts_with('(') => Kind::Other,
        Some(_) => Kind::Function,
        None => Kind::BlockOrImpl,
    }
}

/// `impl Trait for Type`, as far as one line shows it.
fn opens_trait_impl(line: &Line) -> bool {
    let code = line.code.trim_start();
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    (code.starts_with("impl ") || code.starts_with("impl<")) && code.contains(" for ")
}

/// For each line, whether it lies in an item that starts at, or right after, a line for which `opens` holds.
fn covered(lines: &[Line], opens: impl Fn(&Line) -> bool) -> Vec<bool> {
    let mut inside = vec![false; lines.len()];
    for at in (0..lines.len()).filter(|&at| opens(&lines[at])) {
        inside[at..=end_of_item(lines, at)].fill(true);
    }
    inside
}

/// Looks at the line itself and upwards through comments, attributes and the beginning of the same statement.
fn explained(lines: &[Line], at: usize) -> bool {
    let says_why = |line: &Line| line.comment.contains("SAFETY:") || line.comment.contains("# Safety");
    if says_why(&lines[at]) {
        return true;
    }
    for line in lines[..at].iter().rev() {
        let code = line.code.trim();
        let comment_only = code.is_empty() && !line.comment.is_empty();
        let attribute = code.starts_with("#[") || code.ends_with(']');
        let same_statement = !code.is_empty() && !code.ends_with([';', '{', '}']);
        if comment_only && says_why(line) {
            return true;
        }
        if !(comment_only || attribute || same_statement) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::scan::lines;

    fn planted(text: &str) -> Vec<String> {
        let file = TextFile { path: "a.rs".into(), text: text.into() };
        unexplained_unsafe(&file, &lines(text)).into_iter().map(|v| v.at).collect()
    }

    #[test]
    fn unsafe_without_a_reason_is_named() {
        for (text, at) in [
            ("fn a() {\n    unsafe { f() }\n}", "a.rs:2"),
            ("unsafe impl Send for A {}", "a.rs:1"),
            ("/// Docs.\npub unsafe fn a() {}", "a.rs:2"),
            ("impl A {\n    unsafe fn a() {}\n}", "a.rs:2"),
            ("let x = 1;\nlet y =\n    unsafe { f() };", "a.rs:3"),
            ("// SAFETY: of another statement.\nunsafe { f() };\nunsafe { g() };", "a.rs:3"),
            ("impl T for A {\n    fn a() { unsafe { f() } }\n}", "a.rs:2"),
        ] {
            assert_eq!(planted(text), [at], "{text}");
        }
    }

    #[test]
    fn unsafe_with_a_reason_passes() {
        for text in [
            "// SAFETY: fine.\nlet x = unsafe { f() };",
            "// SAFETY: fine,\n// in two lines.\nlet x = g(\n    1,\n    unsafe { f() },\n);",
            "/// # Safety\n/// Needs AVX2.\n#[target_feature(enable = \"avx2\")]\nunsafe fn a() {}",
            "unsafe { f() } // SAFETY: fine.",
            "type F = unsafe fn(u32);\nrun: unsafe extern \"C\" fn(u32),",
            "#[unsafe(no_mangle)]\nfn a() {}",
            "impl T for A {\n    unsafe fn a() {}\n}",
        ] {
            assert_eq!(planted(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn one_reason_may_cover_an_item_and_no_more() {
        let text = "// SAFETY of every block below: fine.\n#[inline]\nimpl T for A {\n    fn a() { unsafe { f() } }\n}\n\
                    fn b() { unsafe { f() } }";
        assert_eq!(planted(text), ["a.rs:6"]);
    }
}
