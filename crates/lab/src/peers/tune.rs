//! Tuning: every engine has the same number of seconds to find its settings, on a request that is never the measured
//! one, and is frozen afterwards.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tare_core::Fault;
use tare_core::digest::sha256_hex;
use tare_evidence::canonical;

use super::install::processor;
use super::registry::Entry;
use super::runner::{Load, PeerRunner};
use crate::LabError;
use crate::build_info::file_sha256;
use crate::digests::DigestStore;
use crate::runner::{Drawn, Runner};
use crate::work::{ClockedRequest, Lengths};

/// Seed of the tuning request's ids; measured requests are drawn from others.
pub const SEED: u64 = 7_919;
/// Lengths of the tuning request: other ones than those that are measured by default.
pub const LENGTHS: Lengths = Lengths { depth: 0, prompt_tokens: 96, output_tokens: 49 };

/// What settings are frozen for: an engine, a host, a file and a number of threads.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    peer: String,
    processor: String,
    most_threads: usize,
    /// Digest of the model's file, or of the names and sizes of a folder's files.
    pub model_sha256: String,
}

impl Place {
    /// The place for `entry` on `model` with at most `threads` threads on this host.
    ///
    /// # Errors
    /// When the model cannot be read.
    pub fn of(entry: &Entry, home: &Path, model: &Path, threads: usize) -> Result<Self, LabError> {
        let processor = processor(entry);
        let peer = format!("{} {}", entry.name, entry.version);
        let model_sha256 = DigestStore::at(home).of("file", model, || model_sha256(model))?;
        let key = sha256_hex(format!("{peer} {processor} {threads} {model_sha256}").as_bytes());
        let path = home.join("peers/tuned").join(format!("{}-{}.json", entry.name, &key[..16]));
        Ok(Self { path, peer, processor, most_threads: threads, model_sha256 })
    }

    /// Where the settings lie.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn model_sha256(model: &Path) -> Result<String, Fault> {
    let unreadable = |e: std::io::Error| {
        Fault::new(model.display().to_string(), "a model file or folder", e.to_string())
            .remedy("a peer reads files: `tare quantize` writes a synthetic model into one")
    };
    if !model.is_dir() {
        return file_sha256(model).map_err(unreadable);
    }
    let mut files: Vec<PathBuf> = fs::read_dir(model).map_err(unreadable)?.flatten().map(|e| e.path()).collect();
    files.sort();
    let mut all = String::new();
    for file in files.iter().filter(|f| f.is_file()) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        all += &format!("{name} {}\n", file_sha256(file).map_err(unreadable)?);
    }
    Ok(sha256_hex(all.as_bytes()))
}

/// Settings that were chosen, and everything that they were chosen by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frozen {
    /// Engine and version.
    pub peer: String,
    /// The processor.
    pub processor: String,
    /// Most threads that it might use.
    pub most_threads: usize,
    /// Digest of the model.
    pub model_sha256: String,
    /// Seed and lengths of the tuning request.
    pub seed: u64,
    /// See `seed`.
    pub lengths: Lengths,
    /// Seconds that all candidates had together.
    pub budget_seconds: f64,
    /// What was tried, in order.
    pub tried: Vec<Tried>,
    /// Threads that were chosen.
    pub threads: usize,
    /// Settings that were chosen.
    pub settings: Map<String, Value>,
    /// Canonical digest of everything else.
    pub sha256: String,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// Its settings.
    pub settings: Map<String, Value>,
    /// Its threads.
    pub threads: usize,
    /// Time of each request from end to end, the first left out.
    pub request_ns: Vec<u64>,
    /// Why it has no time, when it has none.
    pub refused: Option<String>,
}

