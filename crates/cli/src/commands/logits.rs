//! `tare logits`: an instrument for strangers: every position's logits, in a file that anything reads.

use anyhow::{Context, Result};
use serde_json::json;
use std::path::Path;
use tare_core::DType;
use tare_engine::{Event, PromptLogits, Request};
use tare_formats::safetensors::{self, TensorPlan};

use crate::args::LogitsArgs;
use crate::settings::Settings;
use crate::setup::{How, open_model, read_ids};

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs, settings: &Settings) -> Result<()> {
    let ids = read_ids(&args.ids)?;
    let model = open_model(&args.model.model, settings)?;
    let how = How::of(&args.model.how, &model, Some(ids.len().max(1)), settings)?;
    let mut engine = how.engine(&model)?;
    let tokens = ids.len();
    engine.submit(Request { prompt_logits: PromptLogits::All, ..Request::greedy(ids, 0) })?;
    let mut values: Vec<f32> = Vec::new();
    let mut width = 0;
    while engine.has_work() {
        for event in engine.step()?.events {
            if let Event::PromptLogits { logits, .. } = event {
                for row in logits {
                    width = row.len();
                    values.extend(row);
                }
            }
        }
    }
    write(&args.output, [tokens, width], &values).with_context(|| format!("cannot write {}", args.output.display()))?;
    let summary = json!({
        "output": args.output,
        "tensor": "logits",
        "shape": [tokens, width],
        "class": how.class.name,
        "plan": how.plan.name,
        "backend": engine.info(),
    });
    if args.json {
        println!("{summary}");
    } else {
        eprintln!("{}: logits [{tokens}, {width}] F32, class {}", args.output.display(), how.class.name);
    }
    Ok(())
}

/// Writes [T, V] F32 under the name `logits`.
fn write(path: &Path, shape: [usize; 2], values: &[f32]) -> Result<()> {
    let plan = TensorPlan { name: "logits".into(), dtype: DType::F32, shape: shape.to_vec() };
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut writer = safetensors::write(file, &[], &[plan])?;
    for row in values.chunks(shape[1].max(1)) {
        let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write(&bytes)?;
    }
    writer.finish()?.into_inner()?.sync_all()?;
    Ok(())
}
