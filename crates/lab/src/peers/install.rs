//! Installing a peer: a build or an environment in a folder of its own, whole or not there.
//!
//! Everything happens in a staging folder beside the place; one rename ends it. A folder that bears the name of a peer
//! was therefore finished, and its manifest says from what: another recipe, version or processor is another install.

use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tare_core::{Fault, Reading, digest::sha256_hex};
use tare_cuda::nvml;
use tare_probe::Host;

use super::registry::{Entry, Package, Recipe};
use super::sources;
use crate::LabError;
use crate::build_info::file_sha256;

const MANIFEST: &str = "tare-peer.json";
const LOG: &str = "install.log";
/// How often a running step is looked at, and Ctrl-C with it.
const GLANCE: Duration = Duration::from_millis(100);

/// A peer that is here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Installed {
    /// Its name.
    pub name: String,
    /// Its pinned version.
    pub version: String,
    /// What the install took, in seconds.
    pub seconds: f64,
    /// Digest of the recipe and of the shim's sources.
    pub recipe_sha256: String,
    /// The processor that it was built for, and the device.
    pub processor: String,
    /// The shim's executable, inside the folder.
    pub program: PathBuf,
    /// What the shim is started with, inside the folder.
    pub arguments: Vec<PathBuf>,
    /// Digest of the shim: of the binary where there is one, else of its script.
    pub shim_sha256: String,
    /// Where it lies.
    #[serde(skip)]
    pub folder: PathBuf,
}

impl Installed {
    /// The command that starts its shim.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.folder.join(&self.program));
        command.args(self.arguments.iter().map(|a| self.folder.join(a)));
        command
    }
}

/// The folder of `entry` under tare's folder `home`.
pub fn folder(entry: &Entry, home: &Path) -> PathBuf {
    home.join("peers").join(format!("{}-{}", entry.name, entry.version))
}

/// The peer as it is installed under `home`, or why it cannot be used.
pub fn found(entry: &Entry, home: &Path) -> Reading<Installed> {
    match entry.recipe {
        Recipe::Server => return Reading::unavailable("nothing to install: give the address of a running server"),
        Recipe::LeftOut { why } => return Reading::unavailable(why),
        _ => {}
    }
    if let Some(why) = entry.withheld {
        return Reading::unavailable(why);
    }
    let folder = folder(entry, home);
    let again = format!("run `tare peers install {}`", entry.name);
    let Ok(bytes) = fs::read(folder.join(MANIFEST)) else {
        return Reading::unavailable(format!("not installed; {again}"));
    };
    let Ok(read) = serde_json::from_slice::<Installed>(&bytes) else {
        return Reading::unavailable(format!("{} is spoiled; {again}", folder.join(MANIFEST).display()));
    };
    let here = Installed { folder, ..read };
    if here.recipe_sha256 != recipe_sha256(entry) {
        return Reading::unavailable(format!("installed by another recipe than this binary's; {again}"));
    }
    let processor = processor(entry);
    if here.processor != processor {
        return Reading::unavailable(format!("built for {}, this is {processor}; {again}", here.processor));
    }
    let shim = here.arguments.first().unwrap_or(&here.program);
    match file_sha256(&here.folder.join(shim)) {
        Ok(digest) if digest == here.shim_sha256 => Reading::Available(here),
        _ => Reading::unavailable(format!("{} is not as it was installed; {again}", shim.display())),
    }
}

