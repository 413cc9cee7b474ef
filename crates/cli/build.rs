//! Writes into the binary what it was built from: the digest of the source files, the commit, whether the tree was
//! clean, the compiler and the target. Records carry these, so that a stranger can rebuild what was measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use tare_core::digest::Hasher;

/// What the digest covers, relative to the workspace root.
const SOURCES: [&str; 7] = ["Cargo.toml", "Cargo.lock", "crates", "plans", "studies", "gates.toml", ".cargo"];

fn main() {
    // Asked when the script runs, not when it was compiled: two clones may share a target folder, and a script compiled
    // in one would name the sources of that one in a binary built from the other.
    println!("cargo:rerun-if-env-changed=CARGO_MANIFEST_DIR");
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR for build scripts");
    let root = Path::new(&manifest).join("../..");
    let mut files = Vec::new();
    for s in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(s).display());
        collect(&root.join(s), &mut files);
    }
    for s in [".git/HEAD", ".git/index", ".git/refs/heads"] {
        if root.join(s).exists() {
            println!("cargo:rerun-if-changed={}", root.join(s).display());
        }
    }
    set("TARE_SOURCE_DIGEST", &digest(&root, &mut files));
    set("TARE_COMMIT", &output(&root, "git", &["rev-parse", "HEAD"]));
    let dirty = match output(&root, "git", &["status", "--porcelain", "--", "."]).as_str() {
        "" => "false",
        "unknown" => "unknown",
        _ => "true",
    };
    set("TARE_DIRTY", dirty);
    set("TARE_RUSTC", &output(&root, &std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()), &["--version"]));
    set("TARE_TARGET", &std::env::var("TARGET").unwrap_or_else(|_| "unknown".into()));
    set("TARE_PROFILE", &std::env::var("PROFILE").unwrap_or_else(|_| "unknown".into()));
}

fn set(name: &str, value: &str) {
    println!("cargo:rustc-env={name}={value}");
}

fn collect(path: &Path, out: &mut Vec<PathBuf>) {
    if path.is_file() {
        out.push(path.to_path_buf());
    } else if let Ok(entries) = std::fs::read_dir(path) {
        for e in entries.flatten() {
            collect(&e.path(), out);
        }
    }
}

/// Digest over the sorted lines `sha256  path`, as `sha256sum` prints them.
fn digest(root: &Path, files: &mut [PathBuf]) -> String {
    files.sort();
    let mut all = Hasher::new();
    for f in files {
        let bytes = std::fs::read(&*f).unwrap_or_default();
        let name = f.strip_prefix(root).unwrap_or(f).display();
        all.update(format!("{}  {name}\n", tare_core::digest::sha256_hex(&bytes)).as_bytes());
    }
    all.finish()
}

fn output(root: &Path, program: &str, args: &[&str]) -> String {
    match Command::new(program).args(args).current_dir(root).output() {
        Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).trim().to_string(),
        _ => "unknown".to_string(),
    }
}
