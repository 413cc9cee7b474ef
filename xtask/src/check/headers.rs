//! The header with which every kernel file opens.

use super::Violation;
use super::tree::TextFile;

/// What a reader of a kernel must not have to guess.
const FIELDS: [&str; 12] = [
    "math",
    "shapes",
    "layout",
    "precision",
    "preconditions",
    "cost",
    "tolerance",
    "wins",
    "loses",
    "fallback",
    "evidence",
    "source",
];

/// A kernel file: Rust under `kernels/` of a backend's source, except `mod.rs`, and every CUDA source.
fn is_kernel(path: &str) -> bool {
    let of_backend = path.starts_with("crates/cpu/") || path.starts_with("crates/cuda/");
    let rust = path.contains("/src/kernels/") && path.ends_with(".rs") && !path.ends_with("/mod.rs");
    of_backend && (rust || path.ends_with(".cu"))
}

/// Whether `path` is a part of a kernel whose own file is among `files`: `kernels/linear/few.rs` beside
/// `kernels/linear.rs`, which has the header for both.
fn is_part(path: &str, files: &[TextFile]) -> bool {
    let whole = path.rsplit_once('/').map(|(folder, _)| format!("{folder}.rs"));
    whole.is_some_and(|whole| is_kernel(&whole) && files.iter().any(|f| f.path == whole))
}

/// Every kernel file opens with a comment that has a line `field: ...` for each field.
pub(crate) fn kernel_headers(files: &[TextFile]) -> Vec<Violation> {
    let kernels = files.iter().filter(|file| is_kernel(&file.path) && !is_part(&file.path, files));
    kernels.filter_map(kernel_header).collect()
}

fn kernel_header(file: &TextFile) -> Option<Violation> {
    let header = file.text.lines().take_while(|line| line.starts_with("//"));
    let names: Vec<String> = header.filter_map(field_name).collect();
    let missing: Vec<&str> = FIELDS.into_iter().filter(|field| !names.iter().any(|n| n == field)).collect();
    (!missing.is_empty()).then(|| Violation {
        rule: "kernel-header",
        at: file.path.clone(),
        found: format!("the opening comment lacks: {}", missing.join(", ")),
        remedy: "open the file with one line `//! field: ...` for each of them",
    })
}

/// The word before the colon of a header line, without list marks and emphasis.
fn field_name(line: &str) -> Option<String> {
    let (name, _) = line.split_once(':')?;
    let name: String = name.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect();
    Some(name.trim().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> String {
        FIELDS.iter().map(|f| format!("//! - **{f}:** x\n")).collect()
    }

    fn at(path: &str, text: &str) -> Option<Violation> {
        kernel_headers(&[TextFile { path: path.into(), text: text.into() }]).pop()
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(at("crates/cpu/src/kernels/linear/q4.rs", &header()), None);
        let without = header().replace("tolerance", "tolerated");
        let found = at("crates/cpu/src/kernels/linear/q4.rs", &without).unwrap();
        assert!(found.found.ends_with("lacks: tolerance"), "{found}");
    }

    #[test]
    fn only_the_opening_comment_counts() {
        let late = format!("use x;\n{}", header());
        assert!(at("crates/cuda/kernels/a.cu", &late).unwrap().found.contains("math, shapes"));
    }

    #[test]
    fn a_part_is_covered_by_its_kernel_which_must_have_the_header() {
        let file = |path: &str, text: String| TextFile { path: path.into(), text };
        let part = file("crates/cpu/src/kernels/linear/few.rs", String::new());
        let whole = |text| file("crates/cpu/src/kernels/linear.rs", text);
        assert_eq!(kernel_headers(&[part.clone(), whole(header())]), []);
        assert_eq!(kernel_headers(&[part.clone(), whole(String::new())])[0].at, whole(String::new()).path);
        assert_eq!(kernel_headers(std::slice::from_ref(&part))[0].at, part.path);
    }

    #[test]
    fn other_files_need_no_header() {
        assert_eq!(at("crates/cpu/src/kernels/mod.rs", ""), None);
        assert_eq!(at("crates/cpu/src/pool.rs", ""), None);
    }
}
