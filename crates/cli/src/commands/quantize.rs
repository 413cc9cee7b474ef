//! `tare quantize`: a model in another weight format.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use tare_core::units::human_bytes;
use tare_core::{Fault, Format};
use tare_formats::convert::{Target, convert};
use tare_formats::{ModelFile, Role};
use tare_model::Model;

use crate::args::QuantizeArgs;
use crate::settings::Settings;
use crate::setup::open_model;

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs, settings: &Settings) -> Result<()> {
    let target = target(&args.format)?;
    let model = open_model(&args.model, settings)?;
    let made;
    let source = match model.file() {
        Some(f) => f,
        None => {
            made = in_memory(&model)?;
            &made
        }
    };
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template("{msg:36!} {bar:30} {bytes}/{total_bytes}, {eta} left")?);
    let done = convert(source, target, &args.output, &mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.bytes);
        bar.set_message(p.name.to_string());
    })?;
    bar.finish_and_clear();
    if args.json {
        println!(
            "{}",
            json!({ "output": done.path, "bytes": done.bytes, "tensors": done.tensors, "format": args.format })
        );
    } else {
        println!("{}: {} tensors, {}", done.path.display(), done.tensors, human_bytes(done.bytes));
    }
    Ok(())
}

fn target(name: &str) -> Result<Target> {
    match name.parse::<Format>() {
        Ok(Format::Affine { bits, group }) => Ok(Target::Mlx { bits, group }),
        Ok(f @ (Format::Q4_0 | Format::Q8_0 | Format::BF16 | Format::F16 | Format::F32)) => Ok(Target::Gguf(f)),
        _ => Err(Fault::new(
            "--format",
            "w4g32, w4g64, w4g128, w8g32, w8g64, w8g128 (MLX), q4_0, q8_0, bf16, f16 or f32 (GGUF)",
            format!("`{name}`"),
        )
        .into()),
    }
}

/// A synthetic model as if it had been read from a file.
fn in_memory(model: &Model) -> Result<ModelFile> {
    let roles = Role::all(model.config());
    let weights = roles.into_iter().map(|r| Ok((r, model.weight(r)?))).collect::<Result<BTreeMap<_, _>>>()?;
    Ok(ModelFile::from_weights(model.config().clone(), weights)?)
}
