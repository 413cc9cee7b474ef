//! `tare quantize`: a model in another weight format.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tare_core::units::human_bytes;
use tare_core::{Fault, Format};
use tare_formats::convert::{Converted, Target, convert};
use tare_formats::{ModelFile, Role};
use tare_lab::peers::convert::{convert as convert_for, tools, version, writer};
use tare_model::Model;

use crate::args::QuantizeArgs;
use crate::commands::peers::step_by_step;
use crate::settings::Settings;
use crate::setup::open_model;

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model, settings)?;
    let done = write(&model, target(&args.format, args.head_format.as_deref())?, &args.output)?;
    if args.json {
        println!(
            "{}",
            json!({ "output": done.path, "bytes": done.bytes, "tensors": done.tensors, "format": args.format,
                    "head_format": args.head_format.as_ref().unwrap_or(&args.format) })
        );
    } else {
        println!("{}: {} tensors, {}", done.path.display(), done.tensors, human_bytes(done.bytes));
    }
    Ok(())
}

/// Writes `model` as `target` to `output`, which must not exist, with a line that moves.
fn write(model: &Model, target: Target, output: &Path) -> Result<Converted> {
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

/// The model `name` as a file of `format`, its head in `head` where that is another: written once into the user's data
/// folder, under the digest of its values and what tells this build's encoders from others. A format of a peer's own is
/// written by the tools of that peer, which read the values in BF16.
pub(crate) fn written_as(name: &str, format: &str, head: Option<&str>, settings: &Settings) -> Result<String> {
    let model = open_model(name, settings)?;
    let label = format!("{}-{format}", model.describe()?.name);
    let digest = &model.values_digest()?[..12];
    if let Some(peer) = writer(format) {
        if let Some(head) = head {
            let expected = format!("none: the tools of {} choose it", peer.name);
            return Err(Fault::new("format of the head", expected, format!("`{head}`")).into());
        }
        let path = once(settings, format!("{label}-{digest}-{}", version(peer)))?;
        if !path.exists() {
            let here = tools(peer, &settings.home)?;
            let source = written_as(name, "bf16", None, settings)?;
            let by = (peer, &here, settings.home.as_path());
            step_by_step(peer, |go_on| convert_for(by, source.as_ref(), (format, &path), go_on))?;
        }
        return Ok(path.to_string_lossy().into_owned());
    }
    let target = target(format, head)?;
    let ending = if matches!(target, Target::Gguf { .. }) { ".gguf" } else { "" };
    let head = head.filter(|h| *h != format).map(|h| format!("-head-{h}")).unwrap_or_default();
    let path = once(settings, format!("{label}{head}-{digest}-{}{ending}", target.version()?))?;
    if !path.exists() {
        write(&model, target, &path)?;
    }
    Ok(path.to_string_lossy().into_owned())
}

/// The place of what is written once and called `name`.
fn once(settings: &Settings, name: String) -> Result<PathBuf> {
    let folder = settings.home.join("written");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.join(name))
}

/// What is to be written, of the names of a format and of the head's.
fn target(format: &str, head: Option<&str>) -> Result<Target> {
    let in_gguf = |name: &str| {
        use Format::{BF16, F16, F32, Q4_0, Q6K, Q8_0};
        name.parse().ok().filter(|f| matches!(f, Q4_0 | Q6K | Q8_0 | BF16 | F16 | F32))
    };
    if let Ok(Format::Affine { bits, group }) = format.parse() {
        return match head {
            None => Ok(Target::Mlx { bits, group }),
            Some(head) => Err(Fault::new("--head-format", "none: an MLX folder has one packing", format!("`{head}`"))
                .remedy("choose a format of a GGUF file for all the others too")
                .into()),
        };
    }
    let Some(matrices) = in_gguf(format) else {
        let expected = "w4g32, w4g64, w4g128, w8g32, w8g64, w8g128 (MLX), q4_0, q6_k, q8_0, bf16, f16 or f32 (GGUF)";
        return Err(Fault::new("--format", expected, format!("`{format}`")).into());
    };
    match head.map_or(Some(matrices), in_gguf) {
        Some(head) => Ok(Target::Gguf { matrices, head }),
        None => {
            let found = format!("`{}`", head.unwrap_or_default());
            Err(Fault::new("--head-format", "q4_0, q6_k, q8_0, bf16, f16 or f32", found).into())
        }
    }
}

/// A synthetic model as if it had been read from a file.
fn in_memory(model: &Model) -> Result<ModelFile> {
    let roles = Role::all(model.config());
    let weights = roles.into_iter().map(|r| Ok((r, model.weight(r)?))).collect::<Result<BTreeMap<_, _>>>()?;
    Ok(ModelFile::from_weights(model.config().clone(), weights)?)
}
