//! Which arithmetic classes a model can run in, and which one it runs in when nobody asks.

use serde::Serialize;
use std::collections::BTreeMap;
use tare_core::{Fault, Format, Reading};
use tare_formats::{ModelConfig, Role};
use tare_ops::Class;
use tare_ops::class::CLASSES;

use crate::{Model, ModelError};

/// The name of the backend that has kernels for activations in integers.
const PROCESSOR: &str = "cpu";

/// A class, and whether a model can run in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassFit {
    /// The class.
    pub class: &'static str,
    /// What it promises.
    pub summary: &'static str,
    /// Whether it is the one taken on a processor when nobody asks.
    pub default: bool,
    /// Bytes of one token in the KV cache, or why the model cannot run in the class.
    pub kv_bytes_per_token: Reading<usize>,
}

/// Whether a step multiplies with `role`'s matrix. The embedding is only gathered from, unless it is also the head.
pub fn is_multiplied(role: Role, config: &ModelConfig) -> bool {
    !role.is_vector() && (role != Role::Embed || config.tied_head)
}

/// The class that `model` runs in on a processor: the one asked for, else the one that suits the format of most of its weights,
/// with activations in integers of 15 bits where these are packed.
///
/// # Errors
/// When there is no such class, the class does not compute with a format that the model has, or its name would say
/// something else about the weights than what they are.
pub fn choose(model: &Model, asked: Option<&str>) -> Result<Class, ModelError> {
    chosen(model, asked, default_class)
}

/// The same on a device, which has no kernels for activations in integers.
///
/// # Errors
/// As [`choose`].
pub fn choose_for_device(model: &Model, asked: Option<&str>) -> Result<Class, ModelError> {
    chosen(model, asked, plain_class)
}

/// The class that was asked for, else the one that is the `default` for the formats of the weights.
fn chosen(
    model: &Model,
    asked: Option<&str>,
    default: fn(&BTreeMap<Format, u64>) -> Class,
) -> Result<Class, ModelError> {
    let formats = multiplied_formats(model)?;
    let Some(name) = asked else { return Ok(default(&formats)) };
    let class = Class::by_name(name)?;
    suits(class, &formats).map_err(|why| {
        Fault::new("class", "one that the model's weights admit", why)
            .remedy(format!("leave the class out, which takes {}", default(&formats).name))
    })?;
    Ok(class)
}

/// The class of the same weights in which an answer depends on its request alone, for the backend of this name: on a
/// processor the one with activations in integers of 15 bits where the weights are packed, else the plain one.
pub fn deterministic(class: Class, backend: &str) -> Class {
    let plain = class.plain();
    if backend == PROCESSOR { plain.in_fifteen_bits().unwrap_or(plain) } else { plain }
}

/// Every class with its verdict on `model`.
///
/// # Errors
/// When a weight is missing or malformed.
pub fn fits(model: &Model) -> Result<Vec<ClassFit>, ModelError> {
    let formats = multiplied_formats(model)?;
    let default = default_class(&formats);
    let fit = |class: Class| ClassFit {
        class: class.name,
        summary: class.summary,
        default: class == default,
        kv_bytes_per_token: suits(class, &formats)
            .map(|()| crate::planner::kv_shape(model.config(), class).token_bytes())
            .into(),
    };
    Ok(CLASSES.into_iter().map(fit).collect())
}

/// Weights that steps multiply with: how many there are in each format.
pub(crate) fn multiplied_formats(model: &Model) -> Result<BTreeMap<Format, u64>, ModelError> {
    let mut counts = BTreeMap::new();
    for t in model.tensors()?.iter().filter(|t| is_multiplied(t.role, model.config())) {
        *counts.entry(t.format).or_insert(0) += t.weights();
    }
    Ok(counts)
}

/// The class that nobody has to ask for on a processor.
fn default_class(formats: &BTreeMap<Format, u64>) -> Class {
    deterministic(plain_class(formats), PROCESSOR)
}

/// The class of the most common format when it admits all the others, else `f32`, which admits everything.
fn plain_class(formats: &BTreeMap<Format, u64>) -> Class {
    let wanted = Class::default_for(commonest(formats));
    if admits_all(wanted, formats).is_ok() { wanted } else { CLASSES[0] }
}

/// The format of most weights.
pub(crate) fn commonest(formats: &BTreeMap<Format, u64>) -> Format {
    formats.iter().max_by_key(|(_, n)| **n).map_or(Format::F32, |(f, _)| *f)
}

fn admits_all(class: Class, formats: &BTreeMap<Format, u64>) -> Result<(), String> {
    formats.keys().try_for_each(|f| class.admits(*f))
}

