//! `tare mutate`: does the gate catch what it must?

use anyhow::{Result, bail};
use serde_json::json;
use tare_lab::mutants::{Verdict, run as study};
use tare_lab::{ClockedRequest, Lengths, ReferenceStore};

use crate::args::MutateArgs;
use crate::built::build_info;
use crate::interrupt::Interrupt;
use crate::settings::Settings;
use crate::setup::{on, open_model};
use crate::weighing::rig;

/// Long enough for a second prefill chunk, which begins a page and fills it, and for decode steps.
fn lengths(chunk_rows: usize) -> Lengths {
    Lengths { depth: 0, prompt_tokens: chunk_rows + 16, output_tokens: 6 }
}

/// Runs the command.
pub(crate) fn run(args: &MutateArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let lengths = lengths(on(&args.how, settings).max_rows());
    let request = ClockedRequest::drawn(lengths, model.config().vocab, 0)?;
    let rig = rig(&model, &args.how, std::slice::from_ref(&request), settings)?;
    let store = ReferenceStore::at(settings.references(), &build_info()?.binary_sha256);
    let interrupt = Interrupt::listen()?;
    let quiet = args.json;
    let verdicts = study(&rig, &request, &store, &mut |v| {
        if !quiet {
            println!("{}", line(v));
        }
        !interrupt.pressed()
    })?;
    if args.json {
        println!("{}", json!({ "verdicts": verdicts, "holds": verdicts.iter().all(Verdict::holds) }));
    }
    let open: Vec<&str> = verdicts.iter().filter(|v| !v.holds()).map(|v| v.mutation).collect();
    if open.is_empty() { Ok(()) } else { bail!("the gate does not hold for: {}", open.join(", ")) }
}

fn line(v: &Verdict) -> String {
    let word = match (v.holds(), v.planted) {
        (true, _) if v.caught => format!("caught by {}", v.by.join(", ")),
        (true, _) => "passes, as it must".to_string(),
        (false, false) => "NOT PLANTED: this request does not reach it".to_string(),
        (false, true) if v.caught => format!("FAILED by {}", v.by.join(", ")),
        (false, true) => "NOT CAUGHT".to_string(),
    };
    format!("{:26} {word}", v.mutation)
}
