//! What a campaign keeps while it runs: one line a finished thing, on disk before the next thing begins.
//!
//! A journal is a file of JSON lines in the user's data folder, named by its campaign. It holds everything that the
//! closing needs, so that a campaign can be closed by another process than the one that began it. A line that a crash cut
//! short is the last one and is left out when it is read.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tare_core::Fault;
use tare_evidence::Utc;
use tare_evidence::study::StudyPlan;
use tare_probe::Quietness;

use crate::arm::protocol::Judged;
use crate::campaign::bench::CeilingTurn;
use crate::facts::ArmFacts;
use crate::study::Study;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// The first line: what was decided before the first sample.
    Opened(Box<Opened>),
    /// Another attempt begins.
    Attempt(Attempt),
    /// What a slot said about itself when it first ran.
    Facts {
        /// The slot.
        slot: String,
        /// What it said.
        facts: Box<ArmFacts>,
    },
    /// The baseline alone, before the first round or after the last.
    Control(Box<Control>),
    /// A finished round.
    Round(Box<RoundLog>),
    /// An attempt ended before the planned rounds were there.
    Stopped(Stopped),
    /// Every planned round is there.
    Completed {
        /// The attempt.
        attempt: u32,
        /// When.
        at: Utc,
    },
    /// The campaign is closed; its documents are in the ledger.
    Closed {
        /// When.
        at: Utc,
    },
}

/// What was decided before the first sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// Name of the campaign.
    pub campaign: String,
    /// When it was opened.
    pub at: Utc,
    /// The study, whole.
    pub study: Study,
    /// Digest of the study.
    pub study_sha256: String,
    /// The study as its documents have it.
    pub plan: StudyPlan,
    /// Digest of the host's class.
    pub host_class_sha256: String,
    /// Digest of each arm's binary and model, by label.
    pub sources: BTreeMap<String, String>,
    /// Digest of the binary that runs the campaign.
    pub binary_sha256: String,
    /// Folder of the ledger into which its documents go.
    pub ledger: PathBuf,
}

/// An attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// When it began.
    pub at: Utc,
    /// Id of its opening in the ledger.
    pub opening: String,
}

/// The baseline alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The attempt.
    pub attempt: u32,
    /// Before the first round or after the last.
    pub when: When,
    /// What else ran.
    pub quiet: Quietness,
    /// What came of it.
    pub judged: Judged,
}

/// When a control runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Before the first round of an attempt.
    Start,
    /// After the last round.
    End,
}

/// A finished round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundLog {
    /// The attempt.
    pub attempt: u32,
    /// From 0.
    pub round: u32,
    /// Slots in the order in which they began.
    pub order: Vec<String>,
    /// What else ran just before.
    pub quiet: Quietness,
    /// Turns of the ceiling arms, in order.
    pub ceilings: Vec<CeilingTurn>,
    /// What came of each slot, in the order of the slots.
    pub slots: Vec<Judged>,
    /// How long all of it took, in nanoseconds.
    pub spent_ns: u64,
}

/// Why an attempt ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stopped {
    /// The attempt.
    pub attempt: u32,
    /// When.
    pub at: Utc,
    /// The round that was under way, which has no samples.
    pub round: u32,
    /// Why.
    pub why: String,
    /// Whether another attempt may go on: not when what was measured is no longer the same.
    pub resumable: bool,
    /// Whether a person stopped it.
    pub interrupted: bool,
}

/// What a folder has of campaigns that are not closed.
#[derive(Debug, Default)]
pub struct Unfinished {
    /// The newest one of the wanted study, else the newest.
    pub journal: Option<Journal>,
    /// Why others cannot be read: another build wrote them.
    pub unreadable: Vec<Fault>,
}

/// A journal that is open for one campaign; others cannot open it meanwhile.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: Vec<Line>,
}

impl Journal {
    /// A new journal in `folder`, named by its campaign.
    ///
    /// # Errors
    /// When it is there already or cannot be written.
    pub fn create(folder: &Path, opened: Opened) -> Result<Self, Fault> {
        std::fs::create_dir_all(folder).map_err(|e| at(folder, "a folder that can be made", &e))?;
        let path = folder.join(format!("{}.jsonl", opened.campaign));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.map_err(|e| at(&path, "a new file", &e))?;
        lock(&file, &path)?;
        let mut journal = Self { path, file, lines: Vec::new() };
        journal.add(Line::Opened(Box::new(opened)))?;
        Ok(journal)
    }

    /// The journals in `folder` that are not closed: the newest of the study with digest `study_sha256`, else the newest.
    ///
    /// # Errors
    /// When a file cannot be opened, or another process has it.
    pub fn unfinished(folder: &Path, study_sha256: &str) -> Result<Unfinished, Fault> {
        let listed = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut paths: Vec<PathBuf> = listed.filter(|p| p.extension().is_some_and(|e| e == "jsonl")).collect();
        paths.sort_unstable();
        let mut found = Unfinished::default();
        for path in paths.into_iter().rev() {
            let journal = match Self::open(path)? {
                None => continue,
                Some(Ok(journal)) => journal,
                Some(Err(fault)) => {
                    found.unreadable.push(fault);
                    continue;
                }
            };
            if journal.opened().is_ok_and(|o| o.study_sha256 == study_sha256) {
                found.journal = Some(journal);
                break;
            }
            found.journal.get_or_insert(journal);
        }
        Ok(found)
    }

