//! The facts of one host that a record must carry to be comparable.

use crate::affinity::allowed_cpus;
use crate::allowance::Allowance;
use crate::cache::Caches;
use crate::files::{SystemFiles, field, field_bytes};
use crate::isa::CpuFeatures;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tare_core::Reading;

/// What this host is. All but `memory.available_bytes`, `cpu.current_hz` and the allowance stay the same for one boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Operating system, by the compiler's name for it (`linux`, `macos`...).
    pub os: String,
    /// Processor architecture (`x86_64`, `aarch64`...).
    pub arch: String,
    /// Kernel release.
    pub kernel: Reading<String>,
    /// The hypervisor that runs this host, or `None` when the processor says that there is none.
    pub hypervisor: Reading<Option<String>>,
    /// An identifier that changes at every boot.
    pub boot_id: Reading<String>,
    /// The processor.
    pub cpu: Cpu,
    /// Instruction-set features.
    pub features: CpuFeatures,
    /// Memory of the whole host.
    pub memory: Memory,
    /// What this process may use of it.
    pub allowance: Allowance,
    /// How many threads can run at once: see [`Allowance::usable_threads`].
    pub usable_threads: usize,
}

/// The processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Maker, as the processor writes it (`GenuineIntel`, `AuthenticAMD`...).
    pub vendor: Reading<String>,
    /// Marketing name.
    pub model_name: Reading<String>,
    /// Family number.
    pub family: Reading<u64>,
    /// Model number within the family.
    pub model: Reading<u64>,
    /// Stepping within the model.
    pub stepping: Reading<u64>,
    /// Sockets with an online CPU.
    pub sockets: Reading<usize>,
    /// Cores with an online CPU.
    pub cores: Reading<usize>,
    /// Hardware threads online.
    pub threads_online: Reading<usize>,
    /// Data caches.
    pub caches: Caches,
    /// Frequency governor of CPU 0.
    pub governor: Reading<String>,
    /// Frequency of CPU 0 now, in Hz. In a virtual machine this is a constant that the host reports.
    pub current_hz: Reading<u64>,
    /// Highest frequency of CPU 0, in Hz.
    pub max_hz: Reading<u64>,
}

/// Memory of the whole host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Installed and visible to the system.
    pub total_bytes: Reading<u64>,
    /// What new processes could take without swapping, by the kernel's estimate.
    pub available_bytes: Reading<u64>,
    /// Size of a page.
    pub page_bytes: Reading<u64>,
    /// Size of a transparent huge page.
    pub huge_page_bytes: Reading<u64>,
    /// When the system gives huge pages unasked: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Reading<String>,
}

impl Host {
    /// Reads this host: some thirty small files, well under ten milliseconds.
    pub fn read() -> Self {
        Self::read_from(&SystemFiles::live(), allowed_cpus())
    }

    fn read_from(files: &SystemFiles, cpus: Reading<Vec<usize>>) -> Self {
        let cpu = Cpu::read_from(files);
        let allowance = Allowance::read_from(files, cpus);
        let online = cpu.threads_online.available().copied().unwrap_or_else(known_parallelism);
        let usable_threads = allowance.usable_threads(online);
        Self {
            os: std::env::consts::OS.to_string(),
            arch: std::env::consts::ARCH.to_string(),
            kernel: files.text("proc/sys/kernel/osrelease").into(),
            hypervisor: hypervisor(),
            boot_id: files.text("proc/sys/kernel/random/boot_id").into(),
            cpu,
            features: CpuFeatures::detect(),
            memory: Memory::read_from(files),
            allowance,
            usable_threads,
        }
    }
}

/// The standard library's count, for systems without `/proc`; 1 where it has none either.
fn known_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Cpu {
    fn read_from(files: &SystemFiles) -> Self {
        let info = files.text("proc/cpuinfo");
        let text = |key: &str| -> Result<String, String> {
            let value = field(info.as_deref().map_err(|why| why.to_string())?, key);
            value.map(str::to_string).ok_or_else(|| format!("/proc/cpuinfo has no field \"{key}\""))
        };
        let number = |key: &str| -> Reading<u64> {
            let parsed = text(key).and_then(|v| v.parse().map_err(|_| format!("{key}: expected a number, found {v}")));
            parsed.into()
        };
        let threads_online = match &info {
            Ok(info) => {
                Ok(info.lines().filter(|l| l.split(':').next().is_some_and(|k| k.trim() == "processor")).count())
            }
            Err(why) => Err(why.clone()),
        };
        let frequency = |name: &str| -> Reading<u64> {
            files.number(format!("sys/devices/system/cpu/cpu0/cpufreq/{name}")).map(|khz| khz * 1000).into()
        };
        Self {
            vendor: text("vendor_id").into(),
            model_name: text("model name").into(),
            family: number("cpu family"),
            model: number("model"),
            stepping: number("stepping"),
            sockets: distinct(&info, &["physical id"]).into(),
            cores: distinct(&info, &["physical id", "core id"]).into(),
            caches: Caches::read_from(files, threads_online.clone().unwrap_or(1)),
            threads_online: threads_online.into(),
            governor: files.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").into(),
            current_hz: match frequency("scaling_cur_freq") {
                Reading::Available(hz) => Reading::Available(hz),
                Reading::Unavailable { .. } => text("cpu MHz")
                    .and_then(|v| v.parse::<f64>().map_err(|e| e.to_string()))
                    .map(|mhz| (mhz * 1e6) as u64)
                    .into(),
            },
            max_hz: frequency("cpuinfo_max_freq"),
        }
    }
}

