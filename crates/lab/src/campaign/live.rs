//! The world: arm processes of real binaries, this host's quietness and ceilings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tare_core::{Fault, Reading};
use tare_evidence::Utc;
use tare_evidence::floor::Ceiling;
use tare_probe::ceilings::{Sampled, Sampler, past_caches};
use tare_probe::{Host, Quietness};

use crate::arm::process::{ArmProcess, GoOn, Lost};
use crate::arm::protocol::{Answer, Ask, Judged, Load};
use crate::build_info::file_sha256;
use crate::campaign::bench::{Bench, CeilingPass, LiveArm};
use crate::clock::Baton;
use crate::facts::ArmFacts;
use crate::floor::CeilingKind;
use crate::host::device_ceilings;
use crate::on::On;
use crate::study::ArmSpec;
use crate::work::ClockedRequest;

/// How long is looked for others before a round.
const QUIET_WINDOW: Duration = Duration::from_millis(100);
/// Length of a turn of a ceiling arm: some passes over the buffer.
const SAMPLE_NS: u64 = 300_000_000;
/// Bytes of the read ceiling when an arm does not say what it streams.
const UNKNOWN_STREAM: u64 = 256 << 20;

/// One arm as it is started: which binary, which model.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// The arm.
    pub spec: ArmSpec,
    /// The binary that runs it.
    pub binary: PathBuf,
    /// The model, resolved: a path or `synthetic:NAME`.
    pub model: String,
}

/// The world of a campaign on this host.
pub struct LiveBench {
    starts: Vec<Start>,
    /// Where every arm computes.
    on: On,
    requests: Vec<ClockedRequest>,
    host: Host,
    go_on: GoOn,
    /// Whether an arm reads from memory: the buffer is filled once and kept.
    reads: bool,
    sampler: Option<Result<Sampler, String>>,
    sources: BTreeMap<String, String>,
}

impl std::fmt::Debug for LiveBench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveBench").field("starts", &self.starts).finish_non_exhaustive()
    }
}

impl LiveBench {
    /// A world in which `starts` run `requests` together and arms measure `ceilings`; `kernels` is the folder of kernels that were compiled for a device.
    ///
    /// # Errors
    /// When a binary or a model file cannot be read, or the arms name no backend that there is.
    pub fn new(
        starts: Vec<Start>,
        (requests, ceilings): (Vec<ClockedRequest>, &[CeilingKind]),
        host: Host,
        kernels: &Path,
        go_on: GoOn,
    ) -> Result<Self, Fault> {
        let sources = sources(&starts)?;
        let on = On::named(starts.first().map_or("cpu", |s| s.spec.backend()), kernels)?;
        Ok(Self {
            starts,
            on,
            requests,
            host,
            go_on,
            reads: ceilings.contains(&CeilingKind::Read),
            sampler: None,
            sources,
        })
    }

    /// What identifies each arm's binary and model file, by label.
    pub fn sources(&self) -> &BTreeMap<String, String> {
        &self.sources
    }
}

/// The digest of every binary, and length and time of every model file: their values are in the facts of each round.
fn sources(starts: &[Start]) -> Result<BTreeMap<String, String>, Fault> {
    let fault =
        |path: &Path, e: std::io::Error| Fault::new(path.display().to_string(), "a file to read", e.to_string());
    let mut digests = BTreeMap::<&Path, String>::new();
    let mut out = BTreeMap::new();
    for start in starts {
        let binary = match digests.get(start.binary.as_path()) {
            Some(known) => known.clone(),
            None => {
                let digest = file_sha256(&start.binary).map_err(|e| fault(&start.binary, e))?;
                digests.insert(&start.binary, digest.clone());
                digest
            }
        };
        let path = Path::new(&start.model);
        let model = if path.exists() {
            let meta = std::fs::metadata(path).map_err(|e| fault(path, e))?;
            let changed = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_nanos());
            format!("{} bytes, changed at {changed:?}", meta.len())
        } else {
            start.model.clone()
        };
        out.insert(start.spec.label.clone(), format!("binary {binary}, model {model}"));
    }
    Ok(out)
}

impl Bench for LiveBench {
    fn start(&mut self, arm: usize) -> Result<Box<dyn LiveArm>, Lost> {
        let start = &self.starts[arm];
        let (mut process, _) = ArmProcess::start(&start.binary, self.go_on.clone())?;
        let load = Load { arm: start.spec.clone(), model: start.model.clone(), request: self.requests.clone() };
        match process.ask(&Ask::Load(Box::new(load)))? {
            Answer::Loaded(facts) => Ok(Box::new(Live { process, facts: *facts })),
            other => Err(unexpected(&other)),
        }
    }

    fn quietness(&mut self) -> Quietness {
        Quietness::observe(QUIET_WINDOW)
    }

