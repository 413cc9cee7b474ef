//! `tare peers`: other engines that do the same work.

mod check;

use anyhow::Result;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tare_core::Reading;
use tare_core::units::human_ns;
use tare_lab::LabError;
use tare_lab::peers::tune::{Frozen, Place, Tuning};
use tare_lab::peers::{ENTRIES, Entry, entry, found, install, pack};
use tare_model::Model;
use tare_probe::Host;

use crate::args::{PeersCommand, TuneArgs};
use crate::commands::quantize::written_as;
use crate::interrupt::{Interrupt, cancelled};
use crate::progress::spinner;
use crate::pull;
use crate::settings::Settings;

/// Runs the command.
pub(crate) fn run(command: &PeersCommand, settings: &Settings) -> Result<()> {
    match command {
        PeersCommand::Install { name, sources, json } => add(name, sources.as_deref(), *json, settings),
        PeersCommand::Sources { name, output } => sources(name, output, settings),
        PeersCommand::List { json } => list(*json, settings),
        PeersCommand::Tune(args) => tune(args, settings),
        PeersCommand::Check(args) => check::run(args, settings),
    }
}

fn add(name: &str, carried: Option<&Path>, as_json: bool, settings: &Settings) -> Result<()> {
    let entry = entry(name)?;
    let before = found(entry, &settings.home);
    let done = step_by_step(entry, |go_on| install(entry, &settings.home, carried, go_on))?;
    if as_json {
        println!("{}", json!({ "peer": done, "folder": done.folder, "was_there": before.available().is_some() }));
    } else if before.available().is_some() {
        println!("{name} {}: was there already, in {}", done.version, done.folder.display());
    } else {
        println!("{name} {}: installed in {:.0} s, in {}", done.version, done.seconds, done.folder.display());
    }
    Ok(())
}

fn sources(name: &str, output: &Path, settings: &Settings) -> Result<()> {
    let entry = entry(name)?;
    let files = step_by_step(entry, |go_on| pack(entry, &settings.home, output, go_on))?;
    println!("{name} {}: {files} source files, in {}", entry.version, output.display());
    Ok(())
}

/// Does something about `entry` that takes minutes, with a line that says which step runs, until it ends or Ctrl-C.
pub(crate) fn step_by_step<T>(
    entry: &Entry,
    work: impl FnOnce(&mut dyn FnMut(&str, Duration) -> bool) -> Result<T, LabError>,
) -> Result<T> {
    let interrupt = Interrupt::listen()?;
    let what = format!("{} {}", entry.name, entry.version);
    let bar = spinner(what.clone());
    let done = work(&mut |step, since| {
        bar.set_message(format!("{what}: {step}, {} s", since.as_secs()));
        !interrupt.pressed()
    });
    bar.finish_and_clear();
    done.map_err(cancelled)
}

fn list(as_json: bool, settings: &Settings) -> Result<()> {
    let state = |e| found(e, &settings.home);
    if as_json {
        let all: Vec<Value> = ENTRIES
            .iter()
            .map(|e| json!({ "name": e.name, "version": e.version, "about": e.about, "installed": state(e) }))
            .collect();
        println!("{}", json!(all));
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["peer", "version", "state", "what it is compared on"]);
    for e in ENTRIES {
        let state = match state(e) {
            Reading::Available(here) => format!("installed in {:.0} s for {}", here.seconds, here.processor),
            Reading::Unavailable { why } => format!("unavailable: {why}"),
        };
        table.add_row([e.name, e.version, &state, e.about]);
    }
    println!("{table}");
    Ok(())
}

fn tune(args: &TuneArgs, settings: &Settings) -> Result<()> {
    let entry = entry(&args.name)?;
    let model = model_path(&args.model, (args.written_as.as_deref(), args.head_as.as_deref()), settings)?;
    let vocabulary = Model::open(&model.to_string_lossy())?.config().vocab;
    let threads = args.threads.unwrap_or_else(|| Host::read().usable_threads);
    let budget = Duration::from_secs(args.seconds);
    let interrupt = Interrupt::listen()?;
    let bar = spinner(format!("{}: {} candidates in {} s", entry.name, entry.candidates.len(), args.seconds));
    let tuning = Tuning { entry, home: &settings.home, model: &model, threads, vocabulary, budget };
    let frozen = tuning.run(&mut |n, candidate| {
        let of = entry.candidates.len();
        bar.set_message(format!("{}: candidate {} of {of}: {}", entry.name, n + 1, shown(candidate)));
        !interrupt.pressed()
    });
    bar.finish_and_clear();
    let frozen = frozen.map_err(cancelled)?;
    let place = Place::of(entry, &settings.home, &model, threads)?;
    if args.json {
        println!("{}", json!({ "tuned": frozen, "path": place.path() }));
    } else {
        print(&frozen, place.path());
    }
    Ok(())
}

fn print(frozen: &Frozen, path: &Path) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["settings", "threads", "requests", "median request"]);
    for t in &frozen.tried {
        let time = match (t.median_ns(), &t.refused) {
            (Some(ns), _) => human_ns(ns),
            (None, why) => format!("unavailable: {}", why.as_deref().unwrap_or("no request ended")),
        };
        table.add_row([shown(&t.settings), t.threads.to_string(), t.request_ns.len().to_string(), time]);
    }
    println!("{table}");
    println!("frozen: {} with {} threads, in {}", shown(&frozen.settings), frozen.threads, path.display());
}

fn shown(settings: &Map<String, Value>) -> String {
    if settings.is_empty() { "defaults".to_string() } else { Value::Object(settings.clone()).to_string() }
}

/// The file or folder that `name` names: a path, something that was pulled, or the file of a format to which a synthetic
/// model is written.
pub(crate) fn model_path(
    name: &Path,
    (format, head): (Option<&str>, Option<&str>),
    settings: &Settings,
) -> Result<PathBuf> {
    if let Some(format) = format {
        return Ok(written_as(&name.to_string_lossy(), format, head, settings)?.into());
    }
    let pulled = if name.exists() { None } else { pull::local(&name.to_string_lossy(), &settings.models())? };
    let found = pulled.unwrap_or_else(|| name.to_path_buf());
    if !found.is_dir() {
        return Ok(found);
    }
    let is_gguf = |p: &PathBuf| p.extension().is_some_and(|e| e == "gguf");
    let inside = std::fs::read_dir(&found)?.flatten().map(|e| e.path()).find(is_gguf);
    Ok(inside.unwrap_or(found))
}