/// How many different values these fields take together over the processors of `/proc/cpuinfo`.
fn distinct(info: &Result<String, String>, keys: &[&str]) -> Result<usize, String> {
    let info = info.as_deref().map_err(|why| why.to_string())?;
    let mut seen = BTreeSet::new();
    for processor in info.split("\n\n").filter(|p| field(p, "processor").is_some()) {
        let values: Option<Vec<&str>> = keys.iter().map(|key| field(processor, key)).collect();
        seen.insert(values.ok_or_else(|| format!("/proc/cpuinfo does not give {} of every CPU", keys.join(" and ")))?);
    }
    if seen.is_empty() { Err("/proc/cpuinfo lists no processor".to_string()) } else { Ok(seen.len()) }
}

impl Memory {
    fn read_from(files: &SystemFiles) -> Self {
        let info = files.text("proc/meminfo");
        let of = |key: &str| -> Reading<u64> {
            let value = info.clone().and_then(|t| field_bytes(&t, key).ok_or(format!("/proc/meminfo has no {key}")));
            value.into()
        };
        let folder = "sys/kernel/mm/transparent_hugepage";
        Self {
            total_bytes: of("MemTotal"),
            available_bytes: of("MemAvailable"),
            page_bytes: page_bytes(),
            huge_page_bytes: files.number(format!("{folder}/hpage_pmd_size")).into(),
            transparent_huge_pages: files.text(format!("{folder}/enabled")).and_then(|t| bracketed(&t)).into(),
        }
    }
}

/// The chosen word of a list such as `always [madvise] never`.
fn bracketed(choices: &str) -> Result<String, String> {
    let chosen = choices.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen
        .map(|(word, _)| word.to_string())
        .ok_or_else(|| format!("expected one word in brackets, found \"{choices}\""))
}

#[cfg(unix)]
fn page_bytes() -> Reading<u64> {
    // SAFETY: sysconf takes a number and returns a number; it touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).map_err(|_| "sysconf does not know the page size").into()
}

#[cfg(not(unix))]
fn page_bytes() -> Reading<u64> {
    Reading::unavailable("the page size is read through sysconf, which this system lacks")
}

#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Reading<Option<String>> {
    let id = raw_cpuid::CpuId::new();
    if !id.get_feature_info().is_some_and(|f| f.has_hypervisor()) {
        return Reading::Available(None);
    }
    match id.get_hypervisor_info() {
        Some(info) => Reading::Available(Some(format!("{:?}", info.identify()))),
        None => Reading::unavailable("the processor says that a hypervisor runs it, and not which"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Reading<Option<String>> {
    Reading::unavailable("only an x86 processor says whether a hypervisor runs it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_host_is_read_and_survives_json() {
        let host = Host::read();
        assert!(host.cpu.threads_online.available().is_some_and(|&n| n >= 1));
        assert!(host.memory.total_bytes.available() > host.memory.available_bytes.available());
        assert!((1..=*host.cpu.threads_online.available().unwrap()).contains(&host.usable_threads));
        assert_eq!(host.boot_id.available().map(String::len), Some(36));
        let back: Host = serde_json::from_str(&serde_json::to_string(&host).unwrap()).unwrap();
        assert_eq!(back, host);
    }

    #[test]
    fn a_system_without_proc_gives_reasons_and_one_usable_thread_at_least() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::read_from(&SystemFiles::under(dir.path()), Reading::unavailable("no masks here"));
        assert!(host.cpu.vendor.to_string().starts_with("unavailable: /proc/cpuinfo"), "{}", host.cpu.vendor);
        assert!(host.memory.total_bytes.available().is_none());
        assert!(host.boot_id.available().is_none());
        assert!(host.usable_threads >= 1);
    }

    #[test]
    fn sockets_and_cores_are_counted_by_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let processor = |cpu, socket, core| {
            format!(
                "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: X\n\
                 stepping\t: 8\ncpu MHz\t\t: 2000.5\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n"
            )
        };
        // Two sockets of two cores, two threads each; core numbers repeat on the second socket.
        let info: String = (0..8).map(|cpu| processor(cpu, cpu / 4, cpu % 2)).collect();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/cpuinfo"), info).unwrap();
        let cpu = Cpu::read_from(&SystemFiles::under(dir.path()));
        assert_eq!(cpu.threads_online, Reading::Available(8));
        assert_eq!(cpu.sockets, Reading::Available(2));
        assert_eq!(cpu.cores, Reading::Available(4));
        assert_eq!((cpu.family, cpu.model), (Reading::Available(6), Reading::Available(143)));
        assert_eq!(cpu.model_name, Reading::Available("X".to_string()));
        assert_eq!(cpu.current_hz, Reading::Available(2_000_500_000));
        assert!(cpu.governor.to_string().contains("scaling_governor"), "{}", cpu.governor);
    }

    #[test]
    fn the_chosen_word_is_the_bracketed_one() {
        assert_eq!(bracketed("always [madvise] never").as_deref(), Ok("madvise"));
        assert!(bracketed("always madvise").is_err());
    }
}
