//! What the rules look at: packages from `cargo metadata`, and the text files that git tracks.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One package of the workspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    /// Names of cargo features, implicit ones of optional dependencies included.
    pub(crate) features: Vec<String>,
}

/// One line of a package's dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The name under which the package knows it: the key in Cargo.toml.
    pub(crate) name: String,
    /// Whether only tests, examples and benchmarks see it.
    pub(crate) dev: bool,
}

/// One text file: its path from the root with forward slashes, and its text.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl TextFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The crate under `crates/` whose `src/` holds this file, unless it holds tests only.
    pub(crate) fn library(&self) -> Option<&str> {
        let (name, inside) = self.path.strip_prefix("crates/")?.split_once('/')?;
        let source = inside.strip_prefix("src/")?;
        let tests = source.split('/').any(|part| part == "tests" || part == "tests.rs");
        (!tests).then_some(name)
    }
}

/// The packages of the workspace at `root`.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let args = ["metadata", "--no-deps", "--format-version", "1"];
    let output = crate::cargo().args(args).current_dir(root).output().context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    metadata["packages"].as_array().context("cargo metadata lists no packages")?.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let text = |v: &Value| v.as_str().map(str::to_string).context("cargo metadata has no name where one belongs");
    let dependency = |d: &Value| -> Result<Dependency> {
        let name = if d["rename"].is_string() { &d["rename"] } else { &d["name"] };
        Ok(Dependency { name: text(name)?, dev: d["kind"] == "dev" })
    };
    let dependencies = value["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let features = value["features"].as_object().map(|f| f.keys().cloned().collect()).unwrap_or_default();
    Ok(Package {
        name: text(&value["name"])?,
        dependencies: dependencies.iter().map(dependency).collect::<Result<_>>()?,
        features,
    })
}

/// Text files of the tree at `root`: those that git tracks or would track, and all of them where there is no git.
/// Files that are no UTF-8 are left out.
pub(crate) fn text_files(root: &Path) -> Result<Vec<TextFile>> {
    let mut paths = match git_files(root) {
        Some(paths) => paths,
        None => {
            let mut paths = Vec::new();
            walk(root, root, &mut paths)?;
            paths
        }
    };
    paths.sort();
    let read = |path: String| {
        let text = String::from_utf8(std::fs::read(root.join(&path)).ok()?).ok()?;
        Some(TextFile { path, text })
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(args).current_dir(root).output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.split('\0').filter(|p| !p.is_empty()).map(str::to_string).collect())
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let relative = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        if path.is_dir() {
            if !["target", ".git"].contains(&relative.as_str()) {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(relative);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_no_library_source() {
        let library = |path: &str| TextFile { path: path.into(), text: String::new() }.library().map(str::to_string);
        assert_eq!(library("crates/ops/src/a/b.rs").as_deref(), Some("ops"));
        for path in
            ["crates/ops/tests/a.rs", "crates/ops/src/a/tests.rs", "crates/ops/src/tests/a.rs", "xtask/src/main.rs"]
        {
            assert_eq!(library(path), None, "{path}");
        }
    }
}