/// Installs `entry` under `home`; what is there already and usable is left as it is. `carried` is an archive that [`pack`]
/// wrote: nothing is downloaded then, and the build tools are those of this host.
///
/// `go_on` is told each step and how long it has run, and asked several times a second: false ends it with nothing kept.
///
/// # Errors
/// When the entry has nothing to install, a step fails, a digest is another one, or `go_on` said no.
pub fn install(
    entry: &Entry,
    home: &Path,
    carried: Option<&Path>,
    go_on: &mut dyn FnMut(&str, Duration) -> bool,
) -> Result<Installed, LabError> {
    if let Reading::Available(here) = found(entry, home) {
        return Ok(here);
    }
    if let Some(why) = entry.withheld {
        return Err(Fault::new(entry.name, "a peer that can be used", why).into());
    }
    let start = Instant::now();
    let staging = Staging::make(entry, home)?;
    let mut work = Work { doing: "installing", entry, folder: &staging.0, go_on };
    let (program, arguments) = match entry.recipe {
        Recipe::CMake { from, options } => work.build(from, options, carried)?,
        Recipe::Python { requirements } => work.environment(requirements)?,
        Recipe::Cargo => work.cargo()?,
        Recipe::Server | Recipe::LeftOut { .. } => {
            let why = found(entry, home).map(|here| here.version).to_string();
            return Err(Fault::new(entry.name, "a peer that can be installed", why).into());
        }
    };
    let shim = arguments.first().unwrap_or(&program);
    let shim_sha256 = file_sha256(&staging.0.join(shim)).map_err(|e| disk(&staging.0.join(shim), &e))?;
    let done = Installed {
        name: entry.name.into(),
        version: entry.version.into(),
        seconds: start.elapsed().as_secs_f64(),
        recipe_sha256: recipe_sha256(entry),
        processor: processor(entry),
        program,
        arguments,
        shim_sha256,
        folder: folder(entry, home),
    };
    staging.finish(&done)?;
    Ok(done)
}

/// Downloads the sources of `entry` and packs the part of them that a build needs into `archive`, for a host that reaches
/// no registry. Gives the number of files. `go_on` as in [`install`].
///
/// # Errors
/// When the entry is not built from sources of a package, a step fails, a digest is another one, or `go_on` said no.
pub fn pack(
    entry: &Entry,
    home: &Path,
    archive: &Path,
    go_on: &mut dyn FnMut(&str, Duration) -> bool,
) -> Result<usize, LabError> {
    let Recipe::CMake { from, .. } = entry.recipe else {
        return Err(Fault::new(entry.name, "a peer that is built from sources of a package", "another recipe").into());
    };
    let staging = Staging::make(entry, home)?;
    let mut work = Work { doing: "packing the sources of", entry, folder: &staging.0, go_on };
    let (_, root) = work.fetch(from)?;
    let files = sources::files(&root, from)?;
    let packed = staging.0.join("needed.tar.gz");
    let names: Vec<String> = files.iter().map(|f| f.to_string_lossy().into_owned()).collect();
    let names: Vec<&str> =
        [packed.to_str().unwrap_or_default()].into_iter().chain(names.iter().map(String::as_str)).collect();
    work.run_in(&root, "packing them", Path::new("python3"), &words("-m tarfile -c", &names))?;
    fs::copy(&packed, archive).map_err(|e| disk(archive, &e))?;
    Ok(files.len())
}

/// Digest of everything that decides what an install becomes.
pub(super) fn recipe_sha256(entry: &Entry) -> String {
    sha256_hex(format!("{} {:?} {:?}", entry.version, entry.recipe, entry.sources).as_bytes())
}

/// What `entry` is built and tuned for: this processor, and the device where it uses one.
pub(super) fn processor(entry: &Entry) -> String {
    let host = Host::read();
    let processor = format!("{} {}", host.arch, host.cpu.model_name);
    if entry.backend == "cpu" { processor } else { format!("{processor}, {}", nvml::name(0)) }
}

pub(super) fn disk(path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(path.display().to_string(), "a file that can be read and written", error.to_string())
}

/// A folder that is removed unless it was finished.
pub(super) struct Staging(pub(super) PathBuf);

