//! `tare pull`: fetch a model, or list what there is.

use anyhow::Result;
use serde_json::json;
use tare_core::units::human_bytes;

use crate::args::PullArgs;
use crate::pull::{ALIASES, Wanted, present, pull};
use crate::settings::Settings;

/// The hub when nobody names one.
const HUB: &str = "https://huggingface.co";

/// Runs the command.
pub(crate) fn run(args: &PullArgs, settings: &Settings) -> Result<()> {
    let models = settings.models();
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        return list(args.json, settings);
    };
    let endpoint = args.endpoint.as_deref().or(settings.endpoint.as_deref()).unwrap_or(HUB);
    let wanted = Wanted {
        name,
        revision: &args.revision,
        endpoint,
        token: settings.token.as_deref(),
        offline: args.offline,
        models: &models,
    };
    std::fs::create_dir_all(&models)?;
    let (folder, manifest) = pull(&wanted)?;
    if args.json {
        println!("{}", json!({ "folder": folder, "manifest": manifest }));
    } else {
        let bytes: u64 = manifest.files.iter().map(|f| f.bytes).sum();
        println!("{name}: {} files, {}, in {}", manifest.files.len(), human_bytes(bytes), folder.display());
        println!("try: tare run -m {name} \"Why is the sky blue?\"");
    }
    Ok(())
}

fn list(as_json: bool, settings: &Settings) -> Result<()> {
    let here = present(&settings.models())?;
    if as_json {
        let aliases: Vec<_> =
            ALIASES.iter().map(|a| json!({ "name": a.name, "hub": a.hub, "about": a.about })).collect();
        let present: Vec<_> = here.iter().map(|(m, p)| json!({ "manifest": m, "folder": p })).collect();
        println!("{}", json!({ "aliases": aliases, "present": present }));
        return Ok(());
    }
    println!("can be pulled:");
    for a in &ALIASES {
        println!("  {:18} {:48} {}", a.name, a.hub.unwrap_or("(Python package)"), a.about);
    }
    println!("here:");
    for (m, path) in &here {
        println!("  {:18} {} at {}  {}", m.name, m.source, m.revision, path.display());
    }
    Ok(())
}
