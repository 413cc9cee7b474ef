//! `tare accuracy`: what packings, classes and other engines cost in accuracy on a text, kept as a document.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::Path;
use std::str::FromStr;
use tare_core::Fault;
use tare_core::digest::sha256_hex;
use tare_evidence::accuracy::{Accuracy, AccuracyMeasured, ScoredArm, ScoredText};
use tare_evidence::record::{About, Role};
use tare_evidence::{Document, Ledger, canonical};
use tare_lab::accuracy::{PeerLogits, Reference, Text, arm, markdown, peer_scorer, scorer};
use tare_lab::campaign::live::now;
use tare_lab::peers::PeerRunner;
use tare_lab::{On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::{Class, class::CLASSES};

use crate::args::{AccuracyArgs, HowArgs};
use crate::commands::peers::model_path;
use crate::commands::quantize::written_as;
use crate::progress::spinner;
use crate::settings::Settings;
use crate::setup::{cpu_config, model_spec, plain_prompt, read_ids, tokenizer, within_training};
use crate::weighing::provenance;

/// What an arm's file is called that is the model as it was given.
const AS_GIVEN: &str = "file";

/// An arm: which file, and in which class or by which engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArmName {
    /// Formats of matrices and head that the model's values in F32 are written in; none for the file as it was given.
    written: Option<(String, Option<String>)>,
    /// A class of tare, or the name of a peer.
    by: String,
}

impl FromStr for ArmName {
    type Err = Fault;
    fn from_str(s: &str) -> Result<Self, Fault> {
        let expected =
            "FORMAT:CLASS, FORMAT+HEAD:CLASS or file:CLASS, with a peer in the place of a class where one is meant";
        let (file, by) = s
            .split_once(':')
            .filter(|(f, by)| !f.is_empty() && !by.is_empty())
            .ok_or_else(|| Fault::new("--arm", expected, format!("`{s}`")))?;
        let written = (file != AS_GIVEN).then(|| match file.split_once('+') {
            Some((format, head)) => (format.to_string(), Some(head.to_string())),
            None => (file.to_string(), None),
        });
        Ok(Self { written, by: by.to_string() })
    }
}

impl ArmName {
    fn label(&self) -> String {
        let file = match &self.written {
            None => AS_GIVEN.to_string(),
            Some((format, None)) => format.clone(),
            Some((format, Some(head))) => format!("{format}+{head}"),
        };
        format!("{file}:{}", self.by)
    }
}

/// Runs the command.
pub(crate) fn run(args: &AccuracyArgs, settings: &Settings) -> Result<()> {
    let given = model_spec(&args.model, settings)?;
    let model = Model::open(&given)?;
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let ids = if args.ids {
        read_ids(&args.file)?
    } else {
        let text = std::str::from_utf8(&bytes).with_context(|| format!("{} is no UTF-8", args.file.display()))?;
        plain_prompt(text, &tokenizer(&model)?)?
    };
    let text = Text { ids: &ids, window: args.window };
    let scored = ScoredText {
        name: args.file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        sha256: sha256_hex(&bytes),
        ids_sha256: canonical::digest_of(&ids)?,
        tokens: u32::try_from(ids.len()).context("a text of more tokens than can be numbered")?,
        window: u32::try_from(args.window).context("a window of more tokens than can be numbered")?,
    };
    if args.window < 2 || scored.scored() < 2 {
        bail!("{} tokens in windows of {}: at least 2 tokens must be scored", ids.len(), args.window);
    }
    within_training(args.window, &model)?;
    let bar = spinner("the model in F32");
    let how = Scoring { args, settings, text };
    let reference_rig = how.rig(&model, CLASSES[0].name)?;
    let mut engine = reference_rig.engine()?;
    let reference = Reference::of(text, &mut engine)?;
    let by = scorer(&reference_rig, &engine, "file:f32")?;
    drop(engine);
    // What is packed is not packed again: other formats are made of the values.
    let values = match model.describe()?.format.dtype() {
        Some(_) => given.clone(),
        None => written_as(&given, "f32", None, settings)?,
    };
    let mut arms = Vec::with_capacity(args.arms.len());
    for name in &args.arms {
        bar.set_message(name.label());
        let spec = match &name.written {
            None => given.clone(),
            Some((format, head)) => written_as(&values, format, head.as_deref(), settings)?,
        };
        arms.push(how.arm(name, &spec, &reference)?);
    }
    bar.finish_and_clear();
    let body = Accuracy::of(AccuracyMeasured { text: scored, reference: by, reference_nll: reference.nll, arms })?;
    let at = now()?;
    let about = About {
        role: Role::Diagnostic,
        study: "accuracy".to_string(),
        campaign: format!("{}-{}", at.compact(), std::process::id()),
        created_at: at,
        title: format!("accuracy of {}", model.describe()?.label()),
        question: "What do packings, classes and other engines cost in accuracy on a text?".to_string(),
        notes: vec![
            "the formats of other files were made of the given file's values, which may have been packed before".into(),
        ],
    };
    let document = Document::seal(about, provenance(json!({ "model": model.describe()?.label() }))?, body)?;
    let scratch = settings.scratch_ledger();
    let path = Ledger::at(args.output.as_ref().unwrap_or(&scratch)).append_document(&document)?;
    if args.json {
        println!("{}", json!({ "id": document.id, "path": path, "derived": document.body.derived }));
    } else {
        print(&document);
        println!("document: {}", path.display());
    }
    Ok(())
}