impl Staging {
    pub(super) fn make(entry: &Entry, home: &Path) -> Result<Self, Fault> {
        let parts = home.join("peers/.parts");
        let path = parts.join(format!("{}.{}", entry.name, std::process::id()));
        Self::remove_abandoned(&parts);
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).map_err(|e| disk(&path, &e))?;
        Ok(Self(path))
    }

    /// Removes what processes left behind that were killed, where the system lists its processes.
    fn remove_abandoned(parts: &Path) {
        let processes = Path::new("/proc");
        for left in fs::read_dir(parts).into_iter().flatten().flatten().map(|e| e.path()) {
            let of = left.extension().map(|pid| processes.join(pid));
            if processes.join("self").exists() && of.is_some_and(|p| !p.exists()) {
                drop(fs::remove_dir_all(&left));
            }
        }
    }

    /// Writes the manifest and moves the folder to its place, where an unusable one may lie.
    fn finish(self, done: &Installed) -> Result<(), Fault> {
        let manifest = self.0.join(MANIFEST);
        let text = serde_json::to_vec_pretty(done).unwrap_or_default();
        fs::write(&manifest, text).map_err(|e| disk(&manifest, &e))?;
        drop(fs::remove_dir_all(&done.folder));
        fs::rename(&self.0, &done.folder).map_err(|e| disk(&done.folder, &e))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Steps of an install, or of what an installed peer is asked for, under way.
pub(super) struct Work<'a> {
    /// What its errors say is done to the entry.
    pub(super) doing: &'static str,
    pub(super) entry: &'a Entry,
    pub(super) folder: &'a Path,
    pub(super) go_on: &'a mut dyn FnMut(&str, Duration) -> bool,
}

/// The program and its arguments, inside the folder.
type Start = (PathBuf, Vec<PathBuf>);

