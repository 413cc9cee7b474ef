//! `cargo xtask check`: the invariants of docs/ARCHITECTURE.md, held by looking at the workspace.
//!
//! Each rule is a function from what it looks at (packages, or one file's path and text) to [`Violation`]s, so that
//! each is tested by breaking it on purpose.

mod headers;
mod layers;
mod safety;
mod scan;
mod sources;
mod texts;
mod tree;
mod unused;

use anyhow::{Result, bail};
use std::fmt;
use std::path::Path;

/// One place where an invariant does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Package, file or file:line.
    pub(crate) at: String,
    /// What is wrong there.
    pub(crate) found: String,
    /// What to do.
    pub(crate) remedy: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.rule, self.at, self.found, self.remedy)
    }
}

/// Checks the workspace at `root` and prints what it found.
///
/// # Errors
/// When an invariant is broken, or the workspace cannot be read.
pub(crate) fn run(root: &Path) -> Result<()> {
    let packages = tree::packages(root)?;
    let files = tree::text_files(root)?;
    let mut found = Vec::new();
    found.extend(layers::dependency_edges(&packages));
    found.extend(layers::http_crates(&packages));
    found.extend(layers::cargo_features(&packages));
    found.extend(unused::workspace_dependencies(&std::fs::read_to_string(root.join("Cargo.toml"))?, &packages)?);
    found.extend(sources::missing_forbid(&files));
    found.extend(headers::kernel_headers(&files));
    let mut long = Vec::new();
    for file in &files {
        found.extend(file_violations(file));
        long.extend(texts::long_file(file));
    }
    for note in &long {
        println!("note: {note}");
    }
    for violation in &found {
        println!("{violation}");
    }
    println!("check: {} packages, {} files, {} violations", packages.len(), files.len(), found.len());
    if found.is_empty() { Ok(()) } else { bail!("{} invariants do not hold", found.len()) }
}

/// The rules that look at one file alone.
fn file_violations(file: &tree::TextFile) -> Vec<Violation> {
    let mut found = texts::forbidden_words(file);
    found.extend(texts::too_long(file));
    found.extend(texts::vague_name(file));
    if file.is_rust() {
        let lines = scan::lines(&file.text);
        found.extend(sources::environment_reads(file, &lines));
        found.extend(sources::printing(file, &lines));
        found.extend(safety::unexplained_unsafe(file, &lines));
    }
    found
}
