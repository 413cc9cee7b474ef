//! The part of an engine's sources that a build needs: small enough to be carried to a host that reaches no registry, and
//! known by its digest wherever it comes from.

use std::fs;
use std::path::{Path, PathBuf};
use tare_core::{Fault, digest::Hasher};

use super::registry::Package;

/// Files of `package` below `root`, by their names relative to it, in order.
///
/// # Errors
/// When one of the things that a build needs is not there.
pub fn files(root: &Path, package: &Package) -> Result<Vec<PathBuf>, Fault> {
    let mut found = Vec::new();
    for needed in package.needed {
        match needed.strip_suffix("/*") {
            Some(folder) => list(root, Path::new(folder), false, &mut found)?,
            None if root.join(needed).is_dir() => list(root, Path::new(needed), true, &mut found)?,
            None if root.join(needed).is_file() => found.push(needed.into()),
            None => return Err(Fault::new(root.display().to_string(), format!("{needed} in it"), "none")),
        }
    }
    found.sort();
    Ok(found)
}

/// Adds the files of `folder` below `root`, and with `deep` those of its folders.
fn list(root: &Path, folder: &Path, deep: bool, found: &mut Vec<PathBuf>) -> Result<(), Fault> {
    let at = root.join(folder);
    let unreadable = |e: std::io::Error| Fault::new(at.display().to_string(), "a folder", e.to_string());
    for entry in fs::read_dir(&at).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (kind, name) = (entry.file_type().map_err(unreadable)?, folder.join(entry.file_name()));
        if kind.is_file() {
            found.push(name);
        } else if kind.is_dir() && deep {
            list(root, &name, deep, found)?;
        }
    }
    Ok(())
}

/// SHA-256 over the names, lengths and bytes of the [`files`] of `package` below `root`.
///
/// # Errors
/// When one of them is not there or cannot be read.
pub fn digest(root: &Path, package: &Package) -> Result<String, Fault> {
    let mut digest = Hasher::new();
    for name in files(root, package)? {
        let path = root.join(&name);
        let bytes = fs::read(&path)
            .map_err(|e| Fault::new(path.display().to_string(), "a file that can be read", e.to_string()))?;
        digest.update(format!("{} {}\n", name.display(), bytes.len()).as_bytes());
        digest.update(&bytes);
    }
    Ok(digest.finish())
}

/// Whether what is below `root` is what the recipe names.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn check(root: &Path, package: &Package) -> Result<(), Fault> {
    let found = digest(root, package)?;
    if found == package.needed_sha256 {
        return Ok(());
    }
    let expected = format!("the sources in {}, SHA-256 {}", package.requirement, package.needed_sha256);
    Err(Fault::new(root.display().to_string(), expected, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: Package = Package {
        requirement: "engine==1",
        sha256: "",
        folder: "",
        needed: &["CMakeLists.txt", "src", "ggml/*"],
        needed_sha256: "",
        tools: &[],
    };

    #[test]
    fn what_a_build_needs_is_found_in_order_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("src/deep/b.cpp", "b");
        write("src/a.cpp", "a");
        write("ggml/g.c", "g");
        write("ggml/metal/m.m", "m");
        write("docs/d.md", "d");
        let missing = files(root.path(), &PACKAGE).unwrap_err().to_string();
        assert!(missing.contains("CMakeLists.txt in it"), "{missing}");
        write("CMakeLists.txt", "c");
        let names: Vec<String> =
            files(root.path(), &PACKAGE).unwrap().iter().map(|p| p.display().to_string()).collect();
        assert_eq!(names, ["CMakeLists.txt", "ggml/g.c", "src/a.cpp", "src/deep/b.cpp"]);

        let before = digest(root.path(), &PACKAGE).unwrap();
        write("docs/d.md", "other");
        assert_eq!(digest(root.path(), &PACKAGE).unwrap(), before, "a build does not need it");
        write("ggml/g.c", "other");
        assert_ne!(digest(root.path(), &PACKAGE).unwrap(), before);
        let said = check(root.path(), &PACKAGE).unwrap_err().to_string();
        assert!(said.contains("the sources in engine==1"), "{said}");
    }
}