/// Shows a document as a table in Markdown.
pub(crate) fn print(document: &Document<Accuracy>) {
    print!("{}", markdown(document));
}

/// What all arms have in common.
struct Scoring<'a> {
    args: &'a AccuracyArgs,
    settings: &'a Settings,
    text: Text<'a>,
}

impl Scoring<'_> {
    fn rig<'m>(&self, model: &'m Model, class: &str) -> Result<Rig<'m>> {
        Ok(Rig {
            model,
            on: On::Cpu,
            cpu: cpu_config(&HowArgs { threads: self.args.threads, ..HowArgs::default() })?,
            plan: PlanSpec::find(PlanSpec::DEFAULT)?,
            class: tare_model::classes::choose(model, Some(class))?,
            context: self.args.window,
            max_rows: On::Cpu.max_rows(),
            sequences: 1,
            delay: None,
        })
    }

    fn arm(&self, name: &ArmName, spec: &str, reference: &Reference) -> Result<ScoredArm> {
        let label = name.label();
        let within = || format!("arm {label}");
        let model = Model::open(spec)?;
        if Class::by_name(&name.by).is_ok() {
            let rig = self.rig(&model, &name.by).with_context(within)?;
            let mut engine = rig.engine().with_context(within)?;
            let scores = reference.scores(self.text, &mut engine).with_context(within)?;
            return Ok(arm(scorer(&rig, &engine, &label)?, scores));
        }
        let path = model_path(Path::new(spec), (None, None), self.settings)?;
        let cpu = cpu_config(&HowArgs { threads: self.args.threads, ..HowArgs::default() })?;
        let mut peer = PeerRunner::open(&name.by, &self.settings.home, &path, (cpu.threads, self.args.window), 1)
            .with_context(within)?;
        let file = self.settings.home.join(format!("logits-{}.part", std::process::id()));
        let scores = reference.scores(self.text, &mut PeerLogits { peer: &mut peer, file: &file });
        Ok(arm(peer_scorer(&peer, &model, &label)?, scores.with_context(within)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_a_file_and_who_reads_it() {
        for name in ["q4_0+q8_0:w4a8", "bf16:bf16-free", "file:llama.cpp"] {
            assert_eq!(name.parse::<ArmName>().unwrap().label(), name);
        }
        assert_eq!("file:f32".parse::<ArmName>().unwrap().written, None);
        for wrong in ["q4_0", ":w4a8", "q4_0:"] {
            assert!(wrong.parse::<ArmName>().unwrap_err().to_string().contains("FORMAT:CLASS"), "{wrong}");
        }
    }
}
