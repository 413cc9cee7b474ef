//! An engine behind its shim, as what runs the requests of an arm.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tare_core::{Fault, Reading};
use tare_evidence::identity::Peer;

use super::class::Declared;
use super::install::found;
use super::process::Shim;
use super::registry::{Entry, entry};
use super::tune::{Frozen, Place};
use crate::LabError;
use crate::runner::{Drawn, Ended, Runner, Step, Token};
use crate::work::ClockedRequest;

/// How long a shim may take before it counts as hung.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For loading and packing.
    pub load: Duration,
    /// For the prefix and the prompt.
    pub prefill: Duration,
    /// For one token; a turn may take as many of these as it has tokens.
    pub token: Duration,
    /// For everything else.
    pub other: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { load: s(900), prefill: s(900), token: s(30), other: s(60) }
    }
}

/// What a shim loads.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// File or folder of the model.
    pub model: std::path::PathBuf,
    /// Threads that compute.
    pub threads: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Sequences that run together.
    pub sequences: usize,
    /// Settings of the engine; what is not named is the engine's default.
    pub settings: Map<String, Value>,
}

/// What a shim answers once it has loaded a model.
#[derive(Clone, Debug, Deserialize)]
struct Loaded {
    name: String,
    version: String,
    class: Option<Declared>,
    streamed_bytes: Option<u64>,
    /// Whether it gives out the logit of each token; one that is missing then is a wrong one.
    logits: Option<bool>,
    #[serde(default)]
    proof: Vec<String>,
    #[serde(default)]
    settings: Value,
}

/// An engine behind its shim. Its process ends when this is dropped.
#[derive(Debug)]
pub struct PeerRunner {
    shim: Shim,
    limits: Limits,
    loaded: Loaded,
    class: Result<String, Fault>,
    settings: Value,
    threads: usize,
    sequences: usize,
    fast_marks: &'static [&'static str],
    resident: Reading<u64>,
}

impl PeerRunner {
    /// Starts the installed peer `name` on `model` for `sequences` that run together, with its tuned settings where they
    /// were frozen for this host, this file and this number of threads, and with its defaults otherwise;
    /// [`Self::identity`] says which.
    ///
    /// # Errors
    /// When the peer cannot be used, the file cannot be read, or the engine does not load it.
    pub fn open(
        name: &str,
        home: &Path,
        model: &Path,
        (threads, context): (usize, usize),
        sequences: usize,
    ) -> Result<Self, LabError> {
        let entry = entry(name)?;
        entry.runs_together(sequences)?;
        let place = Place::of(entry, home, model, threads)?;
        let frozen = Frozen::read(&place)?;
        let (settings, threads) = match &frozen {
            Some(f) => (f.settings.clone(), f.threads),
            None => (Map::new(), threads),
        };
        let load = Load { model: model.into(), threads, context, sequences, settings };
        let mut runner = Self::installed(entry, home, &load)?;
        let tuned = frozen.map_or(Value::Null, |f| json!({ "sha256": f.sha256, "seconds": f.budget_seconds }));
        runner.settings["tuned"] = tuned;
        runner.settings["file_sha256"] = place.model_sha256.into();
        Ok(runner)
    }