impl Tried {
    /// Median of the requests, in ns.
    pub fn median_ns(&self) -> Option<u64> {
        let mut sorted = self.request_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

impl Frozen {
    /// The settings frozen at `place`, if there are any.
    ///
    /// # Errors
    /// When the file was edited or is for something else.
    pub fn read(place: &Place) -> Result<Option<Self>, Fault> {
        let bytes = match fs::read(&place.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(place.fault("a file that can be read", e.to_string())),
        };
        let read: Self = serde_json::from_slice(&bytes).map_err(|e| place.fault("tuned settings", e.to_string()))?;
        let expected = read.digest()?;
        if read.sha256 != expected {
            return Err(place.fault(format!("digest {expected}, as its contents have"), read.sha256));
        }
        let of = (&read.peer, &read.processor, read.most_threads, &read.model_sha256);
        if of != (&place.peer, &place.processor, place.most_threads, &place.model_sha256) {
            return Err(place.fault("settings for this engine, host, model and threads", format!("{of:?}")));
        }
        Ok(Some(read))
    }

    /// The settings frozen for what a held-out study measures: there, defaults are no denominator.
    ///
    /// # Errors
    /// When there are none, or as [`Self::read`].
    pub fn required(entry: &Entry, home: &Path, model: &Path, threads: usize) -> Result<Self, LabError> {
        let place = Place::of(entry, home, model, threads)?;
        Self::read(&place)?.ok_or_else(|| {
            let expected = format!("settings tuned for this host, this file and {threads} threads");
            let tune = format!("tare peers tune {} -m {} --threads {threads}", entry.name, model.display());
            Fault::new(format!("peer {}", entry.name), expected, "none")
                .remedy(format!("run `{tune}`, or give the study another role than held_out"))
                .into()
        })
    }

    fn digest(&self) -> Result<String, Fault> {
        let mut value = canonical::value_of(self)?;
        if let Value::Object(map) = &mut value {
            map.remove("sha256");
        }
        Ok(canonical::digest(&value))
    }

    fn write(&self, place: &Place) -> Result<(), Fault> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let part = place.path.with_extension(format!("{}.part", std::process::id()));
        let folder = place.path.parent().map_or(Ok(()), fs::create_dir_all);
        let done = folder.and_then(|()| fs::write(&part, text)).and_then(|()| fs::rename(&part, &place.path));
        done.map_err(|e| place.fault("a file that can be written", e.to_string()))
    }
}

impl Place {
    fn fault(&self, expected: impl Into<String>, found: impl Into<String>) -> Fault {
        Fault::new(self.path.display().to_string(), expected, found).remedy("remove it and run `tare peers tune` again")
    }
}

/// What is tuned.
#[derive(Debug)]
pub struct Tuning<'a> {
    /// The engine.
    pub entry: &'static Entry,
    /// Tare's folder.
    pub home: &'a Path,
    /// The model.
    pub model: &'a Path,
    /// Most threads.
    pub threads: usize,
    /// Vocabulary of the model, which the request is drawn from.
    pub vocabulary: usize,
    /// Time for all candidates together, loading left out.
    pub budget: Duration,
}

impl Tuning<'_> {
    /// Tries every candidate for its share of the budget and freezes the settings of the fastest. A candidate that the
    /// engine refuses is kept with the reason; the first of equals wins.
    ///
    /// `go_on` is told the candidate and asked before each request: false ends the tuning with nothing frozen.
    ///
    /// # Errors
    /// When the engine cannot be started with its defaults, or `go_on` said no.
    pub fn run(&self, go_on: &mut dyn FnMut(usize, &Map<String, Value>) -> bool) -> Result<Frozen, LabError> {
        let place = Place::of(self.entry, self.home, self.model, self.threads)?;
        let request = ClockedRequest::drawn(LENGTHS, self.vocabulary, SEED)?;
        let share = self.budget / u32::try_from(self.entry.candidates.len().max(1)).unwrap_or(u32::MAX);
        let mut tried = Vec::new();
        for (n, text) in self.entry.candidates.iter().enumerate() {
            let (settings, threads) = candidate(text, self.threads)?;
            let mut ask = || if go_on(n, &settings) { Ok(()) } else { Err(LabError::Interrupted) };
            ask()?;
            let load = Load {
                model: self.model.into(),
                threads,
                context: request.total_tokens(),
                sequences: 1,
                settings: settings.clone(),
            };
            let timed = PeerRunner::installed(self.entry, self.home, &load)
                .and_then(|mut runner| time(&mut runner, &request, share, &mut ask));
            let (request_ns, refused) = match timed {
                Ok(ns) => (ns, None),
                Err(LabError::Interrupted) => return Err(LabError::Interrupted),
                Err(e) if n == 0 => return Err(e),
                Err(e) => (vec![], Some(e.to_string())),
            };
            tried.push(Tried { settings, threads, request_ns, refused });
        }
        let frozen = self.freeze(&place, tried)?;
        frozen.write(&place)?;
        Ok(frozen)
    }

    fn freeze(&self, place: &Place, tried: Vec<Tried>) -> Result<Frozen, Fault> {
        let timed = tried.iter().filter_map(|t| t.median_ns().map(|ns| (ns, t)));
        let Some((_, best)) = timed.min_by_key(|(ns, _)| *ns) else {
            return Err(Fault::new(self.entry.name, "a candidate that runs", "none"));
        };
        let mut frozen = Frozen {
            peer: place.peer.clone(),
            processor: place.processor.clone(),
            most_threads: place.most_threads,
            model_sha256: place.model_sha256.clone(),
            seed: SEED,
            lengths: LENGTHS,
            budget_seconds: self.budget.as_secs_f64(),
            threads: best.threads,
            settings: best.settings.clone(),
            tried,
            sha256: String::new(),
        };
        frozen.sha256 = frozen.digest()?;
        Ok(frozen)
    }
}

