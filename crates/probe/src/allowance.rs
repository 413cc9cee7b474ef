//! What the system lets this process use of the host: CPUs by affinity, CPU time and memory by control groups.

use crate::affinity::allowed_cpus;
use crate::files::SystemFiles;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tare_core::Reading;

/// Limits on this process. `None` inside a reading says that the system was asked and set no limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allowance {
    /// The CPUs that this process may run on: its affinity mask, which the kernel keeps inside the cpuset.
    pub cpus: Reading<Vec<usize>>,
    /// CPU time a second, in CPUs: quota divided by period, the tightest of all enclosing control groups.
    pub quota_cpus: Reading<Option<f64>>,
    /// Memory limit in bytes, the tightest of all enclosing control groups.
    pub memory_limit_bytes: Reading<Option<u64>>,
    /// Memory charged to this process's own control group in bytes.
    pub memory_used_bytes: Reading<u64>,
}

impl Allowance {
    /// The limits now.
    pub fn read() -> Self {
        Self::read_from(&SystemFiles::live(), allowed_cpus())
    }

    pub(crate) fn read_from(files: &SystemFiles, cpus: Reading<Vec<usize>>) -> Self {
        let group = |controller| Group::of_this_process(files, controller);
        let memory = group("memory");
        Self {
            cpus,
            quota_cpus: group("cpu").map(|g| g.tightest(files, Group::quota_cpus)).into(),
            memory_limit_bytes: memory.as_ref().map(|g| g.tightest(files, Group::memory_limit)).into(),
            memory_used_bytes: memory.and_then(|g| g.memory_used(files)).into(),
        }
    }

    /// How many threads can run at once without being throttled: the CPUs of the mask (or `online` where there is no
    /// mask), cut down to the whole CPUs of the quota; at least 1.
    ///
    /// A quota of 2.5 gives 2: a third spinning thread would spend the quota before the period ends and all would
    /// stop together.
    pub fn usable_threads(&self, online: usize) -> usize {
        let allowed = self.cpus.available().map_or(online, Vec::len);
        let quota = match self.quota_cpus {
            Reading::Available(Some(quota)) => quota.floor() as usize,
            _ => usize::MAX,
        };
        allowed.min(quota).max(1)
    }
}

/// The folder of one control group and the mount above which its hierarchy ends.
#[derive(Debug)]
struct Group {
    mount: PathBuf,
    folder: PathBuf,
    unified: bool,
}

impl Group {
    /// The group that governs `controller` for this process: version 1 where that hierarchy is mounted, else the
    /// unified one of version 2.
    fn of_this_process(files: &SystemFiles, controller: &str) -> Result<Self, String> {
        let memberships = files.text("proc/self/cgroup")?;
        let mounts = files.text("proc/self/mountinfo")?;
        // Lines are `id:controllers:path`; the unified hierarchy has id 0 and no controllers.
        let membership = |unified: bool| {
            memberships.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                let ours =
                    if unified { controllers.is_empty() } else { controllers.split(',').any(|c| c == controller) };
                ours.then_some(path)
            })
        };
        for unified in [false, true] {
            let (Some(path), Some(mount)) = (membership(unified), Mount::find(&mounts, controller, unified)) else {
                continue;
            };
            let folder = mount.folder_of(path);
            // Inside a container the path may be the host's and absent here; the mount itself is then our group.
            let folder = if files.has_folder(&folder) { folder } else { mount.point.clone() };
            return Ok(Self { mount: mount.point, folder, unified });
        }
        Err(format!("no control group with the {controller} controller is mounted"))
    }

    /// The smallest limit from this group up to the mount; a group without the file sets none.
    fn tightest<T: PartialOrd>(
        &self,
        files: &SystemFiles,
        limit: impl Fn(&Self, &SystemFiles, &Path) -> Option<T>,
    ) -> Option<T> {
        let up = self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount));
        up.filter_map(|folder| limit(self, files, folder)).reduce(|a, b| if b < a { b } else { a })
    }

    fn quota_cpus(&self, files: &SystemFiles, folder: &Path) -> Option<f64> {
        let (quota, period) = if self.unified {
            // `max 100000` or `150000 100000`.
            let text = files.text(folder.join("cpu.max")).ok()?;
            let (quota, period) = text.split_once(' ')?;
            (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
        } else {
            // -1 stands for no quota, which is no unsigned number.
            let quota = files.number(folder.join("cpu.cfs_quota_us")).ok()?;
            (quota as f64, files.number(folder.join("cpu.cfs_period_us")).ok()? as f64)
        };
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }

    fn memory_limit(&self, files: &SystemFiles, folder: &Path) -> Option<u64> {
        /// Version 1 writes "no limit" as the largest page-aligned signed number; no host has a quarter of that.
        const NO_LIMIT: u64 = 1 << 61;
        let name = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        files.number(folder.join(name)).ok().filter(|&bytes| bytes < NO_LIMIT)
    }

    fn memory_used(&self, files: &SystemFiles) -> Result<u64, String> {
        files.number(self.folder.join(if self.unified { "memory.current" } else { "memory.usage_in_bytes" }))
    }
}

