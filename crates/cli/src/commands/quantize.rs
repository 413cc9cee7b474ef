//! `tare quantize`: a model in another weight format.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use tare_core::units::human_bytes;
use tare_core::{Fault, Format};
use tare_formats::convert::{Converted, Target, convert};
use tare_formats::{ModelFile, Role};
use tare_model::Model;

use crate::args::QuantizeArgs;
use crate::settings::Settings;
use crate::setup::open_model;

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let done = write(&model, &args.format, &args.output)?;
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

/// Writes `model` in `format` to `output`, which must not exist, with a line that moves.
fn write(model: &Model, format: &str, output: &Path) -> Result<Converted> {
    let target = target(format)?;
    let made;
    let source = match model.file() {
        Some(f) => f,
        None => {
            made = in_memory(model)?;
            &made
        }
    };
    let bar = ProgressBar::new(0)
        .with_style(ProgressStyle::with_template("{msg:36!} {bar:30} {bytes}/{total_bytes}, {eta} left")?);
    let done = convert(source, target, output, &mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.bytes);
        bar.set_message(p.name.to_string());
    })?;
    bar.finish_and_clear();
    Ok(done)
}

/// The model `name` as a file of `format`: written once into the user's data folder, under the digest of its values.
pub(crate) fn written_as(name: &str, format: &str, settings: &Settings) -> Result<String> {
    let model = open_model(name, settings)?;
    let digest = model.values_digest()?;
    let label = model.describe()?.name;
    let ending = if matches!(target(format)?, Target::Gguf(_)) { ".gguf" } else { "" };
    let path = settings.home.join("written").join(format!("{label}-{format}-{}{ending}", &digest[..12]));
    if !path.exists() {
        std::fs::create_dir_all(settings.home.join("written"))
            .with_context(|| format!("cannot make {}", settings.home.join("written").display()))?;
        write(&model, format, &path)?;
    }
    Ok(path.to_string_lossy().into_owned())
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
