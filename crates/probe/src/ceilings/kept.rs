//! Ceilings kept in a file for one boot of one host.

use super::{Ceilings, Effort};
use crate::host::Host;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tare_core::Reading;

/// What must be the same for a kept measurement to speak of this host now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    boot_id: String,
    cpu_model: Reading<String>,
    kernel_levels: Vec<String>,
    threads: usize,
    probe_version: String,
}

impl Key {
    /// None when the boot cannot be told from others: an old measurement could then pass for a new one.
    fn of(host: &Host) -> Result<Self, String> {
        let boot_id = match &host.boot_id {
            Reading::Available(id) => id.clone(),
            Reading::Unavailable { why } => return Err(format!("this boot cannot be told from others: {why}")),
        };
        Ok(Self {
            boot_id,
            cpu_model: host.cpu.model_name.clone(),
            kernel_levels: host.features.levels().iter().map(ToString::to_string).collect(),
            threads: host.usable_threads,
            probe_version: env!("CARGO_PKG_VERSION").to_string(),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    key: Key,
    ceilings: Ceilings,
}

/// Where a [`Stored`] measurement came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file held a measurement of this boot.
    Kept,
    /// It was measured now and written to the file.
    Measured,
    /// It was measured now and is not in the file, for this reason.
    MeasuredNotKept {
        /// A sentence for a person.
        why: String,
    },
}

/// Ceilings and where they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The measurement.
    pub ceilings: Ceilings,
    /// Where it came from.
    pub origin: Origin,
}

impl Ceilings {
    /// The measurement that `path` keeps for this boot, or a new one, which is then written there (whole, by rename;
    /// missing folders are made). The file is used only if boot, processor model, kernel levels, thread count and this
    /// crate's version are the same and its figures follow from its own rounds; else it is measured anew and replaced.
    /// What was measured on a busy machine is not kept: it would be too low for the whole boot.
    pub fn kept_at(path: &Path, host: &Host, effort: &Effort) -> Stored {
        let key = match Key::of(host) {
            Ok(key) => key,
            Err(why) => {
                return Stored { ceilings: Self::measure(host, effort), origin: Origin::MeasuredNotKept { why } };
            }
        };
        if let Some(ceilings) = read(path, &key) {
            return Stored { ceilings, origin: Origin::Kept };
        }
        let file = File { key, ceilings: Self::measure(host, effort) };
        let lost = file.ceilings.quietness.spin.lost_share;
        if lost > effort.busy_limit {
            let why = format!("the machine was busy ({:.0} % of a spinning thread's time was lost)", lost * 100.0);
            return Stored { ceilings: file.ceilings, origin: Origin::MeasuredNotKept { why } };
        }
        let origin = match write(path, &file) {
            Ok(()) => Origin::Measured,
            Err(e) => Origin::MeasuredNotKept { why: format!("{}: {e}", path.display()) },
        };
        Stored { ceilings: file.ceilings, origin }
    }
}

/// The kept measurement, unless the file is missing, unreadable, edited or of another boot.
fn read(path: &Path, key: &Key) -> Option<Ceilings> {
    let file: File = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let derived = Ceilings::readings_of(&file.ceilings.series);
    (file.key == *key && derived == file.ceilings.readings).then_some(file.ceilings)
}

fn write(path: &Path, file: &File) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // A name of this process's own: two processes that measure at once each rename a whole file.
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    std::fs::write(&name, serde_json::to_vec_pretty(file)?)?;
    std::fs::rename(&name, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceilings::tests::SMALL;

    #[test]
    fn one_measurement_serves_a_boot_and_an_edit_or_another_boot_voids_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/folder/ceilings.json");
        let mut host = Host::read();
        host.boot_id = Reading::Available("boot-1".to_string());
        let first = Ceilings::kept_at(&path, &host, &SMALL);
        assert_eq!(first.origin, Origin::Measured);
        let second = Ceilings::kept_at(&path, &host, &SMALL);
        assert_eq!(second.origin, Origin::Kept);
        assert_eq!(second.ceilings.series, first.ceilings.series);

        let mut file: File = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file.ceilings.readings.read_1t_bytes_per_s = Reading::Available(1);
        write(&path, &file).unwrap();
        assert_eq!(Ceilings::kept_at(&path, &host, &SMALL).origin, Origin::Measured);

        host.boot_id = Reading::Available("boot-2".to_string());
        assert_eq!(Ceilings::kept_at(&path, &host, &SMALL).origin, Origin::Measured);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no partial files stay");
    }

    #[test]
    fn a_busy_machine_is_measured_and_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let mut host = Host::read();
        host.boot_id = Reading::Available("boot-1".to_string());
        let never_quiet_enough = Effort { busy_limit: -1.0, ..SMALL };
        let Origin::MeasuredNotKept { why } = Ceilings::kept_at(&path, &host, &never_quiet_enough).origin else {
            panic!("kept although the machine was busy");
        };
        assert!(why.contains("busy") && !path.exists(), "{why}");
    }

    #[test]
    fn without_a_boot_id_or_a_writable_file_it_is_measured_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let mut host = Host::read();
        host.boot_id = Reading::Available("boot-1".to_string());
        // A folder stands where the file should go.
        let Origin::MeasuredNotKept { why } = Ceilings::kept_at(dir.path(), &host, &SMALL).origin else {
            panic!("a folder cannot be replaced by a file");
        };
        assert!(why.contains(&*dir.path().to_string_lossy()), "{why}");
        host.boot_id = Reading::unavailable("no such file");
        let path = dir.path().join("c.json");
        let Origin::MeasuredNotKept { why } = Ceilings::kept_at(&path, &host, &SMALL).origin else {
            panic!("kept without a boot id");
        };
        assert!(why.contains("no such file") && !path.exists(), "{why}");
    }
}