/// One mounted control-group hierarchy.
struct Mount {
    /// The group that the mount shows at its top.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
}

impl Mount {
    /// From `/proc/self/mountinfo`: `id parent dev ROOT POINT options... - TYPE source SUPEROPTIONS`.
    fn find(mounts: &str, controller: &str, unified: bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let kind = right.next()?;
            let wanted = if unified {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && right.nth(1)?.split(',').any(|option| option == controller)
            };
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            wanted.then(|| Self { root: root.into(), point: point.into() })
        })
    }

    /// Where the group `path` lies in the file tree.
    fn folder_of(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        let below = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        // Joining an empty path would append a slash, which compares unequal to nothing but looks odd in messages.
        if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: &[(&str, &str)]) -> (tempfile::TempDir, SystemFiles) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in entries {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = SystemFiles::under(dir.path());
        (dir, files)
    }

    fn allowance(entries: &[(&str, &str)], cpus: usize) -> Allowance {
        let (_dir, files) = tree(entries);
        Allowance::read_from(&files, Reading::Available((0..cpus).collect()))
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_2_takes_the_tightest_of_the_enclosing_groups() {
        let a = allowance(
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("proc/self/mountinfo", V2_MOUNT),
                ("sys/fs/cgroup/a/cpu.max", "250000 100000\n"),
                ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.current", "4096\n"),
            ],
            8,
        );
        assert_eq!(a.quota_cpus, Reading::Available(Some(2.5)));
        assert_eq!(a.memory_limit_bytes, Reading::Available(Some(1 << 30)));
        assert_eq!(a.memory_used_bytes, Reading::Available(4096));
        assert_eq!(a.usable_threads(8), 2);
    }

    #[test]
    fn version_1_reads_each_controller_from_its_own_mount() {
        let mounts = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 30 0:28 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let a = allowance(
            &[
                ("proc/self/cgroup", "4:memory:/docker/x\n2:cpu,cpuacct:/host/only\n0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "8192\n"),
            ],
            4,
        );
        assert_eq!(a.quota_cpus, Reading::Available(None));
        assert_eq!(a.memory_limit_bytes, Reading::Available(None));
        assert_eq!(a.memory_used_bytes, Reading::Available(8192));
        assert_eq!(a.usable_threads(64), 4);
    }

    #[test]
    fn a_small_quota_still_leaves_one_thread() {
        let entries = [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
        ];
        assert_eq!(allowance(&entries, 4).usable_threads(4), 1);
    }

    #[test]
    fn without_control_groups_the_reason_is_given_and_affinity_rules() {
        let a = allowance(&[("proc/self/cgroup", ""), ("proc/self/mountinfo", "")], 3);
        let why = "no control group with the cpu controller is mounted";
        assert_eq!(a.quota_cpus, Reading::unavailable(why));
        assert_eq!(a.usable_threads(16), 3);
        let unbound = Allowance { cpus: Reading::unavailable("no call"), ..a };
        assert_eq!(unbound.usable_threads(16), 16);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_running_system_is_read_and_survives_json() {
        let a = Allowance::read();
        assert!(!a.cpus.available().unwrap().is_empty());
        let back: Allowance = serde_json::from_str(&serde_json::to_string(&a).unwrap()).unwrap();
        assert_eq!(back, a);
    }
}
