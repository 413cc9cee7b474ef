//! Models in formats that no other program writes than an engine's own tools, which are in its environment.
//!
//! What they make lies in a folder that tare can open too: beside the engine's graph are the same packed values in a form
//! that tare reads. So the judge scores the values that the engine computes with, and an arm of tare can run on them.

use std::fs;
use std::path::Path;
use std::time::Duration;
use tare_core::{Fault, Reading};

use super::install::{Installed, Staging, Work, disk, found, recipe_sha256};
use super::registry::{ENTRIES, Entry};
use crate::LabError;

/// The script that does it, beside the shim.
const SCRIPT: &str = "convert.py";
/// What the script makes, in the folder that it is started in.
const MADE: &str = "made";

/// The entry whose tools write `format`; none for what tare writes itself.
pub fn writer(format: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|e| e.writes.contains(&format))
}

/// What tells folders of this recipe from those of another version, script or package: 12 hexadecimal digits.
pub fn version(entry: &Entry) -> String {
    recipe_sha256(entry)[..12].to_string()
}

/// The environment of `entry`, whose tools write its formats.
///
/// # Errors
/// When it is not installed.
pub fn tools(entry: &Entry, home: &Path) -> Result<Installed, Fault> {
    match found(entry, home) {
        Reading::Available(here) => Ok(here),
        Reading::Unavailable { why } => {
            let at = format!("formats {}", entry.writes.join(", "));
            Err(Fault::new(at, format!("the tools of {} installed", entry.name), why))
        }
    }
}

/// Has the [`tools`] `here` of `entry` write the model in the file `source` as `format` to the folder `output`, which is
/// whole or not there. `go_on` as in [`super::install()`].
///
/// # Errors
/// When the step or the disk fails, or `go_on` said no.
pub fn convert(
    (entry, here, home): (&Entry, &Installed, &Path),
    source: &Path,
    (format, output): (&str, &Path),
    go_on: &mut dyn FnMut(&str, Duration) -> bool,
) -> Result<(), LabError> {
    let staging = Staging::make(entry, home)?;
    let mut work = Work { doing: "converting for", entry, folder: &staging.0, go_on };
    let source = std::path::absolute(source).map_err(|e| disk(source, &e))?;
    let script = here.folder.join(SCRIPT);
    let arguments = [&*script.to_string_lossy(), &*source.to_string_lossy(), format, MADE].map(str::to_string);
    work.run(&format!("writing {format} (minutes)"), &here.folder.join(&here.program), &arguments)?;
    fs::rename(staging.0.join(MADE), output).map_err(|e| disk(output, &e).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// An environment whose interpreter is a shell and whose script is `text`.
    fn environment(home: &Path, text: &str) -> Installed {
        let folder = home.join("peers/some");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(SCRIPT), text).unwrap();
        Installed {
            name: "some".into(),
            version: "1".into(),
            seconds: 0.0,
            recipe_sha256: String::new(),
            processor: String::new(),
            program: "/bin/sh".into(),
            arguments: vec![],
            shim_sha256: String::new(),
            folder,
        }
    }

    fn made(text: &str, go_on: bool) -> (Result<(), LabError>, PathBuf, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        let here = environment(home.path(), text);
        let (source, output) = (home.path().join("source.gguf"), home.path().join("output"));
        fs::write(&source, "weights").unwrap();
        let entry = writer("openvino-int4").unwrap();
        let by = (entry, &here, home.path());
        let done = convert(by, &source, ("openvino-int4", &output), &mut |_, _| go_on);
        assert_eq!(fs::read_dir(home.path().join("peers/.parts")).unwrap().count(), 0, "no staging is left");
        (done, output, home)
    }

    #[test]
    fn what_the_script_makes_is_whole_or_not_there() {
        let (done, output, _home) = made(r#"mkdir "$3" && { echo "$2"; cat "$1"; } > "$3/said""#, true);
        done.unwrap();
        assert_eq!(fs::read_to_string(output.join("said")).unwrap(), "openvino-int4\nweights");
        let (failed, output, _home) = made(r#"mkdir "$3"; echo no room >&2; exit 3"#, true);
        let said = failed.unwrap_err().to_string();
        assert!(said.contains("converting for openvino: writing openvino-int4") && said.contains("no room"), "{said}");
        assert!(!output.exists());
        let (stopped, output, _home) = made(r#"mkdir "$3"; sleep 600"#, false);
        assert!(matches!(stopped, Err(LabError::Interrupted)) && !output.exists());
        let (nothing, output, _home) = made("exit 0", true);
        assert!(nothing.is_err() && !output.exists());
    }

    #[test]
    fn a_format_has_one_writer_which_must_be_installed() {
        let all: Vec<&str> = ENTRIES.iter().flat_map(|e| e.writes.iter().copied()).collect();
        assert!(all.iter().all(|f| all.iter().filter(|g| f == *g).count() == 1), "{all:?}");
        for e in ENTRIES.iter().filter(|e| !e.writes.is_empty()) {
            assert!(e.sources.iter().any(|(name, _)| *name == SCRIPT), "{}", e.name);
        }
        assert!(writer("q4_0").is_none());
        let home = tempfile::tempdir().unwrap();
        let said = tools(writer("openvino-int8").unwrap(), home.path()).unwrap_err().to_string();
        assert!(said.contains("tare peers install openvino"), "{said}");
    }
}
