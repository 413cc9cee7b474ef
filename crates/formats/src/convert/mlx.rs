//! A Hugging Face folder to an MLX folder with packed matrices, as mlx-lm lays it out.

use super::rows::{Order, each_run};
use super::{Meter, Progress, check_source, place};
use crate::error::FormatError;
use crate::json;
use crate::model_file::{FileKind, ModelFile};
use crate::names::Role;
use crate::{config, safetensors};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use tare_core::{AffineBits, DType, Fault, Format, Weight, WeightData};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Writes the folder; gives bytes and number of tensors.
pub(super) fn convert(
    src: &ModelFile,
    (bits, group): (AffineBits, u16),
    out: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(u64, usize), FormatError> {
    if src.kind != FileKind::HuggingFace {
        let fault = Fault::new("model", "a Hugging Face folder to make an MLX folder of", src.kind.to_string());
        return Err(FormatError::Unsupported(fault.remedy("start from the unquantised folder of this model")));
    }
    let target = Format::Affine { bits, group };
    if ![32, 64, 128].contains(&group) {
        return Err(Fault::new("group", "32, 64 or 128", group.to_string()).into());
    }
    fs::create_dir(out).map_err(|e| FormatError::io(out, "create", e))?;
    let plan = plan(src, target)?;
    let total_bytes = plan.iter().map(Planned::bytes).sum();
    let path = out.join(WEIGHTS);
    let io = |e| FormatError::io(&path, "write", e);
    let tensors: Vec<_> = plan.iter().flat_map(|p| p.tensors.iter().cloned()).collect();
    let file = BufWriter::with_capacity(1 << 20, place::create(&path)?);
    let mut writer = safetensors::write(file, &[("format", "mlx")], &tensors)?;
    let mut meter = Meter { progress, done: 0, tensors: plan.len(), bytes: 0, total_bytes };
    for planned in &plan {
        let w = src.weight(planned.role)?;
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        each_run(&w, Order::Same, planned.packing, &mut |part| match part.data() {
            WeightData::Blocks(bytes) => writer.write(bytes).map_err(io),
            WeightData::Affine(a) => {
                scales.extend_from_slice(&a.scales);
                biases.extend_from_slice(&a.biases);
                writer.write(&a.words).map_err(io)
            }
        })?;
        writer.write(&scales).map_err(io)?;
        writer.write(&biases).map_err(io)?;
        meter.add(w.name(), planned.bytes());
    }
    let mut file = writer.finish().map_err(io)?;
    file.flush().map_err(io)?;
    file.get_ref().sync_all().map_err(io)?;
    let source = if src.path.is_dir() { &src.path } else { src.path.parent().unwrap_or(&src.path) };
    write_index(out, src, &tensors)?;
    write_config(source, out, (bits, group))?;
    copy_rest(source, out)?;
    Ok((total_bytes, plan.len()))
}

/// The tensors of one weight and how its values are packed.
struct Planned {
    role: Role,
    packing: (Format, DType),
    tensors: Vec<safetensors::TensorPlan>,
}

impl Planned {
    fn bytes(&self) -> u64 {
        self.tensors.iter().map(safetensors::TensorPlan::bytes).sum()
    }
}

/// Matrices whose columns are multiples of the group are packed, the embedding and the head among them; the rest
/// stays as it is, as mlx-lm does it.
fn plan(src: &ModelFile, target: Format) -> Result<Vec<Planned>, FormatError> {
    Role::all(&src.config).into_iter().map(|role| planned(role, &src.weight(role)?, target)).collect()
}

fn planned(role: Role, w: &Weight, target: Format) -> Result<Planned, FormatError> {
    check_source(w, target)?;
    let plain = || FormatError::Unsupported(Fault::new(w.name(), "f32, f16 or bf16", w.format().to_string()));
    let dtype = w.format().dtype().ok_or_else(plain)?;
    let tensor = |name: String, dtype, shape| safetensors::TensorPlan { name, dtype, shape };
    let module = w.name().strip_suffix(".weight").filter(|_| !role.is_vector());
    let (module, bits, group) = match (module, target) {
        (Some(m), Format::Affine { bits, group }) if w.cols().is_multiple_of(group as usize) => (m, bits, group),
        _ => {
            let shape = if role.is_vector() { vec![w.cols()] } else { vec![w.rows(), w.cols()] };
            let tensors = vec![tensor(w.name().into(), dtype, shape)];
            return Ok(Planned { role, packing: (w.format(), dtype), tensors });
        }
    };
    let groups = vec![w.rows(), w.cols() / group as usize];
    let tensors = vec![
        tensor(w.name().into(), DType::U32, vec![w.rows(), w.cols() * bits.bits() / 32]),
        tensor(format!("{module}.scales"), dtype, groups.clone()),
        tensor(format!("{module}.biases"), dtype, groups),
    ];
    Ok(Planned { role, packing: (target, dtype), tensors })
}

fn write_json(path: &Path, value: &Value) -> Result<(), FormatError> {
    let text = format!("{value:#}\n");
    place::create(path)?.write_all(text.as_bytes()).map_err(|e| FormatError::io(path, "write", e))
}

fn write_index(out: &Path, src: &ModelFile, tensors: &[safetensors::TensorPlan]) -> Result<(), FormatError> {
    let map: Map<String, Value> = tensors.iter().map(|t| (t.name.clone(), WEIGHTS.into())).collect();
    let size: u64 = tensors.iter().map(safetensors::TensorPlan::bytes).sum();
    let parameters: u64 = src.weights.values().map(|w| (w.rows() * w.cols()) as u64).sum();
    let metadata = json!({"total_size": size, "total_parameters": parameters});
    write_json(&out.join(INDEX), &json!({"metadata": metadata, "weight_map": map}))
}

/// The source's config.json with the packing added under both names that MLX writes.
fn write_config(source: &Path, out: &Path, (bits, group): (AffineBits, u16)) -> Result<(), FormatError> {
    let path = source.join("config.json");
    let bytes = fs::read(&path).map_err(|e| FormatError::io(&path, "read", e))?;
    let mut map = json::object("config.json", &bytes, config::hf::LIMIT)?;
    let packing = json!({"group_size": group, "bits": bits.bits(), "mode": "affine"});
    map.insert("quantization".into(), packing.clone());
    map.insert("quantization_config".into(), packing);
    write_json(&out.join("config.json"), &Value::Object(map))
}

/// Copies tokenizer, template and other small files that belong to the model.
fn copy_rest(source: &Path, out: &Path) -> Result<(), FormatError> {
    let list = |e| FormatError::io(source, "list", e);
    for entry in fs::read_dir(source).map_err(list)? {
        let from = entry.map_err(list)?.path();
        let Some(name) = from.file_name().and_then(|n| n.to_str()) else { continue };
        let kept = ["json", "jinja", "txt", "model"].iter().any(|e| from.extension().is_some_and(|x| x == *e));
        let written = name == "config.json" || name.ends_with(".index.json");
        if kept && !written && from.is_file() {
            fs::copy(&from, out.join(name)).map_err(|e| FormatError::io(&from, "copy", e))?;
        }
    }
    Ok(())
}