    fn ceiling(&mut self, kind: CeilingKind, facts: &ArmFacts) -> CeilingPass {
        if let On::Cuda(config) = &self.on {
            // Measured by a context that is gone again before an arm begins.
            let measured = Reading::from(tare_cuda::ceilings::measure(config));
            return of_device(kind, device_ceilings(&measured));
        }
        let none = |why: &str| CeilingPass {
            kind,
            threads: facts.threads as u32,
            working_set_bytes: 0,
            pages: "none".to_string(),
            samples: Reading::unavailable(why),
        };
        let streamed = facts.streamed_bytes.available().copied().unwrap_or(UNKNOWN_STREAM);
        let (host, reads) = (&self.host, self.reads);
        let sampler = self.sampler.get_or_insert_with(|| {
            let bytes = if reads { past_caches(host, streamed)? } else { 0 };
            Sampler::new(host, facts.threads, bytes, SAMPLE_NS)
        });
        let sampler = match sampler {
            Ok(sampler) => sampler,
            Err(why) => return none(why),
        };
        let of = |samples: Vec<Sampled>| samples.into_iter().map(|s| (s.amount, s.ns)).collect::<Vec<_>>();
        let (working_set_bytes, pages, samples) = match kind {
            CeilingKind::Read => (sampler.bytes(), pages(sampler), Reading::Available(of(sampler.read()))),
            CeilingKind::Fma => (0, "none: registers".to_string(), Reading::Available(of(sampler.multiply_add()))),
            CeilingKind::Tiles => (0, "none: cache".to_string(), sampler.multiply_tiles().map(of)),
        };
        CeilingPass { kind, threads: sampler.threads() as u32, working_set_bytes, pages, samples }
    }

    fn changed(&mut self) -> Option<String> {
        match sources(&self.starts) {
            Err(f) => Some(f.to_string()),
            Ok(now) => {
                let other = now.iter().find(|(label, source)| self.sources.get(*label) != Some(source));
                other.map(|(label, source)| {
                    let was = self.sources.get(label).map_or("unknown", String::as_str);
                    format!("{label} was changed while it was measured: {was}, now {source}")
                })
            }
        }
    }

    fn now(&mut self) -> Result<Utc, Fault> {
        now()
    }
}

/// How the buffer of the read ceiling lies.
fn pages(sampler: &Sampler) -> String {
    match sampler.huge_bytes() {
        Reading::Available(bytes) => format!("{bytes} bytes in huge pages"),
        Reading::Unavailable { why } => format!("unknown: {why}"),
    }
}

/// One of the ceilings of a device.
fn of_device(kind: CeilingKind, all: Vec<Ceiling>) -> CeilingPass {
    let found = all.into_iter().find(|c| c.name == kind.ceiling());
    let unknown = || Reading::unavailable("the device has no such ceiling");
    CeilingPass {
        kind,
        threads: 1,
        working_set_bytes: found.as_ref().map_or(0, |c| c.working_set_bytes),
        pages: "memory of the device".to_string(),
        samples: found
            .map_or_else(unknown, |c| c.samples.map(|all| all.into_iter().map(|s| (s.amount, s.ns)).collect())),
    }
}

/// The time of day, in whole seconds.
///
/// # Errors
/// When the host's clock is before 1970 or beyond the calendar.
pub fn now() -> Result<Utc, Fault> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.ok().and_then(|d| i64::try_from(d.as_secs()).ok());
    Utc::from_unix_seconds(seconds.ok_or_else(|| Fault::new("clock", "a time after 1970", "an earlier one"))?)
}

/// A live arm behind its pipes.
#[derive(Debug)]
struct Live {
    process: ArmProcess,
    facts: ArmFacts,
}

impl Live {
    fn tell(&mut self, ask: &Ask) -> Result<(), Lost> {
        match self.process.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> Lost {
    let shown: String = format!("{answer:?}").chars().take(200).collect();
    Lost::Child(format!("it answered something else: {shown}"))
}

impl LiveArm for Live {
    fn facts(&self) -> &ArmFacts {
        &self.facts
    }
    fn warm_up(&mut self, tokens: usize) -> Result<(), Lost> {
        self.tell(&Ask::WarmUp { tokens })
    }
    fn prefill(&mut self) -> Result<(), Lost> {
        self.tell(&Ask::Prefill)
    }
    fn decode(&mut self, tokens: usize, baton: Baton) -> Result<(), Lost> {
        self.tell(&Ask::Decode { tokens, returned: baton == Baton::Returned })
    }
    fn finish(&mut self) -> Result<(), Lost> {
        self.tell(&Ask::Finish)
    }
    fn rest(&mut self) -> Result<(), Lost> {
        self.tell(&Ask::Rest)
    }
    fn judge(&mut self, full: bool) -> Result<Judged, Lost> {
        match self.process.ask(&Ask::Judge { full })? {
            Answer::Judged(judged) => Ok(*judged),
            other => Err(unexpected(&other)),
        }
    }
}