    /// The journal at `path`, locked; none when its campaign is closed or was never opened, a fault when it cannot be read.
    fn open(path: PathBuf) -> Result<Option<Result<Self, Fault>>, Fault> {
        let file = OpenOptions::new().read(true).append(true).open(&path);
        let mut file = file.map_err(|e| at(&path, "a journal to append to", &e))?;
        if is_closed(&text_of(&mut file, &path)?) {
            return Ok(None);
        }
        lock(&file, &path)?;
        // Again, since its owner may have added to it before the lock was ours.
        let text = text_of(&mut file, &path)?;
        if is_closed(&text) {
            return Ok(None);
        }
        let lines = match read(&text) {
            Ok(lines) => lines,
            Err(fault) => return Ok(Some(Err(fault.within(path.display())))),
        };
        if !matches!(lines.first(), Some(Line::Opened(_))) {
            return Ok(None);
        }
        // What a crash cut short is cut off, so that the next line begins a line.
        let whole = text.rfind('\n').map_or(0, |i| i + 1);
        file.set_len(whole as u64).map_err(|e| at(&path, "a file that can be cut", &e))?;
        Ok(Some(Ok(Self { path, file, lines })))
    }

    /// Removes the file: nothing ran, and nothing will.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn abandon(self) -> Result<(), Fault> {
        std::fs::remove_file(&self.path).map_err(|e| at(&self.path, "a file that can be removed", &e))
    }

    /// Adds a line and waits until it is on disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, line: Line) -> Result<(), Fault> {
        let text = serde_json::to_string(&line).map_err(|e| Fault::new("journal", "a JSON form", e.to_string()))?;
        let written = writeln!(self.file, "{text}").and_then(|()| self.file.sync_data());
        written.map_err(|e| at(&self.path, "a file that can be written", &e))?;
        self.lines.push(line);
        Ok(())
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was decided before the first sample.
    ///
    /// # Errors
    /// When the first line is another: the file was edited.
    pub fn opened(&self) -> Result<&Opened, Fault> {
        match self.lines.first() {
            Some(Line::Opened(o)) => Ok(o),
            _ => Err(Fault::new(self.path.display().to_string(), "an opening in the first line", "another line")),
        }
    }

    /// Whether `now` can go on with it: the same study on the same class of host, from the same binaries and models, by
    /// the same binary into the same ledger.
    ///
    /// # Errors
    /// What is another, or why no attempt can go on.
    pub fn can_go_on(&self, now: &Opened) -> Result<(), Fault> {
        let then = self.opened()?;
        let at = self.path.display().to_string();
        if let Some(s) = self.stops().find(|s| !s.resumable) {
            return Err(Fault::new(at, "a campaign that can go on", format!("one that ended: {}", s.why))
                .remedy("run the study anew"));
        }
        let same = |what: &str, a: &str, b: &str| {
            if a == b {
                return Ok(());
            }
            let fault = Fault::new(&at, format!("{what} {a}, with which it began"), b);
            Err(fault.remedy("go on with what it began with, or run the study anew"))
        };
        same("a study with digest", &then.study_sha256, &now.study_sha256)?;
        same("a host of class", &then.host_class_sha256, &now.host_class_sha256)?;
        for (label, source) in &then.sources {
            let found = now.sources.get(label).map_or("no such arm", String::as_str);
            same(&format!("`{label}` from"), source, found)?;
        }
        same("a campaign of binary", &then.binary_sha256, &now.binary_sha256)?;
        same("the ledger", &then.ledger.to_string_lossy(), &now.ledger.to_string_lossy())
    }

    /// The attempts so far.
    pub fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.lines.iter().filter_map(|l| if let Line::Attempt(a) = l { Some(a) } else { None })
    }

    /// The finished rounds, in order.
    pub fn rounds(&self) -> impl Iterator<Item = &RoundLog> {
        self.lines.iter().filter_map(|l| if let Line::Round(r) = l { Some(&**r) } else { None })
    }

    /// The controls.
    pub fn controls(&self) -> impl Iterator<Item = &Control> {
        self.lines.iter().filter_map(|l| if let Line::Control(c) = l { Some(&**c) } else { None })
    }

    /// Why attempts ended early.
    pub fn stops(&self) -> impl Iterator<Item = &Stopped> {
        self.lines.iter().filter_map(|l| if let Line::Stopped(s) = l { Some(s) } else { None })
    }

    /// Whether every planned round is there.
    pub fn completed(&self) -> bool {
        self.lines.iter().any(|l| matches!(l, Line::Completed { .. }))
    }

    /// What a slot said about itself when it first ran.
    pub fn facts(&self, slot: &str) -> Option<&ArmFacts> {
        let of = |l: &Line| matches!(l, Line::Facts { slot: s, .. } if s == slot);
        self.lines
            .iter()
            .find(|l| of(l))
            .and_then(|l| if let Line::Facts { facts, .. } = l { Some(&**facts) } else { None })
    }
}

fn text_of(file: &mut File, path: &Path) -> Result<String, Fault> {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
    read.map_err(|e| at(path, "a readable journal", &e))?;
    Ok(text)
}

/// Whether the last line says that the campaign is over, in whatever form another build wrote the lines before it.
fn is_closed(text: &str) -> bool {
    let line = text.lines().last().and_then(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    line.is_some_and(|l| l["line"] == "closed")
}

/// Every whole line; a last line without an end is what a crash left.
fn read(text: &str) -> Result<Vec<Line>, Fault> {
    let whole = text.rfind('\n').map_or("", |i| &text[..i]);
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| {
            Fault::new(format!("line {}", i + 1), "a line of a journal of this build", e.to_string())
                .remedy("go on with the build that began it, or remove the file")
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

fn lock(file: &File, path: &Path) -> Result<(), Fault> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(Fault::new(path.display().to_string(), "a campaign that nobody runs", "another process runs it"))
        }
        Err(TryLockError::Error(e)) => Err(at(path, "a file that can be locked", &e)),
    }
}

fn at(path: &Path, expected: &str, e: &std::io::Error) -> Fault {
    Fault::new(path.display().to_string(), expected, e.to_string())
}