/// Whether a model of `formats` may run in `class`: in `f32`, which every model can, or in the class of its own weights,
/// in the reference's order of sums or in any, with activations in integers of 8 or 15 bits or in none.
/// The packed classes do the same arithmetic whatever the packing, so a `w8a16` over 4-bit weights would compute, and
/// its records would be compared with those of 8-bit weights.
fn suits(class: Class, formats: &BTreeMap<Format, u64>) -> Result<(), String> {
    admits_all(class, formats)?;
    let own = plain_class(formats);
    if class.plain() == own || class == CLASSES[0] {
        return Ok(());
    }
    Err(format!(
        "{} is not the class of these weights: most are {}, which is {}",
        class.name,
        commonest(formats),
        own.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::AffineBits;

    #[test]
    fn the_commonest_format_names_the_class_unless_another_format_forbids_it() {
        let of = |formats: &[(Format, u64)]| default_class(&formats.iter().copied().collect()).name;
        assert_eq!(of(&[(Format::Q4K, 90), (Format::Q6K, 10)]), "w4a15");
        assert_eq!(of(&[(Format::Q4K, 10), (Format::Q8_0, 90)]), "w8a15");
        assert_eq!(of(&[(Format::Q4_0, 90), (Format::F16, 10)]), "f32");
        assert_eq!(of(&[(Format::BF16, 90)]), "bf16");
        assert_eq!(of(&[(Format::BF16, 90), (Format::F32, 10)]), "f32");
    }

    #[test]
    fn a_class_that_keeps_the_promise_is_one_that_the_backend_has_kernels_for() {
        let of = |name, backend| deterministic(Class::by_name(name).unwrap(), backend).name;
        for (free, on_cpu, elsewhere) in
            [("w4a16-free", "w4a15", "w4a16"), ("w8a16-free", "w8a15", "w8a16"), ("bf16-free", "bf16", "bf16")]
        {
            assert_eq!([of(free, "cpu"), of(free, "cuda")], [on_cpu, elsewhere]);
        }
    }

    #[test]
    fn a_class_says_what_the_weights_are() {
        let all = [Format::ALL.to_vec(), vec![Format::Affine { bits: AffineBits::Eight, group: 64 }]].concat();
        for format in all {
            let formats = BTreeMap::from([(format, 1)]);
            let own = plain_class(&formats);
            let fitting: Vec<&str> =
                CLASSES.into_iter().filter(|c| suits(*c, &formats).is_ok()).map(|c| c.name).collect();
            let want = CLASSES.into_iter().filter(|c| c.name == "f32" || c.plain() == own).map(|c| c.name);
            assert_eq!(fitting, want.collect::<Vec<_>>(), "{format}");
        }
        let mixed = BTreeMap::from([(Format::Q4K, 90), (Format::Q6K, 10)]);
        let why = suits(Class::by_name("w8a16").unwrap(), &mixed).unwrap_err();
        assert_eq!(why, "w8a16 is not the class of these weights: most are q4_k, which is w4a16");
    }

    #[test]
    fn an_asked_class_that_lies_is_refused_and_inspection_says_why() {
        for (spec, lie, truth) in [
            ("synthetic:qwen3-tiny?format=w4g32", "w8a16", "w4a16"),
            ("synthetic:qwen3-tiny?format=q4_0", "w8a16", "w4a16"),
            ("synthetic:qwen3-tiny?format=q8_0", "w4a16", "w8a16"),
        ] {
            let model = Model::open(spec).unwrap();
            assert_eq!(choose_for_device(&model, None).unwrap(), choose(&model, Some(truth)).unwrap());
            let unasked = choose(&model, None).unwrap();
            for (error, taken) in
                [(choose(&model, Some(lie)), unasked.name), (choose_for_device(&model, Some(lie)), truth)]
            {
                let error = error.unwrap_err().to_string();
                assert!(error.contains(&format!("which is {truth}")), "{error}");
                assert!(error.contains(&format!("leave the class out, which takes {taken}")), "{error}");
            }
            assert_eq!((unasked.plain().name, unasked.name), (truth, &*truth.replace("a16", "a15")));
            assert_eq!(
                choose_for_device(&model, Some(unasked.name)).unwrap(),
                unasked,
                "a device says why it refuses it"
            );
            assert_eq!(choose(&model, Some("f32")).unwrap().name, "f32");
            let fits = fits(&model).unwrap();
            let default: Vec<&str> = fits.iter().filter(|f| f.default).map(|f| f.class).collect();
            assert_eq!(default, [unasked.name]);
            let verdict = &fits.iter().find(|f| f.class == lie).unwrap().kv_bytes_per_token;
            assert!(verdict.to_string().contains(&format!("which is {truth}")), "{spec}: {verdict}");
        }
    }
}