/// The settings of a candidate, and its threads: `"threads": "half"` is no setting of the engine's.
fn candidate(text: &str, most: usize) -> Result<(Map<String, Value>, usize), Fault> {
    let mut settings: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| Fault::new("candidate", "a JSON object", e.to_string()))?;
    let halved = settings.remove("threads").is_some();
    Ok((settings, if halved { most.div_ceil(2) } else { most }))
}

/// Times of whole requests until `share` is spent, one untimed before them; at least one.
fn time(
    runner: &mut PeerRunner,
    request: &ClockedRequest,
    share: Duration,
    ask: &mut dyn FnMut() -> Result<(), LabError>,
) -> Result<Vec<u64>, LabError> {
    let mut all = Vec::new();
    let start = Instant::now();
    loop {
        ask()?;
        let mut drawn = Drawn::with_room(request.output_tokens, 1);
        let setup_ns = runner.prefill(std::slice::from_ref(request), &mut drawn)?;
        runner.decode(request.output_tokens - 1, &mut drawn)?;
        let ended = runner.finish()?;
        let steps: u64 = drawn.steps.iter().map(|s| s.ns).sum();
        all.push(setup_ns + steps + ended.release_ns);
        if all.len() > 1 && start.elapsed() >= share {
            all.remove(0);
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(settings: &str, request_ns: &[u64]) -> Tried {
        let (settings, threads) = candidate(settings, 4).unwrap();
        Tried { settings, threads, request_ns: request_ns.to_vec(), refused: None }
    }

    fn tuned(home: &Path, model: &Path, all: Vec<Tried>) -> (Place, Frozen) {
        let entry = super::super::entry("llama.cpp").unwrap();
        let tuning = Tuning { entry, home, model, threads: 4, vocabulary: 1000, budget: Duration::from_secs(60) };
        let place = Place::of(entry, home, model, 4).unwrap();
        let frozen = tuning.freeze(&place, all).unwrap();
        (place, frozen)
    }

    #[test]
    fn the_fastest_is_frozen_and_the_first_of_equals() {
        let home = tempfile::tempdir().unwrap();
        let model = home.path().join("m.gguf");
        fs::write(&model, "weights").unwrap();
        let all = vec![
            tried("{}", &[9, 9, 9]),
            tried(r#"{"flash":"off"}"#, &[5, 900, 4]),
            tried(r#"{"threads":"half"}"#, &[5, 5, 5]),
            Tried { refused: Some("no".into()), ..tried(r#"{"poll":1}"#, &[]) },
        ];
        let (place, frozen) = tuned(home.path(), &model, all);
        assert_eq!((frozen.threads, frozen.settings["flash"].as_str()), (4, Some("off")), "medians are 9, 5 and 5");
        assert_eq!(frozen.tried[2].threads, 2);
        assert_eq!(Frozen::read(&place).unwrap(), None, "nothing is kept before it is written");
        let required =
            |threads| Frozen::required(super::super::entry("llama.cpp").unwrap(), home.path(), &model, threads);
        let said = required(4).unwrap_err().to_string();
        assert!(said.contains("tare peers tune llama.cpp -m") && said.contains("--threads 4"), "{said}");
        frozen.write(&place).unwrap();
        assert_eq!(required(4).unwrap(), frozen);
        assert!(required(3).is_err(), "tuned for another number of threads");
        assert_eq!(Frozen::read(&place).unwrap(), Some(frozen));

        let text = fs::read_to_string(place.path()).unwrap();
        fs::write(place.path(), text.replace("\"off\"", "\"on\"")).unwrap();
        assert!(Frozen::read(&place).unwrap_err().to_string().contains("digest"), "an edited setting");
        fs::write(&model, "other weights").unwrap();
        let other = Place::of(super::super::entry("llama.cpp").unwrap(), home.path(), &model, 4).unwrap();
        assert_ne!(other.path(), place.path(), "another file is tuned anew");
        fs::write(place.path(), &text).unwrap();
        fs::rename(place.path(), other.path()).unwrap();
        assert!(Frozen::read(&other).unwrap_err().to_string().contains("this engine, host, model"));
    }

    #[test]
    fn nothing_that_runs_is_no_tuning() {
        let home = tempfile::tempdir().unwrap();
        let model = home.path().join("m.gguf");
        fs::write(&model, "weights").unwrap();
        let entry = super::super::entry("llama.cpp").unwrap();
        let tuning = Tuning {
            entry,
            home: home.path(),
            model: &model,
            threads: 1,
            vocabulary: 1000,
            budget: Duration::from_secs(1),
        };
        let place = Place::of(entry, home.path(), &model, 1).unwrap();
        assert!(tuning.freeze(&place, vec![tried("{}", &[])]).is_err());
        assert!(Place::of(entry, home.path(), &home.path().join("none"), 1).is_err());
        let measured = ClockedRequest::drawn(LENGTHS, 1000, 0).unwrap();
        assert_ne!(ClockedRequest::drawn(LENGTHS, 1000, SEED).unwrap().prompt, measured.prompt);
    }
}