impl Work<'_> {
    fn build(&mut self, from: &Package, options: &[&str], carried: Option<&Path>) -> Result<Start, LabError> {
        self.write_sources()?;
        // Where the tools lie; those of this host are found by their names.
        let (tools, root) = match carried {
            None => self.fetch(from)?,
            Some(archive) => (PathBuf::new(), self.unpack(archive, Path::new("python3"))?),
        };
        sources::check(&root, from)?;
        let source = format!("-DLLAMA_SOURCE={}", root.display());
        let ninja = format!("-DCMAKE_MAKE_PROGRAM={}", tools.join("ninja").display());
        let cmake = tools.join("cmake");
        let more: Vec<&str> = [source.as_str(), &ninja].into_iter().chain(options.iter().copied()).collect();
        let configure = words("-G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release", &more);
        self.run("configuring", &cmake, &configure)?;
        self.run("compiling for this host (minutes)", &cmake, &words("--build build", &[]))?;
        fs::rename(self.folder.join("build/shim"), self.folder.join("shim")).map_err(|e| disk(self.folder, &e))?;
        let spent = ["build", "unpacked", "archive", "tools"].map(|name| self.folder.join(name));
        for path in spent.iter().filter(|path| path.exists()) {
            fs::remove_dir_all(path).map_err(|e| disk(path, &e))?;
        }
        Ok(("shim".into(), vec![]))
    }

    /// Installs the build tools and downloads the sources; gives the folders of both.
    fn fetch(&mut self, from: &Package) -> Result<(PathBuf, PathBuf), LabError> {
        let python = self.venv("tools")?;
        self.run("installing the build tools", &python, &words("-m pip install --quiet", from.tools))?;
        let package = from.requirement.split("==").next().unwrap_or(from.requirement);
        let download = words(
            "-m pip download --quiet --no-deps --no-build-isolation --dest archive --no-binary",
            &[package, from.requirement],
        );
        self.run(&format!("downloading the sources in {}", from.requirement), &python, &download)?;
        let archive = self.only_file("archive")?;
        let digest = file_sha256(&archive).map_err(|e| disk(&archive, &e))?;
        if digest != from.sha256 {
            return Err(Fault::new(archive.display().to_string(), format!("SHA-256 {}", from.sha256), digest).into());
        }
        Ok((self.folder.join("tools/bin"), self.unpack(&archive, &python)?.join(from.folder)))
    }

    fn unpack(&mut self, archive: &Path, python: &Path) -> Result<PathBuf, LabError> {
        let archive = std::path::absolute(archive).map_err(|e| disk(archive, &e))?;
        let unpack = words("-m tarfile -e", &[&archive.to_string_lossy(), "unpacked"]);
        self.run("unpacking the sources", python, &unpack)?;
        Ok(self.folder.join("unpacked"))
    }

    fn environment(&mut self, requirements: &[&str]) -> Result<Start, LabError> {
        self.write_sources()?;
        let python = self.venv("venv")?;
        self.run("installing its packages (minutes)", &python, &words("-m pip install --quiet", requirements))?;
        Ok(("venv/bin/python".into(), vec!["shim.py".into()]))
    }

    fn cargo(&mut self) -> Result<Start, LabError> {
        self.write_sources()?;
        let build = words(
            "build --release --quiet --target-dir target --config",
            &["build.rustflags=[\"-Ctarget-cpu=native\"]"],
        );
        self.run("compiling for this processor (minutes)", Path::new("cargo"), &build)?;
        fs::rename(self.folder.join("target/release/shim"), self.folder.join("shim"))
            .map_err(|e| disk(self.folder, &e))?;
        let target = self.folder.join("target");
        fs::remove_dir_all(&target).map_err(|e| disk(&target, &e))?;
        Ok(("shim".into(), vec![]))
    }

    fn write_sources(&self) -> Result<(), Fault> {
        for (name, text) in self.entry.sources {
            let path = self.folder.join(name);
            let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
            made.map_err(|e| disk(&path, &e))?;
        }
        Ok(())
    }

    /// An environment; returns its interpreter.
    fn venv(&mut self, name: &str) -> Result<PathBuf, LabError> {
        self.run("making a Python environment", Path::new("python3"), &words("-m venv", &[name]))?;
        Ok(self.folder.join(name).join("bin/python"))
    }

    fn only_file(&self, folder: &str) -> Result<PathBuf, Fault> {
        let path = self.folder.join(folder);
        let files: Vec<PathBuf> =
            fs::read_dir(&path).map_err(|e| disk(&path, &e))?.flatten().map(|e| e.path()).collect();
        match &files[..] {
            [one] => Ok(one.clone()),
            _ => Err(Fault::new(path.display().to_string(), "one file", files.len().to_string())),
        }
    }

    /// Runs one step in the folder, its output in the log.
    pub(super) fn run(&mut self, step: &str, program: &Path, arguments: &[String]) -> Result<(), LabError> {
        self.run_in(self.folder, step, program, arguments)
    }

    /// Runs one step in `place`, its output in the log. It has a process group of its own, which is ended as a whole when
    /// the step is given up.
    fn run_in(&mut self, place: &Path, step: &str, program: &Path, arguments: &[String]) -> Result<(), LabError> {
        let log = self.folder.join(LOG);
        let out = File::options().create(true).append(true).open(&log).map_err(|e| disk(&log, &e))?;
        let err = out.try_clone().map_err(|e| disk(&log, &e))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(place).process_group(0);
        let at = format!("{} {}: {step}", self.doing, self.entry.name);
        let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|e| {
            let remedy = format!("install {}", program.display());
            Fault::new(at.clone(), format!("{} to run", program.display()), e.to_string()).remedy(remedy)
        })?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|e| disk(program, &e))? {
                if status.success() {
                    return Ok(());
                }
                return Err(Fault::new(at, "success", format!("{status}")).remedy(tail_of(&log)).into());
            }
            if !(self.go_on)(step, start.elapsed()) {
                end_group(&mut child);
                return Err(LabError::Interrupted);
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// Ends a step and everything that it started.
fn end_group(child: &mut std::process::Child) {
    let group = format!("-{}", child.id());
    drop(Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status());
    drop(child.kill());
    drop(child.wait());
}

/// Words of a command line: those of `line`, then `more`.
fn words(line: &str, more: &[&str]) -> Vec<String> {
    line.split(' ').chain(more.iter().copied()).map(str::to_string).collect()
}

fn tail_of(log: &Path) -> String {
    let text = fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    format!("its output ends: {}", lines[lines.len().saturating_sub(8)..].join(" | "))
}

#[cfg(test)]
mod tests;