    /// Starts the installed peer with exactly these settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn installed(entry: &'static Entry, home: &Path, load: &Load) -> Result<Self, LabError> {
        let here = match found(entry, home) {
            Reading::Available(here) => here,
            Reading::Unavailable { why } => {
                return Err(Fault::new(format!("peer {}", entry.name), "an installed engine", why).into());
            }
        };
        let mut runner = Self::start(entry.name, here.command(), load, Limits::default())?;
        runner.settings["shim_sha256"] = here.shim_sha256.into();
        runner.settings["package"] = entry.version.into();
        runner.settings["without"] = json!(entry.without);
        runner.fast_marks = entry.fast_marks;
        if entry.backend != "cpu" && !runner.proven() {
            let expected = format!("a log that names {}", entry.fast_marks.join(" or "));
            return Err(runner.wrong("load", expected, "none: the device does not have its weights".into()));
        }
        Ok(runner)
    }

    /// Starts `command`, which speaks the protocol, and loads.
    ///
    /// # Errors
    /// When it does not start, answer or load.
    pub fn start(name: &str, command: Command, load: &Load, limits: Limits) -> Result<Self, LabError> {
        let mut shim = Shim::start(name, command)?;
        let ask = json!({
            "op": "load",
            "model": load.model,
            "threads": load.threads,
            "context": load.context,
            "sequences": load.sequences,
            "settings": load.settings,
        });
        let answer = shim_answer(&mut shim, &ask, limits.load)?;
        let loaded: Loaded = read(&shim, "load", answer)?;
        let undeclared =
            || Fault::new(format!("peer {name}"), "a declared class", "none: its answers cannot be judged");
        let class = loaded.class.as_ref().ok_or_else(undeclared).and_then(Declared::name);
        let mut settings = json!({
            "engine": loaded.settings,
            "threads": load.threads,
            "context": load.context,
            "class": loaded.class,
        });
        if load.sequences > 1 {
            settings["sequences"] = load.sequences.into();
        }
        let resident = Reading::unavailable("no request has ended");
        let (threads, sequences) = (load.threads, load.sequences);
        Ok(Self { shim, limits, loaded, class, settings, threads, sequences, fast_marks: &[], resident })
    }

    /// The class under which `gates.toml` has its limits.
    ///
    /// # Errors
    /// When the engine does not declare one: its answers cannot be judged.
    pub fn class(&self) -> Result<&str, LabError> {
        self.class.as_deref().map_err(|f| f.clone().into())
    }

    /// The class in numbers; none when the engine does not declare it.
    pub fn declared(&self) -> Option<&Declared> {
        self.loaded.class.as_ref()
    }

    /// Name, version and everything that it was started with.
    pub fn identity(&self) -> Peer {
        Peer { name: self.loaded.name.clone(), version: self.loaded.version.clone(), settings: self.settings.clone() }
    }

    /// Threads that compute: tuning may have chosen fewer than it was offered.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Lines of its own log that say which kernels and buffers it chose.
    pub fn proof(&self) -> &[String] {
        &self.loaded.proof
    }

    /// What a reader must be told when its weights are packed and none of those lines proves its packed kernels.
    pub fn doubt(&self) -> Option<String> {
        if self.declared().is_some_and(|d| d.weight_bits >= 16.0) {
            return None;
        }
        let marks = self.fast_marks;
        (!marks.is_empty() && !self.proven())
            .then(|| format!("the log of {} names none of: {}", self.loaded.name, marks.join(", ")))
    }

    /// Whether a line of its log has any of the words that prove its fast path.
    fn proven(&self) -> bool {
        let named = |mark: &&str| self.loaded.proof.iter().any(|line| line.contains(*mark));
        self.fast_marks.iter().any(named)
    }

    /// What a reader must be told of how it was set up: nobody tuned it here, or it runs without something.
    pub fn reservations(&self) -> Vec<String> {
        let name = &self.loaded.name;
        let mut all = Vec::new();
        if self.settings["tuned"].is_null() {
            all.push(format!("{name} was not tuned here: it ran with its own defaults"));
        }
        let without: Vec<&str> =
            self.settings["without"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !without.is_empty() {
            all.push(format!("{name} ran without {}", without.join(", ")));
        }
        all.extend(self.doubt());
        all
    }

    /// Bytes of the matrices that it reads for one decoded token.
    pub fn streamed_bytes(&self) -> Reading<u64> {
        let missing = || Reading::unavailable(format!("{} does not say", self.loaded.name));
        self.loaded.streamed_bytes.map_or_else(missing, Reading::Available)
    }

    /// Resident memory of its process at the end of the last request.
    pub fn memory(&self) -> Reading<u64> {
        self.resident.clone()
    }

    /// A logit as it was sent: one that is missing where it was promised is no number, which no limit admits. Where
    /// nothing was promised, the gate sees that a run has fewer logits than ids.
    fn logit(&self, sent: Option<f32>) -> Option<f32> {
        match self.loaded.logits {
            Some(true) => Some(sent.unwrap_or(f32::NAN)),
            Some(false) => None,
            None => sent,
        }
    }

    /// Gives position and logits of each token of `ids`, a sequence of its own, to `row`. The shim writes them to `file`,
    /// which is removed again: a line is no place for millions of numbers.
    ///
    /// # Errors
    /// When the engine refuses, or what it wrote is not a row for each token.
    pub fn rows(&mut self, ids: &[u32], file: &Path, row: &mut dyn FnMut(usize, &[f32])) -> Result<(), LabError> {
        let ask = json!({ "op": "score", "ids": ids, "output": file });
        let answer = shim_answer(&mut self.shim, &ask, self.limits.prefill)?;
        let ScoreAnswer { rows, vocab } = read(&self.shim, "score", answer)?;
        let bytes = std::fs::read(file);
        drop(std::fs::remove_file(file));
        let bytes = bytes.map_err(|e| self.wrong("score", "a file of logits".into(), e.to_string()))?;
        let fits = rows == ids.len() && vocab > 0 && rows.checked_mul(vocab * 4) == Some(bytes.len());
        if !fits {
            let found = format!("{rows} rows of {vocab} in {} bytes", bytes.len());
            return Err(self.wrong("score", format!("{} rows of F32 logits", ids.len()), found));
        }
        let mut logits = vec![0.0; vocab];
        for (at, bytes) in bytes.chunks_exact(vocab * 4).enumerate() {
            logits.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(l, b)| *l = f32::from_le_bytes(*b));
            row(at, &logits);
        }
        Ok(())
    }

    fn wrong(&self, op: &str, expected: String, found: String) -> LabError {
        self.shim.fault(op, expected, found).into()
    }
}

fn shim_answer(shim: &mut Shim, ask: &Value, limit: Duration) -> Result<Value, LabError> {
    Ok(shim.ask(ask, limit)?)
}

/// An answer in its form.
fn read<T: for<'de> Deserialize<'de>>(shim: &Shim, op: &str, answer: Value) -> Result<T, LabError> {
    serde_json::from_value(answer).map_err(|e| shim.fault(op, "an answer of its form", e.to_string()).into())
}

/// One sequence alone has an id and a logit, several have lists.
#[derive(Deserialize)]
struct PrefillAnswer {
    setup_ns: u64,
    ns: u64,
    #[serde(default)]
    id: Option<u32>,
    #[serde(default)]
    logit: Option<f32>,
    #[serde(default)]
    ids: Vec<u32>,
    #[serde(default)]
    logits: Option<Vec<Option<f32>>>,
}

#[derive(Deserialize)]
struct DecodeAnswer {
    ids: Vec<u32>,
    logits: Option<Vec<Option<f32>>>,
    ns: Vec<u64>,
}

#[derive(Deserialize)]
struct ScoreAnswer {
    rows: usize,
    vocab: usize,
}

#[derive(Deserialize)]
struct FinishAnswer {
    release_ns: u64,
    cpu_ns: Option<u64>,
    rss_bytes: Option<u64>,
}

impl PeerRunner {
    /// One token of each sequence in each of the steps that took `ns`.
    ///
    /// # Errors
    /// When there are others than `steps` of each.
    fn add(
        &self,
        (op, steps): (&str, usize),
        (ids, logits): (Vec<u32>, Option<Vec<Option<f32>>>),
        ns: Vec<u64>,
        out: &mut Drawn,
    ) -> Result<(), LabError> {
        let tokens = steps * self.sequences;
        let logits = logits.unwrap_or_else(|| vec![None; ids.len()]);
        if ids.len() != tokens || ns.len() != steps || logits.len() != tokens {
            let found = format!("{} ids, {} times, {} logits", ids.len(), ns.len(), logits.len());
            return Err(self.wrong(op, format!("{tokens} tokens"), found));
        }
        let token = |(id, logit): (u32, Option<f32>)| Token { id, logit: self.logit(logit) };
        out.tokens.extend(ids.into_iter().zip(logits).map(token));
        out.steps.extend(ns.into_iter().map(|ns| Step { ns, device_ns: None }));
        Ok(())
    }
}

impl Runner for PeerRunner {
    fn prefill(&mut self, requests: &[ClockedRequest], out: &mut Drawn) -> Result<u64, LabError> {
        if requests.iter().any(|r| r.all_prompt_logits) {
            return Err(self.wrong("prefill", "the logits of the last token alone".into(), "a wish for all".into()));
        }
        if requests.len() != self.sequences {
            let expected = format!("{} sequences, for which it was loaded", self.sequences);
            return Err(self.wrong("prefill", expected, requests.len().to_string()));
        }
        let ask = match requests {
            [one] => json!({ "op": "prefill", "prefix": one.prefix, "prompt": one.prompt }),
            all => {
                let lists = |of: fn(&ClockedRequest) -> &[u32]| all.iter().map(of).collect::<Vec<_>>();
                json!({ "op": "prefill", "prefixes": lists(|r| &r.prefix), "prompts": lists(|r| &r.prompt) })
            }
        };
        let limit = self.limits.prefill.saturating_mul(requests.len() as u32);
        let answer = shim_answer(&mut self.shim, &ask, limit)?;
        let PrefillAnswer { setup_ns, ns, id, logit, ids, logits } = read(&self.shim, "prefill", answer)?;
        let drawn = match id {
            Some(id) => (vec![id], Some(vec![logit])),
            None => (ids, logits),
        };
        self.add(("prefill", 1), drawn, vec![ns], out)?;
        Ok(setup_ns)
    }

    fn decode(&mut self, steps: usize, out: &mut Drawn) -> Result<(), LabError> {
        let tokens = u32::try_from(steps * self.sequences).unwrap_or(u32::MAX);
        let limit = self.limits.token.saturating_mul(tokens);
        let answer = shim_answer(&mut self.shim, &json!({ "op": "decode", "tokens": steps }), limit)?;
        let DecodeAnswer { ids, logits, ns } = read(&self.shim, "decode", answer)?;
        self.add(("decode", steps), (ids, logits), ns, out)
    }

    fn finish(&mut self) -> Result<Ended, LabError> {
        let answer = shim_answer(&mut self.shim, &json!({ "op": "finish" }), self.limits.other)?;
        let FinishAnswer { release_ns, cpu_ns, rss_bytes } = read(&self.shim, "finish", answer)?;
        let given = |value: Option<u64>| {
            value.map_or_else(|| Reading::unavailable("the engine's shim does not say"), Reading::Available)
        };
        self.resident = given(rss_bytes);
        Ok(Ended {
            release_ns,
            main_thread_cpu_ns: given(cpu_ns),
            allocator_peak_bytes: Reading::unavailable("another engine's allocator is not counted"),
            rows: Reading::unavailable("another engine's rows are not counted"),
        })
    }

    fn rest(&mut self) -> Result<(), LabError> {
        shim_answer(&mut self.shim, &json!({ "op": "rest" }), self.limits.other).map(drop)
    }
}
